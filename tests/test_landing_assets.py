"""Assets that would get in each other's way in one table are refused before a run reads anything."""

from __future__ import annotations

import pytest
from dagster import DailyPartitionsDefinition

from dagster_kafka_flip import DeltaTarget, KafkaSource, TopicPartition, Windows, build_kafka_delta_asset
from dagster_kafka_flip.assets.registry import by_table, check_streams, ingestions_of
from dagster_kafka_flip.errors import ConfigurationError

DAILY = DailyPartitionsDefinition("2013-03-01")


def asset(name, source, stream="main", **options):
    target = DeltaTarget(table="lake/t", stream=stream)
    return build_kafka_delta_asset(name=name, source=KafkaSource(**source), table=target, **options)


def check(one, other):
    tables = by_table({**ingestions_of(one), **ingestions_of(other)})
    check_streams(tables, tables)


A, B = {"topics": ("a",)}, {"topics": ("b",)}
PATTERN, ELSEWHERE = {"topic_pattern": "a|c"}, {"topic_pattern": "x.*"}
A0, A1 = ({"partitions": (TopicPartition("a", partition),)} for partition in (0, 1))


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({"source": A}, {"source": B}, r"both write to the stream 'main' of \S+lake/t"),
        ({"source": A}, {"source": B, "partitions_def": DAILY}, r"one as a stream and one by partitions"),
        *(
            (
                {"source": one, "partitions_def": DAILY},
                {"source": other, "partitions_def": DAILY},
                r"both write windows",
            )
            for one, other in ((A, A), (A, PATTERN), (PATTERN, ELSEWHERE), (A0, A0), (A, A0))
        ),
    ],
)
def test_two_assets_that_would_get_in_each_others_way_are_refused(one, other, message):
    with pytest.raises(ConfigurationError, match=rf"the assets (one and other|other and one) {message}|{message}"):
        check(asset("one", **one), asset("other", **other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"source": A}, {"source": B, "stream": "other"}),
        # Which streams share topics is found out in the table.
        ({"source": A, "partitions_def": DAILY}, {"source": A, "stream": "other", "partitions_def": DAILY}),
        ({"source": A, "partitions_def": DAILY}, {"source": B, "partitions_def": DAILY}),
        ({"source": B, "partitions_def": DAILY}, {"source": PATTERN, "partitions_def": DAILY}),
        ({"source": A0, "partitions_def": DAILY}, {"source": A1, "partitions_def": DAILY}),
        ({"source": A}, {"source": A, "partitions_def": DAILY, "windows": Windows(repair=True)}),
    ],
)
def test_others_are_not(one, other):
    check(asset("one", **one), asset("other", **other))
