"""A real MariaDB, a real Debezium: at each cut the table equals `SELECT *`, whatever happened in between."""

from __future__ import annotations

import json

import pytest

from dagster_kafka_flip.errors import TableTruncatedError
from dagster_kafka_flip.formats.debezium import DebeziumFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.mode import Upsert
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed
from tests.debezium.connect import Connect
from tests.debezium.mariadb import Mariadb
from tests.document_tests import ROOT, blocks
from tests.processes import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]

(SETTINGS,) = [
    json.loads(block.code)["config"]
    for block in blocks(ROOT / "docs" / "changelogs.md")
    if block.marker == "a connector of MariaDB"
]
PREFIX = SETTINGS["topic.prefix"]
DATABASE = SETTINGS["database.include.list"]

# Of each column its type in MariaDB, and as it is declared.
COLUMNS = {
    "region": ("VARCHAR(20)", "STRING"),
    "id": ("BIGINT UNSIGNED", "DECIMAL(20, 0)"),
    "name": ("VARCHAR(20)", "STRING"),
    "price": ("DECIMAL(10, 2)", "DECIMAL(10, 2)"),
    "small": ("TINYINT", "TINYINT"),
    "is_new": ("BOOLEAN", "TINYINT"),
    "count_of": ("INT UNSIGNED", "BIGINT"),
    "ratio": ("DOUBLE", "DOUBLE"),
    "at": ("DATETIME(6)", "TIMESTAMP"),
    "seen": ("TIMESTAMP(6) NULL", "TIMESTAMP"),
    "day": ("DATE", "STRING"),
    "clock": ("TIME(6)", "STRING"),
    "made": ("YEAR", "INT"),
    "kind": ("ENUM('a', 'b')", "STRING"),
    "tags": ("SET('x', 'y')", "STRING"),
    "data": ("BLOB", "STRING"),
    "flag": ("BIT(1)", "BOOLEAN"),
    "doc": ("JSON", "STRING"),
    "bio": ("TEXT", "STRING"),
}
FULL = (
    "'ö', 18446744073709551615, '\"', 99999999.99, -128, TRUE, 4294967295, 0.1, '2026-11-24 10:11:12.123456', "
    "'1999-12-31 10:11:12.5', '0999-02-28', '23:59:59.5', 1999, 'b', 'x,y', x'00ff', b'1', '{\"k\": [1, null]}', ''"
)


@pytest.fixture(scope="module")
def database():
    """A database with a table that has rows before the connector starts."""
    with Mariadb(DATABASE) as mariadb:
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
        mariadb.run(
            f"CREATE TABLE customers ({columns}, PRIMARY KEY (region, id))",
            f"INSERT INTO customers VALUES ({FULL})",
            "INSERT INTO customers (region, id, name, bio) SELECT 'n', seq, seq, repeat(seq, 3000) FROM seq_1_to_8",
        )
        yield mariadb


@pytest.fixture(scope="module")
def connect(broker, database, tmp_path_factory):
    """Kafka Connect with the documented connector."""
    settings = {**SETTINGS, "schema.history.internal.kafka.bootstrap.servers": broker}
    with Connect(tmp_path_factory.mktemp("connect"), broker, database, settings) as worker:
        yield worker


@pytest.fixture
def follow(connection, spark_of, table):
    """A run that lands the changes of the table `customers`."""

    def run(more="", **options):
        row = ", ".join(f"{name} {kind}" for name, (_, kind) in COLUMNS.items())
        return ingest(
            KafkaSource(topics=(f"{PREFIX}.{DATABASE}.customers",)),
            DeltaTarget(table=table, mode=Upsert(key=("region", "id")), schema_evolution=bool(more)),
            spark=spark_of,
            connection=connection,
            value_format=DebeziumFormat(schema=row + more),
            **options,
        )

    return run


def in_database(database, *more):
    """The rows of the database's table, as the Delta table has them."""
    texts = {
        "id": "CAST(id AS CHAR)",
        "price": "CAST(price AS CHAR)",
        "at": "date_format(at, '%Y-%m-%dT%H:%i:%s.%f')",
        "seen": "date_format(seen, '%Y-%m-%dT%H:%i:%s.%f')",
        "day": "concat(day, 'Z')",
        "clock": "concat(trim(TRAILING '0' FROM clock), 'Z')",
        "data": "to_base64(data)",
        "flag": "CAST(flag AS INT)",
        "doc": "CAST(doc AS CHAR)",
    }
    return database.rows(", ".join(texts.get(name, name) for name in [*COLUMNS, *more]), "customers")


