"""The forms of the throughput benchmark's records: what their bytes are, and how to decode them."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip import AvroFormat, JsonFormat, ProtobufFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import Column

    from dagster_kafka_flip import Format

_TEXTS = 10_000
_REPEATED = 100
_NOTE_DIGITS = 40

JSON_SCHEMA = (
    "number BIGINT NOT NULL, carrier STRING, origin STRING, delay DOUBLE, distance INT, tail STRING, at TIMESTAMP, "
    "note STRING"
)

_AVRO_TYPES: dict[str, Any] = {
    "number": "long",
    "carrier": "string",
    "origin": "string",
    "delay": "double",
    "distance": "int",
    "tail": "string",
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "note": "string",
}
_AVRO_SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": name, "type": kind} for name, kind in _AVRO_TYPES.items()],
}


@dataclass(frozen=True)
class Form:
    """How records are written and read.

    Attributes:
        name: Its name.
        encode: Makes a value of a record's fields.
        format_of: Makes the format, by its `on_error`; None to land bytes.
        plainly: What a user would decode with, without this package: a STRUCT of a value; None if Spark has nothing.
    """

    name: str
    encode: Callable[[Mapping[str, Any]], bytes]
    format_of: Callable[[Any], Format | None]
    plainly: Callable[[Column], Column] | None


def forms() -> dict[str, Form]:
    """All forms by name."""
    message, descriptor_set = _protobuf()
    made = (
        Form("raw", _json, lambda _: None, None),
        Form("json", _json, lambda on_error: JsonFormat(JSON_SCHEMA, on_error=on_error), _from_json),
        Form("avro", _avro(), lambda on_error: AvroFormat(_AVRO_SCHEMA, on_error=on_error), _from_avro),
        Form("protobuf", message, lambda on_error: ProtobufFormat(descriptor_set, on_error=on_error), None),
    )
    return {form.name: form for form in made}


def records(count: int, note_digits: int = _NOTE_DIGITS, *, repeating: bool = False) -> Iterator[dict[str, Any]]:
    """Records, the same in every run.

    Args:
        count: How many.
        note_digits: Length of their longest field, less eight.
        repeating: Whether each field but the number has at most a hundred values. Default: notes never repeat, so that
            a dictionary does not hold them.
    """
    numbers = random.Random(27)  # noqa: S311 - no secret depends on it, and every run is to be alike
    few = [
        {
            "carrier": f"{numbers.choice('ABCDEFGH')}{numbers.choice('ABCDEFGH')}",
            "origin": str(numbers.randrange(10**6)),
            "delay": round(numbers.random(), 6),
            "distance": numbers.randrange(10**4),
            "tail": f"{numbers.getrandbits(48):012x}",
            "at": datetime(2026, 3, numbers.randrange(1, 29), 12, 34, 56, tzinfo=timezone.utc),
            "note": f"{numbers.getrandbits(4 * note_digits):0{note_digits}x}",
        }
        for _ in range(_REPEATED if repeating else _TEXTS)
    ]
    for number in range(count):
        one = few[number % len(few)]
        yield {"number": number, **one, "note": f"{one['note']}{number % len(few) if repeating else number:08x}"}


def _json(record: Mapping[str, Any]) -> bytes:
    # By hand, because json.dumps takes longer than the broker.
    return (
        '{{"number":{number},"carrier":"{carrier}","origin":"{origin}","delay":{delay:.6f},"distance":{distance},'
        '"tail":"{tail}","at":"{at:%Y-%m-%dT%H:%M:%SZ}","note":"{note}"}}'.format(**record)
    ).encode()


def _from_json(value: Column) -> Column:
    from pyspark.sql import functions as f

    return f.from_json(value.cast("string"), JSON_SCHEMA)


def _avro() -> Callable[[Mapping[str, Any]], bytes]:
    import fastavro

    schema = fastavro.parse_schema(_AVRO_SCHEMA)

    def encode(record: Mapping[str, Any]) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, schema, dict(record))
        return buffer.getvalue()

    return encode


def _from_avro(value: Column) -> Column:
    import json

    from pyspark.sql.avro.functions import from_avro

    return from_avro(value, json.dumps(_AVRO_SCHEMA))


def _protobuf() -> tuple[Callable[[Mapping[str, Any]], bytes], bytes]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

    field = descriptor_pb2.FieldDescriptorProto
    kinds = {int: field.TYPE_INT64, str: field.TYPE_STRING, float: field.TYPE_DOUBLE}
    file = descriptor_pb2.FileDescriptorProto(
        name="flight.proto", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    flight = file.message_type.add(name="Flight")
    for number, (name, value) in enumerate(next(records(1)).items(), 1):
        added = flight.field.add(name=name, number=number, label=field.LABEL_OPTIONAL)
        if isinstance(value, datetime):
            added.type, added.type_name = field.TYPE_MESSAGE, ".google.protobuf.Timestamp"
        else:
            added.type = kinds[type(value)]
    times = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    pool = descriptor_pool.DescriptorPool()
    for each in (times, file):
        pool.Add(each)
    made: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("Flight"))
    descriptor_set = descriptor_pb2.FileDescriptorSet(file=[times, file])

    def encode(record: Mapping[str, Any]) -> bytes:
        return made(**record).SerializeToString()

    return encode, descriptor_set.SerializeToString()
