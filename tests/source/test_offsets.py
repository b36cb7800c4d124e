"""OffsetsInitializer: its text form, its refusals, and what it asks the cluster in which order."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.log import Log
from dagster_kafka_flip.source.offsets import OffsetResetStrategy, OffsetsInitializer, OffsetsKind
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TimestampedOffset, TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Retriever(Log):
    """Topic partitions with offsets 5 to 50, one of them with a commit and a record in time; tells what was asked."""

    def __init__(self, highest: TimestampedOffset | None = None):
        self.asked: list[str] = []
        self.highest = highest

    def beginning_offsets(self, partitions):
        self.asked.append("beginning")
        return dict.fromkeys(partitions, 5)

    def end_offsets(self, partitions):
        self.asked.append("end")
        return dict.fromkeys(partitions, 50)

    def offsets_for_times(self, timestamps_ms):
        self.asked += [f"time {timestamp}" for timestamp in set(timestamps_ms.values())]
        return {tp: 30 for tp in timestamps_ms if tp == A0}

    def max_timestamps(self, partitions):
        self.asked.append("highest")
        return {tp: self.highest for tp in partitions if self.highest is not None}

    def committed_offsets(self, partitions):
        self.asked.append("committed")
        return {tp: 20 for tp in partitions if tp == A0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", OffsetsInitializer.earliest()),
        (" latest ", OffsetsInitializer.latest()),
        ("committed", OffsetsInitializer.committed_offsets()),
        ("committed:none", OffsetsInitializer.committed_offsets(OffsetResetStrategy.NONE)),
        ("committed:earliest", OffsetsInitializer.committed_offsets(OffsetResetStrategy.EARLIEST)),
        ("committed:latest", OffsetsInitializer.committed_offsets("latest")),
        ("timestamp:1769817600000", OffsetsInitializer.timestamp(1769817600000)),
        ("timestamp:2026-01-31T00:00:00Z", OffsetsInitializer.timestamp(1769817600000)),
        ("timestamp:2026-01-31T01:00:00+01:00", OffsetsInitializer.timestamp(1769817600000)),
        (
            'offsets:{"a": {"0": 17, "1": 0}, "b": {"0": 3}}',
            OffsetsInitializer.specific_offsets({A0: 17, A1: 0, B0: 3}),
        ),
    ],
)
def test_a_text_is_read(text, expected):
    assert OffsetsInitializer.parse(text) == expected


_initializers = st.one_of(
    st.just(OffsetsInitializer.earliest()),
    st.just(OffsetsInitializer.latest()),
    st.one_of(st.integers(0, 4 * 10**9), st.integers(0, 2**63 - 1)).map(
        lambda milliseconds: OffsetsInitializer(kind=OffsetsKind.TIMESTAMP, timestamp_ms=milliseconds)
    ),
    st.sampled_from(OffsetResetStrategy).map(OffsetsInitializer.committed_offsets),
    st.dictionaries(
        st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2000)),
        st.integers(0, 2**62),
        min_size=1,
        max_size=5,
    ).map(OffsetsInitializer.specific_offsets),
)


@given(_initializers)
def test_an_initializer_prints_as_the_text_that_makes_it_again(initializer):
    assert OffsetsInitializer.parse(str(initializer)) == initializer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "invalid offsets ''; write earliest, latest, committed, committed:earliest, "),
        ("newest", "invalid offsets 'newest'; write earliest, "),
        ("earliest:5", "invalid offsets 'earliest:5'; "),
        ("committed:never", "invalid offsets 'committed:never'; "),
        ("timestamp:", "invalid offsets 'timestamp:'; "),
        ("offsets:", "invalid offsets 'offsets:'; "),
        ("timestamp:yesterday", "invalid timestamp 'yesterday'; write ISO 8601, such as 2026-01-31T00:00:00Z"),
        ("timestamp:-5", "the timestamp -5 is before 1970, which Kafka can't look up; write 1970 or later"),
        (f"timestamp:{2**63}", "the timestamp 9223372036854775808 is above Kafka's maximum of 9223372036854775807"),
        (f"timestamp:{'9' * 5000}", "invalid timestamp '999"),
        ("timestamp:12026-01-31T00:00:00Z", "invalid timestamp '12026-01-31T00:00:00Z'"),
        ("timestamp:²", "invalid timestamp '²'; write ISO 8601, such as 2026-01-31T00:00:00Z"),
        ("timestamp:2026-01-31T00:00:00", "the timestamp 2026-01-31T00:00:00 has no UTC offset; write one, such as"),
        ("offsets:17", 'invalid offsets \'17\'; write a map such as {"flights": {"0": 17, "1": 23}}'),
        ("offsets:{", "invalid offsets '{'; write a map such as "),
        ('offsets:{"a": 17}', "; write a map such as "),
        ('offsets:{"a": {"x": 17}}', "; write a map such as "),
        ('offsets:{"a": {"0": null}}', "a-0: invalid offset None; expected a whole number"),
        ('offsets:{"a": {"0": 1.5}}', "a-0: invalid offset 1.5; expected a whole number"),
        ('offsets:{"a": {"0": true}}', "a-0: invalid offset True; expected a whole number"),
        ("offsets:{}", "specific offsets need at least one topic partition"),
        ('offsets:{"a": {"0": -1}}', "a-0: the offset -1 is negative"),
        (f'offsets:{{"a": {{"0": {2**63}}}}}', "a-0: the offset 9223372036854775808 is above Kafka's maximum of 92"),
        ('offsets:{"a": {"0": 1, "0": 2}}', "the map of offsets has the key '0' twice; write each topic and each "),
        ('offsets:{"a": {"0": 1}, "a": {"1": 2}}', "the map of offsets has the key 'a' twice; write each topic"),
        ('offsets:{"a": {"00": 1}}', "; write a map such as "),
        ('offsets:{"a": {"\u0663": 1}}', "; write a map such as "),
        ("timestamp:2026", "timestamp 2026 looks like a year, but milliseconds since 1970 are expected: write"),
        ("timestamp:20260131", "timestamp 20260131 looks like a date, but milliseconds since 1970 are expected: write"),
    ],
)
def test_a_text_that_names_no_offsets_is_refused_with_what_would(text, message):
    with pytest.raises(ConfigurationError) as error:
        OffsetsInitializer.parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("time", "milliseconds"),
    [
        (0, 0),
        (datetime(1970, 1, 1, tzinfo=timezone.utc), 0),
        (datetime(2026, 1, 31, microsecond=1000, tzinfo=timezone.utc), 1769817600001),
        (datetime(2026, 1, 31, microsecond=1, tzinfo=timezone.utc), 1769817600001),
        (datetime(2026, 1, 31, microsecond=999_999, tzinfo=timezone.utc), 1769817601000),
        (datetime(2026, 1, 31, 1, tzinfo=timezone(timedelta(hours=1))), 1769817600000),
        ("2026-01-31T00:00:00.000001+00:00", 1769817600001),
    ],
)
def test_a_time_is_whole_milliseconds_and_never_earlier_than_asked_for(time, milliseconds):
    assert OffsetsInitializer.timestamp(time).timestamp_ms == milliseconds


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (-1, "the timestamp -1 is before 1970, which Kafka can't look up; write 1970 or later"),
        (datetime(1969, 12, 31, 23, 59, 59, tzinfo=timezone.utc), "the timestamp -1000 is before 1970"),
        (
            datetime(2026, 1, 31),  # noqa: DTZ001 - a time without an offset is what is refused
            "the timestamp 2026-01-31T00:00:00 has no UTC offset; write one, such as 2026-01-31T00:00:00Z",
        ),
        ("2026-01-31", "the timestamp 2026-01-31T00:00:00 has no UTC offset"),
    ],
)
def test_a_time_that_names_no_point_in_time_is_refused(time, message):
    with pytest.raises(ConfigurationError) as error:
        OffsetsInitializer.timestamp(time)
    assert message in str(error.value)


def test_specific_offsets_are_refused_where_there_are_none_or_a_negative_one():
    with pytest.raises(ConfigurationError, match=r"^specific offsets need at least one topic partition$"):
        OffsetsInitializer.specific_offsets({})
    with pytest.raises(ConfigurationError, match=r"^a-1: the offset -3 is negative$"):
        OffsetsInitializer.specific_offsets({("a", 0): 0, ("a", 1): -3})


def test_a_start_that_is_not_named_is_the_committed_offset_and_else_the_reset():
    initializer = OffsetsInitializer.specific_offsets({A1: 7}, reset="latest")
    assert initializer.starting_offsets([A0, A1, B0], Retriever()) == {A0: 20, A1: 7, B0: 50}


def test_a_stop_that_is_not_named_is_left_out():
    initializer = OffsetsInitializer.specific_offsets({A1: 7, B0: 9})
    assert initializer.stopping_offsets([A0, A1], Retriever()) == {A1: 7}


@pytest.mark.parametrize(
    ("reset", "expected"), [("earliest", {A0: 20, A1: 5, B0: 5}), ("latest", {A0: 20, A1: 50, B0: 50})]
)
def test_committed_offsets_are_reset_where_there_are_none(reset, expected):
    initializer = OffsetsInitializer.committed_offsets(reset)
    assert initializer.starting_offsets([A0, A1, B0], Retriever()) == expected
    assert initializer.stopping_offsets([A0, A1, B0], Retriever()) == expected


def test_an_unknown_reset_strategy_is_refused():
    for make in (
        lambda: OffsetsInitializer.committed_offsets("newest"),
        lambda: OffsetsInitializer.specific_offsets({A0: 1}, reset="newest"),
    ):
        with pytest.raises(
            ConfigurationError, match=r"^invalid reset strategy 'newest'; use none, earliest or latest$"
        ):
            make()


@pytest.mark.parametrize("kind", ["starting_offsets", "stopping_offsets"])
def test_the_end_is_read_before_a_time_is_looked_up(kind):
    retriever = Retriever()
    found = getattr(OffsetsInitializer.timestamp(1234), kind)([A0, A1], retriever)
    assert found == {A0: 30, A1: 50}, "without a record at or after the time: the end"
    assert retriever.asked == ["end", "time 1234", *(["highest", "beginning"] if kind == "starting_offsets" else [])]


@pytest.mark.parametrize(
    ("highest", "start"),
    [
        (None, 50),
        (TimestampedOffset(40, 1233), 50),
        (TimestampedOffset(40, 1234), 5),
        # Behind the end that is read to: held back by an open transaction.
        (TimestampedOffset(50, 1234), 50),
    ],
)
def test_a_start_by_time_does_not_miss_an_existing_record(highest, start):
    found = OffsetsInitializer.timestamp(1234).starting_offsets([A0, A1], Retriever(highest))
    assert found == {A0: 30, A1: start}
    # A stop may be too late, but not too early: nothing is left out for good.
    assert OffsetsInitializer.timestamp(1234).stopping_offsets([A1], Retriever(highest)) == {A1: 50}


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,30}", fullmatch=True), st.integers(0, 10**6))
def test_a_topic_partition_prints_as_the_text_that_makes_it_again(topic, partition):
    topic_partition = TopicPartition(topic, partition)
    assert TopicPartition.parse(str(topic_partition)) == topic_partition


@pytest.mark.parametrize("text", ["", "flights", "-0", "flights-", "flights-x", "flights-²"])
def test_a_text_that_is_not_a_topic_partition_is_refused(text):
    with pytest.raises(ConfigurationError) as error:
        TopicPartition.parse(text)
    assert str(error.value) == f"invalid topic partition {text!r}; write topic-number, such as flights-0"


def test_a_split_is_half_open_and_never_runs_backwards():
    split = KafkaPartitionSplit(A0, 3, 7)
    assert (str(split), split.offset_span, split.is_empty) == ("a-0 [3, 7)", 4, False)
    assert KafkaPartitionSplit(A0, 3, 3).is_empty
    for start, stop in ((7, 3), (-1, 3)):
        with pytest.raises(ConfigurationError) as error:
            KafkaPartitionSplit(A0, start, stop)
        assert str(error.value) == f"a-0: invalid split from {start} to {stop}; expected 0 <= start <= stop"
