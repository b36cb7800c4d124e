"""The cases of Flink's KafkaSourceBuilderTest."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from tests.source.flink.logs import PARTITIONS, RECORDS, offsets_read


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
