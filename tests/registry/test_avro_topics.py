"""Topics in Avro with a real registry: from confluent-kafka's serializer to the table."""

from __future__ import annotations

import json
import logging
import re
import time
import urllib.request
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError as RefusedError
from confluent_kafka.serialization import MessageField, SerializationContext

from dagster_kafka_flip.broker.local_registry import LocalRegistry
from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.errors import (
    RecordsRejectedError,
    SchemaMismatchError,
    SchemaNotFoundError,
    SchemaRegistryUnreachableError,
)
from dagster_kafka_flip.formats import learning, schema_book
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.ingestion import batch_writer
from dagster_kafka_flip.ingestion.dead_letters import decode_dead_letters
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Window
from tests import landed
from tests.registry.http_server import http_server

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

HOUR = 3600.0
OFFSET = KafkaColumns(fields=("topic", "partition", "offset"))


def order(*fields):
    made = [{"name": "id", "type": "long"}, *fields]
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": made})


V1 = order()
V2 = order({"name": "note", "type": ["null", "string"], "default": None})
V3 = order({"name": "note", "type": ["null", "string"], "default": None}, {"name": "n", "type": "int", "default": 7})


def serializer(client, schema) -> Any:
    """Confluent's own, which type checkers take for one without arguments."""
    make: Any = AvroSerializer
    return make(client, schema)


@pytest.fixture
def produce(client, kafka, topic):
    """Writes orders as a producer with a schema does."""

    def write(schema, *orders, partition=0, behind=b"", **more):
        serialize = serializer(client, schema)
        context = SerializationContext(topic, MessageField.VALUE)
        kafka.produce(topic, [(None, serialize(one, context) + behind) for one in orders], partition=partition, **more)

    return write


@pytest.fixture
def run(registry, land):
    return lambda form=None, **options: land(form or AvroFormat(registry=registry), **options)


@pytest.fixture
def read_again(monkeypatch):
    """Grows each time that a batch has to be read again for its schemas, which takes an hour by the run's clocks."""
    again = []
    real = learning.learn_schemas
    monkeypatch.setattr(learning, "learn_schemas", lambda *asked: again.append(1) or real(*asked))
    monkeypatch.setattr(batch_writer, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + HOUR * len(again)))
    return again


def test_a_schema_that_evolves_between_and_within_batches(kafka, topic, table, produce, run, caplog, read_again):
    caplog.set_level(logging.INFO)
    kafka.create(topic, partitions=2)
    produce(V1, {"id": 1}, {"id": 2})
    assert run().rows == 2
    assert landed.rows(table, "id") == [(1,), (2,)]
    assert read_again == [], "the subject's latest schema is known before the read"

    # The new schema in the middle of a batch, and the old one again behind it, in another topic partition too.
    produce(V2, {"id": 3, "note": "x"})
    produce(V1, {"id": 4})
    produce(V1, {"id": 5}, partition=1)
    produce(V3, {"id": 6, "note": None, "n": 9}, partition=1)
    result = run(limits=Limits(max_records_per_batch=2))
    assert (result.rows, result.records, result.known.table_rows) == (4, 4, 6)
    assert landed.rows(table, "id", "note", "n", where="id > 2") == [
        (3, "x", 7),
        (4, None, 7),
        (5, None, 7),
        (6, None, 9),
    ]
    schemas = json.loads(landed.history(table, 1)[0]["userMetadata"])["schemas"]["value"]
    assert len(schemas) == 3
    # Only V2 is neither the latest nor met before.
    (reported,) = [record.getMessage() for record in caplog.records if "reading the batch again" in record.getMessage()]
    assert re.search(r"because its values have schemas that were not yet requested: \d+$", reported)
    assert read_again == [1]
    assert sum(batch.read_and_write_seconds for batch in result.batches) > HOUR, "what was read in vain counts"
    assert f"00{int(reported.split()[-1]):08X}" in schemas


def test_a_schema_that_is_registered_while_a_run_starts_loses_no_field(kafka, topic, table, produce, run, spark_of):
    # The run has asked for its reader schema before it asks for Spark, and fixes its stop afterwards.
    kafka.create(topic)
    produce(V1, {"id": 1})
    ids = iter(range(2, 10))

    def optional(number):
        return {"name": f"n{number}", "type": ["null", "int"], "default": None}

    def spark():
        number = next(ids)
        produce(order(*map(optional, range(2, number + 1))), {"id": number, f"n{number}": 7})
        return spark_of()

    assert run(spark=spark).reader_schemas["value"].startswith(f"{topic}-value version 2 ")
    assert landed.rows(table, "id", "n2") == [(1, None), (2, 7)]
    produce(order(optional(2)), {"id": 8, "n2": 8})
    assert run(spark=spark).column_changes == ("+ n3 int",)
    assert landed.rows(table, "id", "n2", "n3") == [(1, None, None), (2, 7, None), (3, None, 7), (8, 8, None)]


