"""Commands that messages name run as they are printed, once their placeholders are filled in."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from dagster._cli.asset import asset_materialize_command

from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.source.next_step import TOPIC, materialize, plan_range, set_position


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
