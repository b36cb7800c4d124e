"""Which fields were seen of a batch: what is told of several batches, and when the schema looks wrong."""

from __future__ import annotations

import pytest
from dagster import AssetKey

from dagster_kafka_flip.assets.run_checks import SCHEMA_FITS, Findings, check_results
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.fields import FieldsSeen, merge_fields, of_values_and_keys
from dagster_kafka_flip.formats.json import JsonFormat
from tests.formats.decoding import records


def test_a_field_of_several_batches_was_never_seen_if_none_of_them_has_it():
    seen = [FieldsSeen(3, ("a", "b"), ("x",)), FieldsSeen(0), FieldsSeen(4, ("b", "c"), ("y", "x"))]
    assert merge_fields(seen) == FieldsSeen(7, ("b",), ("x", "y"))
    assert merge_fields([FieldsSeen(0)]) == FieldsSeen(0)


def test_one_unknown_batch_makes_the_fields_of_all_unknown():
    assert merge_fields([FieldsSeen(3, ("a",)), None]) is None
    assert merge_fields([]) is None


def test_keys_that_match_no_field_are_reported_even_if_values_match():
    values = FieldsSeen(5, undeclared=("x",))
    seen = of_values_and_keys([values, FieldsSeen(3, ("key.a",), ("key.A",), names_fit=False)])
    assert seen == FieldsSeen(5, ("key.a",), ("x", "key.A"), names_fit=False)
    assert seen.is_suspicious
    assert of_values_and_keys([values, FieldsSeen(0)]) == values
    assert of_values_and_keys([FieldsSeen(0)]) == FieldsSeen(0)


@pytest.mark.parametrize(
    ("seen", "is_suspicious"),
    [
        (FieldsSeen(0), False),
        (FieldsSeen(1000), False),
        (FieldsSeen(1000, never=("optional",)), False),
        (FieldsSeen(1000, undeclared=("left_out",)), False),
        (FieldsSeen(5, never=("optional",), undeclared=("left_out",)), False),
        (FieldsSeen(1000, never=("dest",), undeclared=("destination",)), True),
        (FieldsSeen(5, never=("carrierCode",), undeclared=("carrier_code",)), True),
        (FieldsSeen(5, never=("after.id",), undeclared=("ID",)), True),
        (FieldsSeen(5, never=("id",), undeclared=("key.id",)), False),
        (FieldsSeen(5, never=("key.id",), undeclared=("key.Id",)), True),
        (FieldsSeen(1, never=("a", "b"), names_fit=False), True),
    ],
)
def test_optional_fields_that_are_left_out_make_no_schema_wrong(seen, is_suspicious):
    assert seen.is_suspicious == is_suspicious
    (check,) = check_results([SCHEMA_FITS], AssetKey("a"), Findings((), 0, fields=seen))
    assert check.passed is not is_suspicious


def _seen(spark, decoder, pairs, span):
    """The fields of records, by key and value, that are seen while they are decoded."""
    from pyspark.sql import Observation

    watches = decoder.fields(span)
    observation = Observation()
    staged = decoder.stage(records(spark, [value for _, value in pairs], keys=[key for key, _ in pairs]))
    staged = staged.select("*", *(each for watch in watches for each in watch.columns()))
    landed = decoder.finish(staged.observe(observation, *(each for watch in watches for each in watch.metrics())))
    landed.collect()
    assert not [name for name in landed.columns if name.startswith("_")]
    return of_values_and_keys(watch.seen(observation.get) for watch in watches)


@pytest.mark.spark
def test_declared_fields_that_no_record_has_and_undeclared_ones_are_seen_on_the_way(spark):
    many = ", ".join(f"f{number} INT" for number in range(70))
    schema = f"a INT, flight INT, r STRUCT<x: INT, y: INT>, {many}"
    values = [
        b'{"a": 1, "Flight": 2, "r": {"x": null}}',
        b'{"a": null, "f69": null, "r": {"X": 1}, "Flight": 1, "z": {"b": 1}}',
        None,
        b'{"flight": "no number"}',
        b'{"f68": 1, "r": {"y": 1}}',
    ]
    decoder = Decoder.of(JsonFormat("k INT, i INT", on_error="null"), JsonFormat(schema, on_error="null"), None)

    def seen(pairs):
        return _seen(spark, decoder, pairs, len(pairs))

    found = seen([(None, value) for value in values])
    assert found.never == ("flight", "r.x", *(f"f{number}" for number in range(70) if number != 68))
    assert (found.records, found.undeclared, found.names_fit) == (3, ("Flight", "z"), True)
    assert found.is_suspicious
    assert seen([(b'{"k": 1, "I": 1}', None)]) == FieldsSeen(1, ("key.i",), ("key.I",))
    assert seen([(None, None)]) == FieldsSeen(0)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("schema", "values", "span", "is_suspicious"),
    [
        ("id INT, name STRING", [b'{"id": null}'], 1, False),
        ("id INT, name STRING", [b"{}", b'{"name": null, "id": null}'], 2, False),
        ("id INT, name STRING", [b'{"id": null}', b'{"number": 1}'], 2, True),
        # The names in a STRUCT are not looked at, nor all names of a large batch.
        ("r STRUCT<id: INT>", [b'{"r": {"number": 1}}'], 1, True),
        ("id INT, name STRING", [b"{}", b'{"number": 1}'], 2000, True),
    ],
)
def test_records_without_other_fields_make_no_schema_wrong(spark, schema, values, span, is_suspicious):
    decoder = Decoder.of(None, JsonFormat(schema), None)
    assert _seen(spark, decoder, [(None, value) for value in values], span).is_suspicious == is_suspicious


def test_a_text_about_thousands_of_fields_names_some_and_counts_the_others():
    names = tuple(f"f{number}" for number in range(3_000))
    assert "f0, f1, " in str(FieldsSeen(5, names, names))
    assert str(FieldsSeen(5, names, names)).count(" and 2,980 more") == 2
