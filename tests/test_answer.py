"""A command's answer as text: the same names as in JSON, without what is not known."""

from __future__ import annotations

import json

from dagster_kafka_flip.cli.answer import answer

DOCUMENT = {
    "asset": "lake/a",
    "lag": 0,
    "rows": 12_345,
    "cluster_id": None,
    "start_overridden": False,
    "runs": [{"partitions": []}],
    "splits": [
        {"topic": "[b]", "partition": 0, "bytes": None, "undone": True},
        {"topic": "long_name", "partition": 11, "bytes": None, "undone": False},
    ],
    "notes": ["one", "two"],
    "error": None,
    "streams": [{"stream": "main", "error": {"type": "E", "message": "m"}, "commits": [{"version": 1}]}],
}


def test_text_has_what_is_known_and_json_has_all(capsys):
    answer(DOCUMENT)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "asset  lake/a",
        "lag    0",
        "rows   12,345",
        "splits",
        "  topic      partition  undone",
        "  [b]                0     yes",
        "  long_name         11",
        "notes  one, two",
        "streams",
        "  stream  main",
        "  error",
        "    type     E",
        "    message  m",
        "  commits",
        "    version",
        "    1",
        "",
    ]
    answer(DOCUMENT, as_json=True)
    assert json.loads(capsys.readouterr().out) == DOCUMENT


def test_long_tables_are_cut_and_their_rest_is_counted(capsys):
    offsets = {f"t-{number}": number for number in range(30)}
    answer({"splits": DOCUMENT["splits"], "offsets": offsets, "totals": {"a": 1, "b": 2}}, limit_rows=1)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "... and 1 more" in lines
    assert "t-19  19" in lines
    assert "... and 10 more" in lines
    assert lines[-2:] == ["a  1", "b  2"]