@pytest.mark.nightly
def test_schemas_that_the_registry_refuses_and_accepts(kafka, topic, table, client, registry, produce, run):
    subject = f"{topic}-value"
    kafka.create(topic)
    produce(V1, {"id": 1})
    client.set_compatibility(subject, "BACKWARD")
    other = V1.replace('"long"', '"string"')
    # A producer can't write with it, so no run meets it.
    with pytest.raises(RefusedError) as refused:
        produce(other, {"id": "x"})
    assert refused.value.http_status_code == 409
    assert run().reader_schemas["value"].startswith(f"{subject} version 1 ")

    client.set_compatibility(subject, "NONE")
    produce(other, {"id": "x"})
    with pytest.raises(SchemaMismatchError, match="the column id is bigint in the table and string in the batch"):
        run()
    with pytest.raises(RecordsRejectedError, match=rf"{topic}-0 offset 1: schema \d+ can't be read as .*: id: "):
        run(AvroFormat(V1, registry=registry))
    # The producer's team takes the version back. Its record stays, and so does its schema.
    client.delete_version(subject, 2)
    produce(V1, {"id": 3})
    result = run(dead_letter=f"{table}-rejected")
    assert result.reader_schemas["value"].startswith(f"{subject} version 1 ")
    assert landed.rows(table, "id") == [(1,), (3,)]
    ((error, schema),) = landed.rows(f"{table}-rejected", "error", "value_schema")
    assert "can't be read as the reader schema" in error
    assert json.loads(schema) == json.loads(other)


PROJECT = """
from dagster import Definitions
from dagster_kafka_flip import *

orders = build_kafka_delta_asset(
    name="orders",
    source=KafkaSource(topics=({topic!r},)),
    table={table!r},
    value_format=AvroFormat(registry="schemas"),
)
defs = Definitions(
    assets=[orders],
    resources={{
        "kafka": KafkaResource(bootstrap_servers={broker!r}),
        "spark": SparkResource(),
        "schemas": SchemaRegistryResource(url={url!r}, request_timeout=2),
    }},
)
"""


@pytest.mark.nightly
def test_a_plan_reports_what_records_would_be_read_as(kafka, topic, table, registry, broker, produce, tmp_path):
    kafka.create(topic)
    path = tmp_path / f"project_{topic.replace('-', '_')}.py"
    path.write_text(PROJECT.format(topic=topic, table=table, broker=broker, url=registry.url))

    def plan(*more):
        return CliRunner().invoke(main, ["plan", "--asset", "orders", "-f", str(path), *more])

    missing = plan()
    assert missing.exit_code == 1
    assert f"{topic}-value" in missing.output
    produce(V1, {"id": 1})
    reported = json.loads(plan("--json").stdout)
    assert reported["formats"] == {"key": "RawFormat", "value": "AvroFormat"}
    assert reported["reader_schemas"]["value"].startswith(f"{topic}-value version 1 (schema ")
    text = plan().stdout
    assert re.search(rf"^reader_schemas\n  value +{topic}-value version 1", text, re.MULTILINE)


def test_an_id_that_no_registry_gives(kafka, topic, table, produce, run):
    kafka.create(topic)
    produce(V1, {"id": 1})
    kafka.produce(topic, [(None, b"\x00\xff\xff\xff\xff\x02"), (None, b"\x00\x00")])
    produce(V1, {"id": 2})
    with pytest.raises(RecordsRejectedError, match="2 records can't be decoded") as caught:
        run()
    assert f"{topic}-0 offset 1: the registry has no schema 4294967295" in str(caught.value)
    assert f"{topic}-0 offset 2: its 2 bytes are too few" in str(caught.value)

    result = run(dead_letter=f"{table}-rejected")
    assert (result.rows, result.dead_letters) == (2, 2)
    assert landed.rows(table, "id") == [(1,), (2,)]
    letters = landed.rows(f"{table}-rejected", "kafka_offset", "value_schema", "value_schema_id")
    assert letters == [(1, None, "4294967295"), (2, None, None)]


@pytest.fixture
def lagging(registry):
    """The registry, behind a server that at first lacks the newest schemas; and how many more answers come late."""
    late = {"answers": 0}

    def reply(request):
        path = request.path
        if late["answers"] and "/schemas/ids/" in path:
            late["answers"] -= 1
            return 404, json.dumps({"error_code": 40403, "message": "Schema not found"})
        behind = path.replace("/latest", "/1") if late["answers"] else path
        with urllib.request.urlopen(f"{registry.url}{behind}", timeout=10) as answer:
            return answer.status, answer.read().decode()

    with http_server() as server:
        server.reply = reply
        yield SchemaRegistry(url=server.url), late


