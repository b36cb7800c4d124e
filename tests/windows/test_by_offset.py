"""Tables of an earlier version with windows by offset: refused, until these are landed again as exact ones."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dagster_kafka_flip.errors import WindowsChangedError
from dagster_kafka_flip.source.window import Windows
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed
from tests.windows.conftest import HOUR, START, hours

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

RULES = Windows(max_lateness=timedelta(hours=3))


def test_a_table_with_windows_by_offset_is_refused_until_they_are_landed_again_in_another_one(
    kafka, rewrite, rows, spark, table, topic
):
    kafka.create(topic)
    for hour in (0.5, 1.5, 0.6, 2.5):
        kafka.produce(topic, [(None, str(hour))], timestamp=int(START + hour * HOUR))
    rewrite(hours(0, 3), rules=RULES)
    exact = rows()

    def land():
        # As an earlier version left the table.
        spark.sql(f"ALTER TABLE delta.`{table}` UNSET TBLPROPERTIES ('dagster-kafka-flip.windows.mode')")
        before = landed.version(table)
        try:
            rewrite(hours(1, 2), rules=RULES)
        except WindowsChangedError as error:
            assert landed.version(table) == before
            return str(error)
        raise AssertionError("the windows were landed")

    # Nothing tells these from exact ones under a name of the user's, so the user says what they are.
    message = land()
    told = f"the table {table} may have windows by offset of an earlier version, which are no longer"
    assert message.startswith(told)
    spark.sql(message[message.index("ALTER TABLE") :])
    rewrite(hours(1, 2), rules=RULES)
    # By offset. The late record is in the window that came next. Those of Dagster and Airflow have this definition.
    spark.sql(f"UPDATE delta.`{table}` SET kafka_window = 'h001' WHERE kafka_value = '0.6'")
    definition = '{"cron": "0 * * * *", "mode": "offset"}'
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('dagster-kafka-flip.windows' = '{definition}')")
    message = land()
    assert message.startswith(told)
    by_offset = rows()
    assert [(window, value) for window, _, _, value in by_offset] == [
        ("h000", "0.5"),
        ("h001", "1.5"),
        ("h001", "0.6"),
        ("h002", "2.5"),
    ]
    # What the message says: in another table, of those that Kafka still has. The others are told by their time.
    assert "Land its windows again as exact ones in another table: set `table` to a new one" in message
    other = DeltaTarget(table=f"{table}-exact", partition_by=("kafka_window",))
    rewrite(hours(0, 3), rules=RULES, target=other)
    assert landed.rows(other.table, "kafka_window", "kafka_partition", "kafka_offset", "kafka_value") == exact
    assert rows() == by_offset
    later = f"kafka_timestamp < to_timestamp_millis({START + HOUR})"
    assert landed.rows(table, "kafka_value", where=later) == [("0.5",), ("0.6",)]
