"""KafkaSource and its builder: immutable, and refusing with a reason."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.log import Log
from dagster_kafka_flip.source.offsets import OffsetResetStrategy, OffsetsInitializer
from dagster_kafka_flip.source.split import TopicPartition
from tests.source.log_model import ClusterModel, LogModel

SECRET = "hunter2-secret"


def test_a_source_reads_everything_committed_by_default():
    source = KafkaSource.builder().set_topics("b", "a", "b").build()
    assert source.topics == ("a", "b")
    assert str(source) == "a, b"
    assert source.starting_offsets == OffsetsInitializer.earliest()
    assert source.stopping_offsets == OffsetsInitializer.latest()
    assert (source.group_id, source.isolation_level, source.properties, source.connection) == (
        None,
        "read_committed",
        {},
        None,
    )


def test_keywords_make_the_same_source_as_the_builder():
    built = (
        KafkaSource.builder()
        .set_partitions([("b", 1), TopicPartition("a", 0), ("b", 1)])
        .set_group_id("g")
        .set_bounded(OffsetsInitializer.committed_offsets())
        .set_watermark_alignment(timedelta(hours=1))
        .set_client_rack("eu-1a")
        .build()
    )
    assert built == KafkaSource(
        partitions=[("a", 0), ("b", 1)],  # pyright: ignore[reportArgumentType]
        group_id="g",
        stopping_offsets=OffsetsInitializer.committed_offsets(),
        max_drift=timedelta(hours=1),
        client_rack="eu-1a",
    )
    assert str(built) == "a-0, b-1"
    with pytest.raises(ConfigurationError, match=r"earliest is not a valid stop"):
        KafkaSource(topics=("a",), stopping_offsets=OffsetsInitializer.earliest())
    with pytest.raises(ConfigurationError, match=r"^invalid KafkaSource: topcs: unknown field"):
        KafkaSource(topcs=("a",))  # pyright: ignore[reportCallIssue]


def test_a_source_needs_one_connection_and_takes_no_second():
    source = _BUILDER.build()
    with pytest.raises(ConfigurationError, match=r"^no Kafka connection"):
        source.create_enumerator(SplitEnumeratorContext())
    with pytest.raises(ConfigurationError, match=r"^no Kafka connection"):
        source.connected(None)
    here, there = KafkaConnection(bootstrap_servers="h:1"), KafkaConnection(bootstrap_servers="h:2")
    assert source.connected(here).connection == source.connected(here).connected(here).connection == here
    with pytest.raises(ConfigurationError, match=r"^two different .*: the source has h:1, the run has h:2\. Remove"):
        source.connected(here).connected(there)


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "ü", ".", "..", "x" * 250])
def test_a_name_that_no_topic_can_have_is_refused(topic):
    with pytest.raises(ConfigurationError, match=r"invalid topic name '.*': Kafka allows 1 to 249 letters"):
        KafkaSource.builder().set_topics("fine", topic).build()


_BUILDER = KafkaSource.builder().set_topics("a")


_ONE_PARTITION = KafkaSource.builder().set_partitions([("a", 0)])
_at, _by_time = OffsetsInitializer.specific_offsets, OffsetsInitializer.timestamp


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (KafkaSource.builder(), "exactly one of topics, a topic pattern or a set"),
        (KafkaSource.builder().set_topics(), "a source needs at least one topic"),
        (KafkaSource.builder().set_partitions([]), "a source needs at least one"),
        (KafkaSource.builder().set_partitions([("a", -1)]), "a: invalid partition -1; partition numbers start at 0"),
        (KafkaSource.builder().set_topic_pattern("a("), "the topic pattern 'a(' is not a valid regular expression"),
        (_BUILDER.set_topic_pattern("a"), "is needed; given: topics and topic_pattern"),
        (_BUILDER.set_partitions([("a", 0)]), "is needed; given: topics and partitions"),
        (_ONE_PARTITION.set_topic_pattern("a"), "is needed; given: topic_pattern and partitions"),
        (_BUILDER.set_bounded(OffsetsInitializer.earliest()), "earliest is not a valid stop"),
        (_BUILDER.set_starting_offsets(OffsetsInitializer.committed_offsets()), "committed offsets need a group id"),
        (_BUILDER.set_starting_offsets(_at({("b", 3): 1})), "the offsets name b-3, but the source reads a"),
        (_ONE_PARTITION.set_bounded(_at({("a", 1): 1})), "the offsets name a-1, but the source reads a-0"),
        (
            KafkaSource.builder().set_topic_pattern("a.*").set_starting_offsets(_at({("b", 1): 1})),
            "the offsets name b-1, but the source reads topics matching a.*",
        ),
        (_BUILDER.set_starting_offsets(_by_time(7)).set_bounded(_by_time(6)), "the start timestamp:7 is after the"),
        (
            _BUILDER.set_starting_offsets(_at({("a", 1): 9})).set_bounded(_at({("a", 0): 3, ("a", 1): 8})),
            "a-1: the start offset 9 is after the stop offset 8",
        ),
        (_BUILDER.set_client_id_prefix(""), "client_id_prefix: empty"),
        (_BUILDER.set_group_id(""), "group_id: empty"),
        (_BUILDER.set_isolation_level("serializable"), "isolation_level: must be 'read_committed' or 'read_unc"),
        (_BUILDER.set_property("max.poll.records", 5), "properties.max.poll.records: expected a string"),  # pyright: ignore[reportArgumentType]
        (_BUILDER.set_librdkafka_property("receive.buffer.bytes", SECRET), "the property receive.buffer.bytes is a"),
    ],
)
def test_a_source_that_can_not_be_is_refused_with_the_reason(builder, message):
    with pytest.raises(ConfigurationError, match=r"^invalid KafkaSource: ") as error:
        builder.build()
    assert message in str(error.value)


@pytest.mark.parametrize("prefix", ["", "kafka."])
@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("bootstrap.servers", "use the connection's bootstrap_servers"),
        ("group.id", "use group_id"),
        (
            "enable.auto.commit",
            "offsets are stored in the table's commits, and the clients never commit them automatically",
        ),
        ("auto.offset.reset", "use starting_offsets; a position outside the log is an error, never a silent reset"),
        ("isolation.level", "use isolation_level, which planning also needs"),
        ("key.deserializer", "use key_format"),
        ("value.deserializer", "use value_format"),
        ("client.id", "use the connection's client_id"),
    ],
)
def test_a_property_that_belongs_to_the_source_is_refused_without_showing_its_value(prefix, key, advice):
    with pytest.raises(ConfigurationError) as error:
        _BUILDER.set_property(prefix + key, SECRET).build()
    assert str(error.value) == (f"invalid KafkaSource: the property {prefix}{key} belongs to the source: {advice}")
    assert SECRET not in repr(error.value)
    assert error.value.__cause__ is None


def test_an_override_is_validated_like_the_source_itself():
    source = _BUILDER.build()
    changed = source.with_overrides(
        starting_offsets=OffsetsInitializer.latest(), stopping_offsets=OffsetsInitializer.timestamp(5)
    )
    assert (changed.starting_offsets, changed.stopping_offsets) == (
        OffsetsInitializer.latest(),
        OffsetsInitializer.timestamp(5),
    )
    assert source == _BUILDER.build()
    assert source.with_overrides() == source
    with pytest.raises(
        ConfigurationError,
        match=r"earliest is not a valid stop: nothing would ever be read\. Use latest, or leave the stop out$",
    ):
        source.with_overrides(stopping_offsets=OffsetsInitializer.earliest())
    with pytest.raises(ConfigurationError, match=r"needs? a group id: set the source's group_id$"):
        source.with_overrides(starting_offsets=OffsetsInitializer.committed_offsets())


def test_a_source_of_some_topics_keeps_the_specific_offsets_of_these_alone():
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    start, stop = OffsetsInitializer.specific_offsets({a: 1, b: 2}), OffsetsInitializer.specific_offsets({a: 5, b: 6})
    for source in (
        KafkaSource(topics=("a", "b"), starting_offsets=start, stopping_offsets=stop),
        KafkaSource(topic_pattern="a|b", starting_offsets=start, stopping_offsets=stop),
        KafkaSource(partitions=(a, b), starting_offsets=start, stopping_offsets=stop),
    ):
        only = source.only(["b"])
        assert (only.starting_offsets.offsets, only.stopping_offsets.offsets) == ({b: 2}, {b: 6})
        # Validated anew, which model_copy does not do.
        assert only.with_overrides() == only


def test_a_source_without_any_specific_offset_starts_at_the_reset_and_reads_nothing_up_to_a_stop():
    a, c = TopicPartition("a", 0), TopicPartition("c", 0)
    start = OffsetsInitializer.specific_offsets({a: 1}, OffsetResetStrategy.LATEST)
    source = KafkaSource(topics=("a", "c"), starting_offsets=start).only(["c"])
    log = Log(ClusterModel({c: LogModel([1000] * 7)}), [c], source.isolation_level)
    assert source.starting_offsets.starting_offsets([c], log) == {c: 7}
    assert (
        KafkaSource(topics=("a", "c"), stopping_offsets=start).only(["c"]).stopping_offsets.stopping_offsets([c], log)
        == {}
    )


def test_values_of_properties_are_never_shown():
    source = KafkaSource(
        topics=("a",), properties={"fetch.min.bytes": "31337"}, java_properties={"check.crcs": "s3cret"}
    )
    for text in (repr(source), str(source)):
        assert "31337" not in text
        assert "s3cret" not in text
    assert "fetch.min.bytes" in repr(source)


@pytest.mark.parametrize(("given", "topics"), [("orders", ("orders",)), (["returns", "orders"], ("orders", "returns"))])
def test_topics_are_a_source_from_the_earliest_offset(given, topics):
    assert KafkaSource.of(given) == KafkaSource(topics=topics)


def test_a_source_is_itself():
    source = KafkaSource(topics=("orders",), group_id="g")
    assert KafkaSource.of(source) is source