@pytest.mark.nightly
def test_a_registry_that_lags_costs_no_record_and_no_field(
    kafka, topic, table, spark, lagging, produce, run, monkeypatch
):
    registry, late = lagging
    kafka.create(topic)
    produce(V1, {"id": 1})
    produce(V2, {"id": 2, "note": "x"})
    letters = f"{table}-rejected"
    late["answers"] = 2
    # Both the schema of a record and the newest one come late.
    result = run(AvroFormat(registry=registry), dead_letter=letters)
    assert (result.rows, result.dead_letters) == (2, 0)
    assert landed.rows(table, "id", "note") == [(1, None), (2, "x")]

    monkeypatch.setattr(schema_book, "_WAITS", (0.01, 0.01))
    produce(V3, {"id": 3, "note": None, "n": 3})
    produce(V3, {"id": 4, "note": "y", "n": 4})
    late["answers"] = 100
    with pytest.raises(
        SchemaNotFoundError, match=f"the value of {topic}-0 offset 2 can't be decoded: .* 40403"
    ) as caught:
        run(AvroFormat(V3, registry=registry), dead_letter=letters)
    assert "Nothing was written" in str(caught.value)
    assert (landed.count(table), landed.count(letters)) == (2, 0)
    late["answers"] = 1
    assert run(AvroFormat(V3, registry=registry), dead_letter=letters).rows == 2
    assert landed.rows(table, "id", "note", "n", where="id > 2") == [(3, None, 3), (4, "y", 4)]


@pytest.mark.nightly
def test_a_schema_that_the_registry_will_never_have_is_a_dead_letter_where_that_is_tolerated(
    kafka, topic, table, spark, registry, produce, run, monkeypatch
):
    monkeypatch.setattr(schema_book, "_WAITS", (0.01,))
    kafka.create(topic)
    produce(V1, {"id": 1})
    kafka.produce(topic, [(None, b"\x00\x7f\xff\xff\xff\x02")])
    with pytest.raises(SchemaNotFoundError, match=r"id 2147483647.*tolerate SchemaNotFoundError"):
        run(dead_letter=f"{table}-rejected")
    result = run(dead_letter=f"{table}-rejected", tolerate=[SchemaNotFoundError])
    assert (result.rows, result.dead_letters) == (1, 1)
    ((error,),) = landed.rows(f"{table}-rejected", "error")
    assert error == "the registry has no schema 2147483647"
    letters = spark.read.format("delta").load(f"{table}-rejected")
    again = decode_dead_letters(letters, value_format=AvroFormat(V1, registry=registry, on_error="null"))
    assert [row["kafka_error"] for row in again.collect()] == [error]


def test_a_missing_subject_is_reported_before_spark_starts(kafka, topic, connection, registry, table):
    kafka.create(topic)

    def no_spark():
        pytest.fail("Spark was asked for")

    with pytest.raises(SchemaNotFoundError, match=f"{topic}-value"):
        ingest(
            KafkaSource(topics=(topic,)),
            table,
            spark=no_spark,
            connection=connection,
            value_format=AvroFormat(registry=registry),
        )


@pytest.mark.nightly
def test_a_registry_that_dies_stops_only_what_it_is_needed_for(kafka, topic, table, connection, spark_of, tmp_path):
    kafka.create(topic)
    with LocalRegistry(tmp_path / "registry") as local, SchemaRegistryClient({"url": local.url}) as client:
        url, context = local.url, SerializationContext(topic, MessageField.VALUE)
        values = [serializer(client, V1)({"id": number}, context) for number in range(4)]
        values.append(serializer(client, V2)({"id": 4, "note": "x"}, context))
        kafka.produce(topic, [(None, value) for value in values])
        decoded = []

        def transform(records):
            decoded.append(records)
            # For the table's columns, and twice for the first batch: by then the registry was asked for its schema.
            if len(decoded) == 3:
                local.stop()
            return records

        def run():
            return ingest(
                KafkaSource(topics=(topic,)),
                table,
                spark=spark_of,
                connection=connection,
                value_format=AvroFormat(V2, registry=SchemaRegistry(url=url, request_timeout=2)),
                columns=OFFSET,
                transform=transform,
                limits=Limits(max_records_per_batch=2),
            )

        with pytest.raises(SchemaRegistryUnreachableError, match="schema"):
            run()
    assert landed.rows(table, "id", "note") == [(number, None) for number in range(4)]
    # Known or not, a new process has to ask for what it is to decode.
    with pytest.raises(SchemaRegistryUnreachableError):
        run()
    assert landed.count(table) == 4


@pytest.mark.nightly
def test_windows(kafka, topic, table, registry, connection, spark_of, produce, read_again):
    kafka.create(topic)
    start = int(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp() * 1000)
    produce(V1, {"id": 1}, timestamp=start)
    produce(V2, {"id": 2, "note": "x"}, timestamp=start + 1000)
    windows = [Window.between("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")]
    for hours in (HOUR, 0.0):
        (result,) = rewrite_windows(
            KafkaSource(topics=(topic,)),
            table,
            windows,
            spark=spark_of,
            connection=connection,
            value_format=AvroFormat(registry=registry),
        )
        assert result.committed is not None
        assert hours < result.read_and_write_seconds < hours + HOUR
        assert landed.rows(table, "id", "note") == [(1, None), (2, "x")]
    assert len(read_again) == 1, "the second time, the commit says which schemas there are"
