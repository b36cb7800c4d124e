"""One database, and one Kafka Connect that writes its changes to the session's broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.debezium.connect import Connect
from tests.debezium.postgres import Postgres
from tests.document_tests import ROOT, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

A_CONNECTOR = [block for block in blocks(ROOT / "docs" / "changelogs.md") if block.marker == "a connector"]
(SETTINGS,) = [json.loads(block.code)["config"] for block in A_CONNECTOR if block.language == "json"]
(WHOLE_ROWS,) = [block.code for block in A_CONNECTOR if block.language == "sql"]
PREFIX = SETTINGS["topic.prefix"]

# Texts of 2 kB and more leave their row, and Debezium is not told of those that did not change.
COLUMNS = "region TEXT, id BIGINT, name TEXT, price NUMERIC(10, 2), bio TEXT, PRIMARY KEY (region, id)"

TYPES = (
    "id SMALLINT PRIMARY KEY, i INTEGER, b BIGINT, n NUMERIC(10, 2), r REAL, d DOUBLE PRECISION, o BOOLEAN, t TEXT, "
    "v VARCHAR(9), u UUID, ts TIMESTAMP, tz TIMESTAMPTZ, day DATE, bin BYTEA, j JSONB, a INTEGER[]"
)
VALUES = (
    "-1, 2147483647, -9223372036854775808, 99999999.99, 0.1, 0.1, true, 'ß\"', '', "
    "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '2026-11-24 10:11:12.123456', '1969-12-31 10:11:12.5+02', '0999-02-28', "
    "'\\x00ff', '{\"k\": [1, null]}', '{1,NULL,3}'"
)


def make_tables(database: Postgres, schema: str) -> None:
    """Two tables of the same columns, with their name in the key. By FULL, PostgreSQL logs all of an old row."""
    database.run(f"CREATE SCHEMA {schema}")
    for table in ("lean", "complete"):
        database.run(
            f"CREATE TABLE {schema}.{table} ({COLUMNS})",
            f"ALTER TABLE {schema}.{table} ALTER COLUMN bio SET STORAGE EXTERNAL",
        )
    database.run(WHOLE_ROWS.replace("customers", f"{schema}.complete"))


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    """A database with the tables of the schema `before`, which have rows before the connector starts."""
    with Postgres() as postgres:
        postgres.run("CREATE TABLE markers (id BIGSERIAL PRIMARY KEY)")
        make_tables(postgres, "before")
        for table in ("lean", "complete"):
            postgres.run(
                f"INSERT INTO before.{table} SELECT '{table}', n, 'name ' || n, n / 4.0, repeat(n::text, 3000) "
                "FROM generate_series(1, 8) n"
            )
        postgres.run(f"CREATE TABLE before.types ({TYPES})", f"INSERT INTO before.types VALUES ({VALUES})")
        yield postgres


@pytest.fixture(scope="module")
def connect(broker: str, database: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    """Kafka Connect with the documented connector; each table has a topic `shop.<schema>.<table>`."""
    with Connect(tmp_path_factory.mktemp("connect"), broker, database, SETTINGS) as worker:
        yield worker
