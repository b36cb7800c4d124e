"""Tables of an earlier version with windows by offset: refused, until these are landed again as exact ones."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from dagster_kafka_flip.errors import WindowsChangedError
from dagster_kafka_flip.source.window import Windows
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed
from tests.windows.conftest import HOUR, START, hours
from tests.windows.test_rows_that_stay import forget

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

RULES = Windows(max_lateness=timedelta(hours=3))


def test_a_table_with_windows_by_offset_is_refused_until_they_are_landed_again_in_another_one(
    kafka, rewrite, rows, spark, table, topic
):
    from pyspark.sql import functions as f

    kafka.create(topic)
    for hour in (0.5, 1.5, 0.6, 2.5):
        kafka.produce(topic, [(None, str(hour))], timestamp=int(START + hour * HOUR))
    rewrite(hours(0, 3), rules=RULES)
    exact = rows()
    document = json.loads(landed.history(table)[0]["userMetadata"])

    def land():
        # As an earlier version left the table.
        spark.sql(f"ALTER TABLE delta.`{table}` UNSET TBLPROPERTIES ('dagster-kafka-flip.windows.mode')")
        before = landed.version(table)
        try:
            rewrite(hours(1, 2), rules=RULES)
        except WindowsChangedError as error:
            assert landed.version(table) == before
            return str(error)
        return None

    def write_again(**options):
        writer = spark.table(f"delta.`{table}`").where("kafka_window = 'h001'").writeTo(f"delta.`{table}`")
        writer.options(**options).overwrite(f.expr("kafka_window = 'h001'"))

    # Exact ones under a name of the user's: known by their commits, and once these have expired by what the user says.
    assert land() is None
    forget(spark, table)
    message = land()
    assert message is not None
    assert message.startswith(
        f"the table {table} may have windows by offset, which are no longer supported: its history"
    )
    spark.sql(message[message.index("ALTER TABLE") :])
    rewrite(hours(1, 2), rules=RULES)
    assert land() is None
    # By offset. The late record is in the window that came next.
    spark.sql(f"UPDATE delta.`{table}` SET kafka_window = 'h001' WHERE kafka_value = '0.6'")
    bounds = [{topic: [offset]} for offset in (1, 3)]
    write_again(userMetadata=json.dumps({**document, "mode": "offset", "bounds": bounds}))
    told = f"the table {table} has windows by offset, which are no longer supported. Nothing was written"
    assert str(land()).startswith(told)
    # Those of Dagster and Airflow are known by their definition, and all by a transaction, which no commit outlives.
    write_again(userMetadata=json.dumps(document), txnAppId="dagster-kafka-flip/main/windows", txnVersion="5")
    assert str(land()).startswith(told)
    for definition in ("hours", '{"cron": "0 * * * *", "mode": "offset"}'):
        forget(spark, table)
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('dagster-kafka-flip.windows' = '{definition}')")
        message = land()
        assert str(message).startswith(told)
    by_offset = rows()
    assert [(window, value) for window, _, _, value in by_offset] == [
        ("h000", "0.5"),
        ("h001", "1.5"),
        ("h001", "0.6"),
        ("h002", "2.5"),
    ]
    # What the message says: in another table, of those that Kafka still has. The others are told by their time.
    assert "Land its windows again as exact ones in another table: set `table` to a new one" in str(message)
    other = DeltaTarget(table=f"{table}-exact", partition_by=("kafka_window",))
    rewrite(hours(0, 3), rules=RULES, target=other)
    assert landed.rows(other.table, "kafka_window", "kafka_partition", "kafka_offset", "kafka_value") == exact
    assert rows() == by_offset
    later = f"kafka_timestamp < to_timestamp_millis({START + HOUR})"
    assert landed.rows(table, "kafka_value", where=later) == [("0.5",), ("0.6",)]
