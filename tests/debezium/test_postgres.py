"""A real PostgreSQL, a real Debezium: at each cut the table equals `SELECT *`, whatever happened in between."""

from __future__ import annotations

import json
import random
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from dagster_kafka_flip.errors import TableTruncatedError
from dagster_kafka_flip.formats.debezium import PLACEHOLDER, DebeziumFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.mode import Scd2, Upsert
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed
from tests.debezium.conftest import PREFIX, make_tables
from tests.kafka_topic import QUIET
from tests.processes import wait_until
from tests.upsert.test_fold import history, with_deletes

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]

TABLES = ("lean", "complete")
ROW = "region STRING, id BIGINT, name STRING, price DECIMAL(10, 2), bio STRING"
LONG = 3000
KEY = ("region", "id")
CURRENT = Upsert(key=KEY)


@pytest.fixture
def follow(connection, spark_of, table):
    """A run that lands the changes of a schema's tables, which have the same columns and other keys, in one table."""

    def run(schema, tables=TABLES, row=ROW, path=table, mode=CURRENT, **options):
        return ingest(
            KafkaSource(topics=tuple(f"{PREFIX}.{schema}.{name}" for name in tables)),
            DeltaTarget(table=path, mode=mode, schema_evolution=row != ROW),
            spark=spark_of,
            connection=connection,
            value_format=DebeziumFormat(schema=row),
            **options,
        )

    return run


def in_database(database, schema, *more):
    """The rows of a schema's tables, as the Delta table has them; of long texts their beginning and their length."""
    columns = ", ".join(["region", "id", "name", "price::text", "left(bio, 9) || length(bio)", *more])
    return sorted(
        tuple(row.values()) for name in TABLES for row in database.rows(f"SELECT {columns} FROM {schema}.{name}")
    )


def in_table(table, *more):
    """The rows of the Delta table."""
    bio = "left(bio, 9) || length(bio)"
    return landed.rows(table, "region", "id", "name", "CAST(price AS VARCHAR)", bio, *more)


def in_both(database, schema, *statements):
    """Runs statements on each of a schema's tables."""
    database.run(*(each.format(table=f"{schema}.{name}", name=name) for name in TABLES for each in statements))


def reported(broker, topic, columns):
    """The changes in a topic, for a plain loop: key, values (None of a delete), and time."""
    changes: list[tuple[Any, Any, int]] = []
    known: dict[Any, Any] = {}
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "fold", "enable.partition.eof": True, **QUIET})
    consumer.assign([TopicPartition(topic, 0, 0)])
    while (message := consumer.poll(60)) is not None and message.error() is None:
        key = _key(message.key())
        value = message.value()
        event: dict[str, Any] = {"op": "d"} if value is None else json.loads(value)
        values = None
        if event["op"] != "d":
            headers: dict[str, Any] = dict(message.headers() or ())  # pyright: ignore[reportArgumentType]
            before: Any = known.get(_key(headers.get("__debezium.oldkey") or message.key()))
            values = tuple(
                before[number] if event["after"].get(name) == PLACEHOLDER else event["after"].get(name)
                for number, name in enumerate(columns)
            )
            known[key] = values
        changes.append((key, values, message.timestamp()[1]))
    consumer.close()
    return changes


def _key(text: Any):
    return tuple(json.loads(text)[name] for name in KEY)


def _milliseconds(time):
    return time and round(time.timestamp() * 1000)


def check_modes(broker, schema, soft, scd2, *more):
    """Whether a table with deleted rows and one with all rows equal a loop over the topics."""
    columns = ("name", "price", "bio", *more)
    texts = ("name", "CAST(price AS VARCHAR)", "bio", *more)
    changes = [each for name in TABLES for each in reported(broker, f"{PREFIX}.{schema}.{name}", columns)]
    rows = landed.rows(soft, *KEY, *texts, "kafka_deleted")
    assert [((region, number), tuple(values), gone) for region, number, *values, gone in rows] == with_deletes(
        (key, values) for key, values, _ in changes
    )
    rows = landed.rows(scd2, *KEY, "kafka_offset", *texts, "valid_from", "valid_to", "is_current")
    assert all(is_current == (until is None) for *_, until, is_current in rows)
    found = [
        [(region, number), tuple(values), _milliseconds(since), _milliseconds(until) or ""]
        for region, number, _, *values, since, until, _ in rows
    ]
    assert sorted(tuple(map(str, row)) for row in found) == history(changes)


def test_the_table_equals_the_database_from_the_snapshot_on(database, connect, follow, table):
    connect.catch_up()
    follow("before")
    assert in_table(table) == in_database(database, "before")
    assert landed.count(table) == 16
    in_both(database, "before", "UPDATE {table} SET name = 'new' WHERE id < 3", "DELETE FROM {table} WHERE id > 6")
    connect.catch_up()
    follow("before")
    assert in_table(table) == in_database(database, "before")
    assert landed.count(table) == 12


