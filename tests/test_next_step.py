"""The commands that messages name, and the refusal of a new stream that would leave records out."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import click
import pytest
from dagster._cli.asset import asset_materialize_command

from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.errors import PositionLostError
from dagster_kafka_flip.ingestion.stream_plan import check_nothing_is_skipped
from dagster_kafka_flip.source.next_step import TOPIC, materialize, plan_range, set_position
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.target import DeltaTarget
from tests.source.plans import make_plan


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"to": None},
        {"to": "earliest", "topics": ["a", "b"]},
        {"topics": TOPIC},
        {"servers": "127.0.0.1:1"},
        {"table": "/lake/our flights", "stream": "it's", "to": 'offsets:{"t": {"0": 0}}'},
    ],
)
def test_the_command_has_all_that_the_command_line_requires(options):
    command = set_position(**options)
    filled = command.replace("<host:port>", "127.0.0.1:1").replace("<table>", "/nowhere").replace("<stream>", "main")
    words = shlex.split(re.sub(r"<[^>]*>", "latest", filled))
    assert words[:3] == ["dagster-kafka-flip", "position", "set"]
    # Parses, and does not run it.
    group = main.commands["position"]
    assert isinstance(group, click.Group)
    context = group.commands["set"].make_context("set", words[3:])
    assert context.params["bootstrap_servers"] == "127.0.0.1:1"
    assert context.params["reason"] == "latest"
    assert context.params["stream"] == options.get("stream", "main")


@pytest.mark.parametrize(
    ("asset", "defined_in", "parameter"),
    [("lake/flights", ("-f", __file__), "python_file"), ("our flights", ("-m", "project.defs"), "module_name")],
)
def test_a_command_for_an_asset_says_which_one_and_where_it_is_defined(asset, defined_in, parameter):
    own = defined_in if parameter == "python_file" else ()
    words = shlex.split(plan_range(asset, own).replace("<time>", "2026-01-31T00:00:00Z"))
    assert words[:2] == ["dagster-kafka-flip", "plan"]
    context = main.commands["plan"].make_context("plan", words[2:])
    assert context.params["asset"] == asset
    assert context.params["python_file"] == (Path(__file__) if own else None)

    words = shlex.split(materialize(asset, defined_in, partitions=["2026-01-31|eu"]))
    assert words[:3] == ["dagster", "asset", "materialize"]
    context = asset_materialize_command.make_context("materialize", words[3:])
    assert (context.params["select"], context.params["partition"]) == (asset, "2026-01-31|eu")
    assert defined_in[1] in str(context.params[parameter])


_LATEST = OffsetsInitializer.latest()
_IDLE = TopicPartition("t", 99)


def _check(recorded, ranges, *, ids="id", beginning=0):
    plan = make_plan(ranges)
    plan = replace(plan, beginning_offsets=dict.fromkeys(plan.end_offsets, beginning))
    position = {TopicPartition("t", number): offset for number, offset in recorded.items()} | {_IDLE: 5}
    state = EnumeratorState(position=position, cluster_id="c", topic_ids={"t": ids})
    check_nothing_is_skipped(state, plan, _LATEST, DeltaTarget(table="s3a://lake/t"))


def test_a_new_stream_that_would_leave_records_out_is_refused_with_both_ways_on():
    with pytest.raises(PositionLostError) as error:
        _check({0: 20, 1: 7}, {0: (30, 30), 1: (7, 9)})
    assert str(error.value) == (
        "s3a://lake/t holds no position of the stream 'main', but the record of its last run had one: the table was "
        "dropped or recreated. A new stream starts at latest and would skip up to 10 records that were never written: "
        "t-0 [20, 30). To write them first, run once with start set to "
        'offsets:{"t": {"0": 20, "1": 7, "99": 5}} (in Airflow, set the source\'s starting_offsets to it); to continue '
        "without them, run once with start set to latest (in Airflow, set another stream id); or "
        "restore the table, or correct its name"
    )


def test_a_partition_that_has_come_since_is_read_from_its_beginning():
    with pytest.raises(PositionLostError, match=r"up to 4 records that were never written: t-1 \[0, 4\)"):
        _check({0: 20}, {0: (20, 20), 1: (4, 4)})


def test_only_a_few_of_many_partitions_are_shown():
    with pytest.raises(PositionLostError, match=r"t-4 \[0, 9\) and 2 more\. To write"):
        _check({}, dict.fromkeys(range(7), (9, 9)))


@pytest.mark.parametrize(
    ("recorded", "ranges", "about"),
    [
        ({0: 20}, {0: (20, 30)}, {}),
        ({0: 20}, {0: (0, 30)}, {}),
        # Retention has deleted it, and where a stream begins changes nothing about that.
        ({0: 20}, {0: (25, 30)}, {"beginning": 25}),
        # Offsets of another topic of that name.
        ({0: 20}, {0: (25, 30)}, {"ids": "another"}),
        # The log was cut off.
        ({0: 50}, {0: (30, 30)}, {}),
    ],
)
def test_where_nothing_is_left_out_the_stream_begins(recorded, ranges, about):
    _check(recorded, ranges, **about)
