"""Commands that messages name run as they are printed, once their placeholders are filled in."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.source.next_step import TOPIC, set_position


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"to": None},
        {"to": "earliest", "topics": ["a", "b"]},
        {"topics": TOPIC},
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
