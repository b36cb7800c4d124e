"""Values that a connector left out because they did not change: the row keeps them, or the run stops."""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.errors import ConfigurationError, UnavailableValueError
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.mode import Scd2, Upsert
from tests import landed
from tests.upsert.conftest import change

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

VALUE = JsonFormat(
    schema="id BIGINT, name STRING, bio STRING, tags MAP<STRING, INT>, left_out ARRAY<STRING>, before STRUCT<id: INT>"
)


def reported(records):
    """As a format of change events tells it. Further columns have names that mean something inside."""
    from pyspark.sql import functions as f

    further = {name: f.lit(name) for name in ("at", "state", "row", "asked", "ended", "key", "offset")}
    named = {"left_out": "kafka_unavailable", "before": "kafka_previous_key"}
    return records.withColumnsRenamed(named).withColumns(further)


OPTIONS = {"value_format": VALUE, "transform": reported}


def row(number, name, bio=None, *, before=None, **values):
    """A change with all values; without a biography it is left out, as are the tags."""
    given_values = {"bio": bio, "tags": {bio: 1}} if bio is not None else {"left_out": ["bio", "TAGS"]}
    previous = {} if before is None else {"before": {"id": before}}
    value = {"id": number, "name": name, **given_values, **previous, **values}
    return json.dumps({"id": number}), json.dumps(value)


def renamed(old, new, name):
    """A changed key, as Debezium tells it: a delete, a tombstone, and an insert that lacks what did not change."""
    return [change(old), change(old), row(new, name, before=old)]


def landed_rows(table):
    return landed.rows(table, "id", "name", "bio", "tags")


def expected(*rows):
    return [(number, name, bio, None if bio is None else [(bio, 1)]) for number, name, bio in rows]


def test_a_value_that_was_left_out_is_the_one_of_the_nearest_earlier_change_or_of_the_table(
    kafka, follow, topic, table
):
    kafka.create(topic)
    kafka.produce(topic, [row(1, "a", "one"), row(2, "b", "two"), row(3, "c", "three"), row(4, "d", "four")])
    follow(**OPTIONS)
    kafka.produce(
        topic,
        [
            row(1, "a1"),  # from the table
            row(2, "b1", "zwei"),
            row(2, "b2"),
            row(2, "b3"),  # from an earlier change of the batch
            change(3),
            row(3, "c1", "drei"),
            row(3, "c2"),  # from the row that is new since the delete
            row(4, "d1", left_out=["bio"], tags=None),  # a null is a value
            row(5, "e", "five"),
            *renamed(5, 6, "f"),
            *renamed(6, 7, "g"),  # through two keys in the batch
            row(5, "e2", "fünf"),
        ],
    )
    follow(**OPTIONS)
    assert landed_rows(table) == [
        *expected((1, "a1", "one"), (2, "b3", "zwei"), (3, "c2", "drei")),
        (4, "d1", "four", None),
        *expected((5, "e2", "fünf"), (7, "g", "five")),
    ]
    # Through two keys in the table, and what the batch says of the first of them before.
    kafka.produce(topic, [row(1, "a2"), *renamed(1, 8, "h"), *renamed(8, 9, "i"), row(7, "g1"), *renamed(7, 1, "j")])
    last = follow(**OPTIONS)
    assert landed_rows(table)[0] == expected((1, "j", "five"))[0]
    assert landed_rows(table)[-1] == expected((9, "i", "one"))[0]
    columns = {"kafka_unavailable", "kafka_previous_key", "_dagster_kafka_flip_unresolved"}
    assert not columns & {name for name, _ in last.columns}

    # Records that are read again change nothing, also where the batch begins amid a changed key.
    before = landed_rows(table)
    for start in (12, 0):
        again = OffsetsInitializer.specific_offsets({(topic, 0): start})
        follow(starting_offsets=again, **OPTIONS)
        assert landed_rows(table) == before


def test_what_others_change_before_the_merge_is_what_a_value_that_was_left_out_is(
    kafka, follow, spark, topic, table, around_the_merge
):
    options = {**OPTIONS, "target": {"mode": Scd2(key=("id",))}}
    kafka.create(topic)
    kafka.produce(topic, [row(1, "a", "one"), row(2, "b", "two")])
    follow(**options)
    kafka.produce(topic, [*renamed(1, 3, "c"), row(2, "b1")])
    around_the_merge(before=lambda: spark.sql(f"UPDATE delta.`{table}` SET bio = concat(bio, '!')"))
    follow(**options)
    found = landed.rows(table, "id", "name", "bio", where="is_current")
    assert found == [(2, "b1", "two!"), (3, "c", "one!")]


