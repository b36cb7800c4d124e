"""A stream into a table that follows its keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.table.mode import Upsert
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.target import DeltaTarget

KEY = JsonFormat(schema="id BIGINT")
VALUE = JsonFormat(schema="id BIGINT, name STRING")


def change(number, name=None):
    """A record: the key's row has this name from now on, or is gone."""
    value = None if name is None else json.dumps({"id": number, "name": name})
    return json.dumps({"id": number}), value


@pytest.fixture
def follow(connection, spark_of, topic, table):
    """A run of the stream; `target` are settings of its target."""

    def run(*, source=None, target=None, **options):
        settings: dict[str, Any] = {"table": table, "mode": Upsert(key=("id",)), **(target or {})}
        formats: dict[str, Any] = {"key_format": KEY, "value_format": VALUE, **options}
        return ingest(
            source or KafkaSource(topics=(topic,)),
            DeltaTarget(**settings),
            spark=spark_of,
            connection=connection,
            **formats,
        )

    return run


@pytest.fixture
def around_the_merge(monkeypatch):
    """Does something before or after the next merge."""

    def install(before=lambda: None, after=lambda: None):
        original = TableWriter._merge

        def merge(self, *arguments):
            monkeypatch.setattr(TableWriter, "_merge", original)
            before()
            original(self, *arguments)
            after()

        monkeypatch.setattr(TableWriter, "_merge", merge)

    return install