def in_table(table, *more):
    """The rows of the Delta table."""
    texts = {
        "id": "CAST(id AS VARCHAR)",
        "price": "CAST(price AS VARCHAR)",
        "at": "to_char(at, '%Y-%m-%dT%H:%M:%S.%6f')",
        "seen": "to_char(seen, '%Y-%m-%dT%H:%M:%S.%6f')",
        "flag": "CAST(flag AS INT)",
    }
    return landed.rows(table, *(texts.get(name, name) for name in [*COLUMNS, *more]))


def test_the_table_equals_the_database_whatever_happens(database, connect, follow, table):
    connect.catch_up()
    follow()
    assert in_table(table) == in_database(database)
    assert landed.count(table) == 9

    database.run(
        "UPDATE customers SET price = id / 3, bio = 'new' WHERE id = 1",
        "UPDATE customers SET name = NULL, is_new = FALSE, flag = b'0' WHERE region = 'ö'",
        "DELETE FROM customers WHERE id IN (2, 3)",
        "INSERT INTO customers (region, id, name) VALUES ('n', 2, 'again'), ('s', 1, 'new'), ('s', 2, 'new')",
        # A changed key, one that moves on, and two rows that change places.
        "UPDATE customers SET id = 18446744073709551614 WHERE region = 'ö'",
        "UPDATE customers SET id = 11 WHERE region = 'n' AND id = 4",
        "UPDATE customers SET region = 'w', name = 'moved' WHERE region = 'n' AND id = 11",
        "BEGIN; UPDATE customers SET id = 99 WHERE region = 'n' AND id = 5; "
        "UPDATE customers SET id = 5 WHERE region = 'n' AND id = 6; "
        "UPDATE customers SET id = 6 WHERE region = 'n' AND id = 99; COMMIT",
        "BEGIN; UPDATE customers SET name = 'never'; DELETE FROM customers; ROLLBACK",
        "BEGIN; UPDATE customers SET name = 'kept' WHERE id = 7; SAVEPOINT a; DELETE FROM customers; ROLLBACK TO a",
        "COMMIT",
        "INSERT INTO customers (region, id) VALUES ('s', 1) ON DUPLICATE KEY UPDATE name = 'twice'",
        "REPLACE INTO customers (region, id, name) VALUES ('s', 2, 'replaced'), ('s', 3, 'replaced')",
        "FLUSH BINARY LOGS",
        "DELETE FROM customers WHERE region = 's' AND id = 3",
    )
    connect.catch_up()
    follow(limits=Limits(max_records_per_batch=15))
    assert in_table(table) == in_database(database)
    assert landed.operations(table)[-2:] == ["MERGE", "MERGE"]

    # While Connect is dead.
    connect.kill()
    database.run(
        "UPDATE customers SET name = 'unseen' WHERE region = 'n'",
        "ALTER TABLE customers ADD COLUMN more INT DEFAULT 7",
        "INSERT INTO customers (region, id, more) VALUES ('e', 1, 8)",
        # What was there before has the default, of which no event tells.
        "UPDATE customers SET name = 'seen' WHERE region <> 'e'",
        "DELETE FROM customers WHERE region = 'n' AND id < 6",
    )
    connect.start()
    connect.catch_up()
    follow(more=", more INT")
    assert in_table(table, "more") == in_database(database, "more")
    assert {7, 8} == set(landed.values(table, "more"))

    database.run("TRUNCATE customers")
    connect.catch_up()
    before = landed.version(table)
    with pytest.raises(TableTruncatedError, match=rf"{PREFIX}\.{DATABASE}\.customers-0"):
        follow(more=", more INT")
    assert landed.version(table) == before


def test_a_value_without_an_encoding_stops_the_connector(database, connect):
    """By default it would be told as null: a TIME can be longer than a day."""
    database.run("INSERT INTO customers (region, id, clock) VALUES ('x', 1, '25:00:00')")
    wait_until(lambda: connect.state() == "FAILED", seconds=120)