def test_an_unknown_unchanged_value_ends_the_run_and_nothing_is_written(kafka, follow, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [row(1, "a", "one")])
    follow(**OPTIONS)
    for records, at in (
        ([row(8, "new")], 0),
        ([change(1), row(1, "deleted in the batch")], 1),
        (renamed(8, 9, "no row of the previous key"), 2),
        ([row(2, "no delete of the previous key", before=1)], 0),
    ):
        start = kafka.end_offset(topic)
        kafka.produce(topic, [*records, row(3, "c", "three")])
        found = rf"^the connector left out a value that did not change \({topic}-0 offset {start + at}: bio, tags\)"
        with pytest.raises(UnavailableValueError, match=found):
            follow(starting_offsets=OffsetsInitializer.specific_offsets({(topic, 0): start}), **OPTIONS)
    assert landed_rows(table) == expected((1, "a", "one"))
    assert landed.operations(table) == ["CREATE TABLE", "MERGE"]


def test_the_values_of_a_row_are_not_those_of_one_with_almost_its_previous_key(kafka, follow, topic, table):
    options = {**OPTIONS, "value_format": JsonFormat(schema=VALUE.declared.replace("id: INT", "id: DOUBLE"))}
    kafka.create(topic)
    kafka.produce(topic, [row(1, "a", "one")])
    follow(**options)
    kafka.produce(topic, [change(1), row(3, "c", before=1.4)])
    with pytest.raises(UnavailableValueError, match=rf"{topic}-0 offset 2: bio, tags"):
        follow(**options)


def test_an_unknown_value_ends_the_run_however_the_transform_spells_the_columns_of_the_record(
    kafka, follow, topic, table
):
    def shouted(records):
        return reported(records).withColumnsRenamed({"kafka_offset": "KAFKA_OFFSET", "kafka_deleted": "Kafka_Deleted"})

    options = {**OPTIONS, "transform": shouted}
    kafka.create(topic)
    kafka.produce(topic, [row(1, "a", "one"), row(2, "b", "two")])
    follow(**options)
    kafka.produce(topic, [row(1, "c"), change(2)])
    follow(**options)
    assert landed_rows(table) == expected((1, "c", "one"))
    kafka.produce(topic, [row(8, "new")])
    with pytest.raises(UnavailableValueError, match=rf"{topic}-0 offset 4: bio, tags"):
        follow(**options)
    assert landed_rows(table) == expected((1, "c", "one"))


def test_a_dot_in_a_name_is_part_of_the_name(kafka, follow, topic, table):
    def dotted(records):
        from pyspark.sql import functions as f

        before = f.when(f.col("before").isNotNull(), f.struct(f.col("before.id").alias("its.id")))
        records = records.withColumns({"before": before, "id": f.coalesce("id", "kafka_key.id")})
        return reported(records).withColumnsRenamed({"id": "its.id", "bio": "its.bio"})

    options = {**OPTIONS, "transform": dotted, "target": {"mode": Upsert(key=("its.id",))}}
    kafka.create(topic)
    kafka.produce(topic, [row(1, "a", "one")])
    follow(**options)
    kafka.produce(topic, [change(1), row(2, "b", before=1, left_out=["its.bio", "tags"])])
    follow(**options)
    assert landed.rows(table, '"its.id"', "name", '"its.bio"') == [(2, "b", "one")]


def test_a_previous_key_is_looked_for_in_one_batch_and_one_topic_partition(kafka, follow, topic, table):
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [row(1, "a", "one"), row(2, "b", "two")], partition=0)
    follow(**OPTIONS)
    kafka.produce(topic, [change(1)], partition=0)
    kafka.produce(topic, [row(3, "c", before=1)], partition=1)
    # The delete may be a later one than that of the changed key.
    with pytest.raises(UnavailableValueError, match=rf"{topic}-1 offset 0"):
        follow(**OPTIONS)
    # The row is sent again.
    kafka.produce(topic, [row(3, "c", "one"), row(4, "d", "four")], partition=1)
    follow(**OPTIONS)
    assert landed_rows(table) == expected((2, "b", "two"), (3, "c", "one"), (4, "d", "four"))
    kafka.produce(topic, renamed(2, 5, "e"), partition=0)
    with pytest.raises(UnavailableValueError, match=rf"{topic}-0 offset 5: bio, tags"):
        follow(limits=Limits(max_records_per_batch=2), **OPTIONS)