def test_a_row_of_every_documented_type_lands_as_it_is(database, connect, connection, spark_of, table):
    from pyspark.sql import functions as f

    def converted(changes):
        return changes.withColumns({"day": f.to_date(f.left("day", f.lit(10))), "bin": f.unbase64("bin")})

    connect.catch_up()
    row = (
        "id SMALLINT, i INT, b BIGINT, n DECIMAL(10, 2), r FLOAT, d DOUBLE, o BOOLEAN, t STRING, v STRING, u STRING, "
        "ts TIMESTAMP, tz TIMESTAMP, day STRING, bin STRING, j STRING, a ARRAY<INT>"
    )
    ingest(
        KafkaSource(topics=(f"{PREFIX}.before.types",)),
        DeltaTarget(table=table, mode=Upsert(key=("id",))),
        spark=spark_of,
        connection=connection,
        value_format=DebeziumFormat(schema=row),
        transform=converted,
    )
    (reported,) = landed.rows(
        table, *(name.split()[0] for name in row.split(", ")[:3]), "n", "o", "t", "v", "u", "j", "a"
    )
    assert reported[:4] == (-1, 2147483647, -9223372036854775808, Decimal("99999999.99"))
    assert reported[4:] == (True, 'ß"', "", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", '{"k": [1, null]}', [1, None, 3])
    (reported,) = landed.rows(table, "r = CAST(0.1 AS FLOAT)", "d = 0.1", "ts", "tz", "day", "bin")
    moments = (
        datetime(2026, 11, 24, 10, 11, 12, 123456, tzinfo=timezone.utc),
        datetime(1969, 12, 31, 8, 11, 12, 500000, tzinfo=timezone.utc),
    )
    assert reported == (True, True, *moments, date(999, 2, 28), b"\x00\xff")


def test_every_kind_of_change_is_correct_in_each_mode_and_any_batches(database, connect, follow, table, broker):
    modes = {f"{table}-soft": Upsert(key=KEY, soft_delete=True), f"{table}-history": Scd2(key=KEY)}
    make_tables(database, "kinds")
    bio = f"repeat('b', {LONG})"
    in_both(
        database,
        "kinds",
        f"INSERT INTO {{table}} SELECT '{{name}}', n, n, n / 4.0, repeat(n::text, {LONG}) FROM generate_series(1, 8) n",
        "UPDATE {table} SET name = 'without its biography' WHERE id = 1",
        f"UPDATE {{table}} SET bio = {bio} WHERE id = 2",
        "UPDATE {table} SET price = NULL, name = '' WHERE id = 3",
        "DELETE FROM {table} WHERE id IN (4, 5)",
        "INSERT INTO {table} (region, id, name) VALUES ('{name}', 4, 'again')",
        "BEGIN; UPDATE {table} SET name = 'never', bio = 'never'; DELETE FROM {table}; ROLLBACK",
        "BEGIN; INSERT INTO {table} VALUES ('{name}', 9, 'kept'); SAVEPOINT a; DELETE FROM {table}; ROLLBACK TO a; "
        "UPDATE {table} SET price = 9 WHERE id = 9; COMMIT",
    )
    connect.catch_up()
    follow("kinds", limits=Limits(max_records_per_batch=20))
    assert landed.operations(table)[-2:] == ["MERGE", "MERGE"]
    assert in_table(table) == in_database(database, "kinds")
    for path, mode in modes.items():
        follow("kinds", path=path, mode=mode, limits=Limits(max_records_per_batch=20))
    check_modes(broker, "kinds", *modes)

    # Changed keys, one after the other and to each other's. Their values must be new, or nothing has them.
    in_both(
        database,
        "kinds",
        "UPDATE {table} SET id = 11, bio = bio || '' WHERE id = 1",
        "UPDATE {table} SET name = 'under its new key' WHERE id = 11",
        "UPDATE {table} SET region = region || ' south', bio = bio || '' WHERE id = 2",
        "BEGIN; UPDATE {table} SET id = 99, bio = bio || '' WHERE id = 6; "
        "UPDATE {table} SET id = 6, bio = bio || '' WHERE id = 7; "
        "UPDATE {table} SET id = 7, bio = bio || '' WHERE id = 99; COMMIT",
        "UPDATE {table} SET id = id + 100, bio = bio || '' WHERE id = 8",
        "DELETE FROM {table} WHERE id = 108",
    )
    # What is committed last is told last, although it was changed first.
    with database.session() as one, database.session() as other:
        for name in TABLES:
            one.run(f"BEGIN; INSERT INTO kinds.{name} VALUES ('{name}', 21, 'one'), ('{name}', 22, 'one')")
            other.run(f"BEGIN; UPDATE kinds.{name} SET name = 'other' WHERE id = 3")
            other.run(f"INSERT INTO kinds.{name} VALUES ('{name}', 23, 'other'); COMMIT")
            one.run(f"UPDATE kinds.{name} SET name = name || ' then one' WHERE id IN (3, 23); COMMIT")
    connect.catch_up()
    follow("kinds")
    assert in_table(table) == in_database(database, "kinds")

    in_both(
        database,
        "kinds",
        "ALTER TABLE {table} ADD COLUMN more INT",
        "INSERT INTO {table} (region, id, more) VALUES ('{name} west', 1, 5)",
        "UPDATE {table} SET more = 6 WHERE id = 11",
    )
    connect.catch_up()
    follow("kinds", row=f"{ROW}, more INT")
    assert in_table(table, "more") == in_database(database, "kinds", "more")
    for path, mode in modes.items():
        follow("kinds", row=f"{ROW}, more INT", path=path, mode=mode)
    check_modes(broker, "kinds", *modes, "more")


def _statements(schema, name, number, other, text):
    """What a transaction may do next with a row, or with itself."""
    table, values = f"{schema}.{name}", f"('{name}', {number}, 'new', {number}, repeat('{text}', 300))"
    return (
        f"INSERT INTO {table} VALUES {values} ON CONFLICT (region, id) DO UPDATE SET bio = excluded.bio",
        f"UPDATE {table} SET name = '{text}' WHERE id = {number}",
        (
            f"UPDATE {table} SET id = {other}, bio = bio || '' "
            f"WHERE id = {number} AND NOT EXISTS (SELECT FROM {table} WHERE id = {other})"
        ),
        f"DELETE FROM {table} WHERE id = {number}",
        "COMMIT; BEGIN",
        "ROLLBACK; BEGIN",
    )


def test_transactions_at_the_same_time_come_out_right(database, connect, follow, table):
    make_tables(database, "busy")
    chance = random.Random(19)
    for _ in range(3):
        with database.session() as one, database.session() as two, database.session() as three:
            # Each has rows of its own in a round: nobody waits for another one's.
            sessions = list(zip((one, two, three), chance.sample(range(3), 3), strict=True))
            for session, _ in sessions:
                session.run("BEGIN")
            for _ in range(60):
                session, rest = chance.choice(sessions)
                name = chance.choice(TABLES)
                number, other = (3 * chance.randrange(5) + rest for _ in range(2))
                session.run(chance.choice(_statements("busy", name, number, other, chance.random())))
            for session, _ in sessions:
                session.run("COMMIT")
        connect.catch_up()
        follow("busy")
        assert in_table(table) == in_database(database, "busy")
    assert landed.count(table) > 5


def test_a_truncate_stops_the_run(database, connect, follow, table):
    make_tables(database, "emptied")
    in_both(database, "emptied", "INSERT INTO {table} VALUES ('{name}', 1)", "TRUNCATE {table}")
    connect.catch_up()
    with pytest.raises(TableTruncatedError, match=rf"{PREFIX}\.emptied\.(lean|complete)-0"):
        follow("emptied")
    assert landed.count(table) == 0


def test_changes_that_a_killed_connect_sends_again_end_in_the_same_rows(database, connect, follow, table, kafka):
    for schema in ("killed", "moved"):
        make_tables(database, schema)
        in_both(database, schema, f"INSERT INTO {{table}} VALUES ('{{name}}', 1, 'v0', 0, repeat('b', {LONG}))")
    connect.catch_up()
    connect.kill()
    # From here on it does not note how far it has got.
    connect.flush_ms = 3_600_000
    connect.start()
    in_both(
        database,
        "killed",
        "INSERT INTO {table} VALUES ('{name}', 2, 'v1')",
        "UPDATE {table} SET name = 'v1' WHERE id = 1",
        "UPDATE {table} SET name = 'v2' WHERE id = 1",
        "UPDATE {table} SET id = 3 WHERE id = 2",
        "DELETE FROM {table} WHERE id = 3",
        "UPDATE {table} SET name = 'v3' WHERE id = 1",
    )
    in_both(database, "moved", "UPDATE {table} SET name = 'v1'", "UPDATE {table} SET id = 2, bio = bio || ''")
    # A changed key is a delete, a tombstone and an insert; a delete has a tombstone too.
    reported = {"killed": 1 + 1 + 2 + 3 + 2 + 1, "moved": 1 + 1 + 3}
    ends = {f"{PREFIX}.{schema}.{name}": end for schema, end in reported.items() for name in TABLES}
    wait_until(lambda: all(kafka.end_offset(topic) == end for topic, end in ends.items()), seconds=300)
    connect.kill()
    follow("killed")
    assert in_table(table) == in_database(database, "killed")
    before = landed.version(table)
    for name in TABLES:
        follow("moved", (name,), path=f"{table}-{name}")

    connect.flush_ms = 100
    connect.start()
    connect.catch_up()
    assert {topic: kafka.end_offset(topic) for topic in ends} == {topic: 2 * end - 1 for topic, end in ends.items()}
    follow("killed", limits=Limits(max_records_per_batch=4))
    assert in_table(table) == in_database(database, "killed")
    # An old state is there for a while: it has a higher offset.
    versions = range(before, landed.version(table) + 1)
    names = [{name for (name,) in landed.rows(table, "name", version=version)} for version in versions]
    assert names[0] == names[-1] == {"v3"}
    assert "v1" in names[1]

    # A repeated update of a row that has another key by now, and is deleted in the same batch.
    for name in TABLES:
        follow("moved", (name,), path=f"{table}-{name}")
        assert in_table(f"{table}-{name}") == [row for row in in_database(database, "moved") if row[0] == name]
