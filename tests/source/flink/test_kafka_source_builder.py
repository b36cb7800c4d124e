"""The cases of Flink's KafkaSourceBuilderTest."""

from __future__ import annotations

from itertools import combinations

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from tests.source.flink.logs import PARTITIONS, RECORDS, offsets_read

_BUILDER = KafkaSource.builder().set_topics("topic")


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("group", ["flink-commits-nothing", None])
def test_reading_commits_nothing_with_a_group_id_or_without(
    spark, kafka, cluster, source_of, enumerator_of, flink_topics, group
):
    builder = KafkaSource.builder().set_topics(flink_topics.empty, flink_topics.plain)
    if group is not None:
        builder = builder.set_group_id(group)
    enumerator = enumerator_of(builder)
    plan = enumerator.start()
    read = offsets_read(spark, source_of(builder), enumerator.assign(Limits()))
    assert read == {p: list(range(RECORDS)) for p in range(PARTITIONS)}
    assert cluster.committed_offsets(list(plan.end_offsets), group or "dagster-kafka-flip") == {}
    groups = {found.group_id for found in kafka.admin.list_consumer_groups().result(30).valid}
    assert not {name for name in groups if name.startswith(("dagster-kafka-flip", "flink-commits-nothing"))}


@pytest.mark.parametrize("value", ["true", "false"])
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("commit.offsets.on.checkpoint", "the property commit.offsets.on.checkpoint has no effect: use commit_offsets"),
        (
            "enable.auto.commit",
            (
                "the property enable.auto.commit belongs to the source: offsets are stored in the table's commits, "
                "and the clients never commit them automatically"
            ),
        ),
    ],
)
def test_commits_can_not_be_switched_on_and_need_not_be_switched_off(key, value, message):
    with pytest.raises(ConfigurationError) as error:
        _BUILDER.set_group_id("group").set_property(key, value).build()
    assert str(error.value).startswith(f"invalid KafkaSource: {message}")


def test_one_way_to_subscribe_excludes_the_others():
    ways = {
        "topics": lambda builder: builder.set_topics("topic"),
        "topic_pattern": lambda builder: builder.set_topic_pattern(".+"),
        "partitions": lambda builder: builder.set_partitions([("topic", 0)]),
    }
    for one, other in combinations(ways, 2):
        with pytest.raises(ConfigurationError) as error:
            ways[one](ways[other](KafkaSource.builder())).build()
        assert str(error.value) == (
            "invalid KafkaSource: exactly one of topics, a topic pattern or a set of partitions is needed; "
            f"given: {one} and {other}"
        )


def test_the_interval_of_discovery_is_not_a_setting_because_every_run_discovers():
    with pytest.raises(
        ConfigurationError, match=r"the property partition\.discovery\.interval\.ms has no effect, because every plan"
    ):
        _BUILDER.set_property("partition.discovery.interval.ms", "10000").build()


def test_a_source_is_bounded_with_a_stop_or_without():
    assert _BUILDER.build().stopping_offsets == OffsetsInitializer.latest()
    assert not hasattr(_BUILDER, "set_unbounded")
