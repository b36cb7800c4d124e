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
from dagster_kafka_flip.table.mode import Upsert
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
        ],
    )
    last = follow(**OPTIONS)
    assert landed_rows(table) == [
        *expected((1, "a1", "one"), (2, "b3", "zwei"), (3, "c2", "drei")),
        (4, "d1", "four", None),
    ]
    columns = {"kafka_unavailable", "kafka_previous_key", "_dagster_kafka_flip_unresolved"}
    assert not columns & {name for name, _ in last.columns}

    # Records that are read again change nothing.
    before = landed_rows(table)
    follow(starting_offsets=OffsetsInitializer.earliest(), **OPTIONS)
    assert landed_rows(table) == before


def test_an_unknown_unchanged_value_ends_the_run_and_nothing_is_written(kafka, follow, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [row(1, "a", "one")])
    follow(**OPTIONS)
    for records, at in (
        ([row(8, "new")], 0),
        ([change(1), row(1, "deleted in the batch")], 1),
        ([row(1, "not the row that the table has", before=2)], 0),
        (renamed(1, 9, "a changed key"), 2),
    ):
        start = kafka.end_offset(topic)
        kafka.produce(topic, [*records, row(3, "c", "three")])
        found = rf"^the connector left out a value that did not change \({topic}-0 offset {start + at}: bio, tags\)"
        with pytest.raises(UnavailableValueError, match=found):
            follow(starting_offsets=OffsetsInitializer.specific_offsets({(topic, 0): start}), **OPTIONS)
    assert landed_rows(table) == expected((1, "a", "one"))
    assert landed.operations(table) == ["CREATE TABLE", "MERGE"]
    # The row is sent again.
    kafka.produce(topic, [row(9, "sent again", "one")])
    follow(starting_offsets=OffsetsInitializer.specific_offsets({(topic, 0): start}), **OPTIONS)
    assert landed_rows(table) == expected((3, "c", "three"), (9, "sent again", "one"))


@pytest.mark.nightly
def test_a_dot_in_a_name_is_part_of_the_name_and_its_case_is_not(kafka, follow, topic, table):
    def dotted(records):
        from pyspark.sql import functions as f

        records = records.withColumns({"id": f.coalesce("id", "kafka_key.id")})
        spelled = {"kafka_offset": "KAFKA_OFFSET", "kafka_deleted": "Kafka_Deleted"}
        return reported(records).withColumnsRenamed({"id": "its.id", "bio": "its.bio", **spelled})

    options = {**OPTIONS, "transform": dotted, "target": {"mode": Upsert(key=("its.id",))}}
    kafka.create(topic)
    kafka.produce(topic, [row(1, "a", "one"), row(2, "b", "two"), row(2, "c", left_out=["its.bio", "tags"])])
    follow(**options)
    assert landed.rows(table, '"its.id"', "name", '"its.bio"') == [(1, "a", "one"), (2, "c", "two")]
    kafka.produce(topic, [row(1, "d", left_out=["its.bio", "tags"]), change(2)])
    follow(**options)
    kafka.produce(topic, [row(8, "new", left_out=["its.bio", "tags"])])
    with pytest.raises(UnavailableValueError, match=rf"{topic}-0 offset 5: its.bio, tags"):
        follow(**options)
    assert landed.rows(table, '"its.id"', "name", '"its.bio"') == [(1, "d", "one")]


@pytest.mark.nightly
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
    with pytest.raises(ConfigurationError, match=r"kafka_unavailable must be an ARRAY<STRING>, .* makes it STRING"):
        follow(value_format=VALUE, transform=lambda rows: reported(rows).withColumn("kafka_unavailable", f.lit("bio")))
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
            # A connector that leaves out nothing of a changed key.
            yield from [change(number), change(number), row(other, *rows[other], before=number)]


@pytest.mark.nightly
@settings(
    max_examples=1,
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