def test_a_null_in_the_table_is_not_the_value_that_was_left_out(kafka, follow, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [row(1, "a", "one"), row(2, "b", "two")])
    without = JsonFormat(schema="id BIGINT, name STRING")
    follow(value_format=without, transform=lambda rows: rows.select("*"))
    later = {"target": {"schema_evolution": True}, **OPTIONS}
    # In the batch that adds the column, and in one after it.
    kafka.produce(topic, [row(1, "c")])
    with pytest.raises(UnavailableValueError, match=rf"{topic}-0 offset 2: bio, tags"):
        follow(**later)
    assert landed.rows(table, "id", "name") == [(1, "a"), (2, "b")]
    kafka.produce(topic, [row(2, "d", "zwei"), row(1, "e", "eins"), row(3, "f", "drei")])
    follow(**later)
    assert landed_rows(table) == expected((1, "e", "eins"), (2, "d", "zwei"), (3, "f", "drei"))


def test_a_transform_that_loses_what_was_left_out_is_refused(kafka, follow, topic, table):
    from pyspark.sql import functions as f

    kafka.create(topic)
    kafka.produce(topic, [row(1, "a", "one")])
    follow(**OPTIONS)
    kafka.produce(topic, [row(1, "b")])
    with pytest.raises(ConfigurationError, match=r"left out the value of bio, TAGS, but the rows have no"):
        follow(
            target={"schema_evolution": True},
            value_format=VALUE,
            transform=lambda records: reported(records).withColumnsRenamed({"bio": "life", "tags": "marks"}),
        )
    with pytest.raises(ConfigurationError, match=r"kafka_previous_key, a row's previous key, is int and has"):
        follow(
            value_format=VALUE,
            transform=lambda rows: reported(rows).withColumn("kafka_previous_key", rows.id.cast("int")),
        )
    with pytest.raises(ConfigurationError, match=r"kafka_unavailable must be an ARRAY<STRING>, .* makes it STRING"):
        follow(
            value_format=VALUE,
            transform=lambda rows: reported(rows).withColumn("kafka_unavailable", f.lit("bio")),
        )
    assert landed_rows(table) == expected((1, "a", "one"))


# Keys that a row may move to; a row's values are left out whenever it may be.
_steps = st.lists(
    st.tuples(
        st.sampled_from(["save", "save", "keep", "keep", "move", "move", "drop"]), st.integers(0, 3), st.integers(0, 3)
    ),
    min_size=4,
    max_size=14,
)


def _records(steps, rows, counter):
    """What Debezium would tell of these steps; changes the rows, as the database does."""
    for step, number, other in steps:
        counter.append(None)
        name = f"n{len(counter)}"
        if number not in rows or step == "save":
            rows[number] = (name, f"b{len(counter)}")
            yield row(number, *rows[number])
        elif step == "keep":
            rows[number] = (name, rows[number][1])
            yield row(number, name)
        elif step == "drop":
            del rows[number]
            yield from [change(number), change(number)]
        elif other not in rows:
            rows[other] = (name, rows.pop(number)[1])
            yield from renamed(number, other, name)


@settings(
    max_examples=2,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(parts=st.lists(_steps, min_size=3, max_size=3))
def test_the_table_equals_the_database_whatever_the_connector_left_out(kafka, follow, topic, tmp_path, parts):
    name, table = f"{topic}-{uuid.uuid4().hex[:8]}", str(tmp_path / uuid.uuid4().hex)
    kafka.create(name)
    options = {"source": KafkaSource(topics=(name,)), "target": {"table": table}, **OPTIONS}
    rows, counter = {}, []
    for steps in parts:
        kafka.produce(name, list(_records(steps, rows, counter)))
        follow(**options)
        assert landed_rows(table) == expected(*((number, *values) for number, values in sorted(rows.items())))
