"""Avro with a schema registry, and a schema that evolves: `python -m examples.registry`, or `make demo-registry`.

A real broker, a real registry, and a producer with Confluent's serializer. The second version of its schema has one
more field, which becomes a column of the table.
"""

from __future__ import annotations

import json
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient  # pyright: ignore[reportPrivateImportUsage]
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from dagster import DagsterInstance, materialize
from rich.console import Console
from rich.table import Table

from dagster_kafka_flip import (
    AvroFormat,
    DeltaTarget,
    KafkaColumns,
    KafkaResource,
    KafkaSource,
    LocalBroker,
    SchemaRegistryResource,
    SparkResource,
    build_kafka_delta_asset,
    build_session,
)
from dagster_kafka_flip.broker.local_registry import LocalRegistry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TOPIC = "orders"
_ID = {"name": "id", "type": "long", "doc": "The order's number."}
_PRICE = {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}
_COUPON = {"name": "coupon", "type": ["null", "string"], "default": None, "doc": "The coupon, if there was one."}
_FIRST = {"type": "record", "name": "Order", "fields": [_ID, _PRICE]}
_SECOND = {"type": "record", "name": "Order", "fields": [_ID, _PRICE, _COUPON]}
_QUIET = {"loggers": {"console": {"config": {"log_level": "WARNING"}}}}


def run(console: Console, folder: Path) -> int:
    """Lands the topic twice, and returns the number of rows.

    Args:
        console: The terminal.
        folder: Where broker, registry and table put their files.
    """
    with LocalBroker(folder / "kafka") as broker, LocalRegistry(folder / "registry") as registry:
        console.print(f"Kafka: {broker.bootstrap_servers}, schema registry: {registry.url}", soft_wrap=True)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(_TOPIC, 1)])[_TOPIC].result(30)
        orders = build_kafka_delta_asset(
            name="orders",
            source=KafkaSource(topics=(_TOPIC,)),
            table=DeltaTarget(table=str(folder / "orders"), schema_evolution=True),
            value_format=AvroFormat(registry="schema_registry"),
            columns=KafkaColumns(fields=("offset",)),
        )
        resources = {
            "kafka": KafkaResource(bootstrap_servers=broker.bootstrap_servers),
            "spark": SparkResource(),
            "schema_registry": SchemaRegistryResource(url=registry.url),
        }
        # Started here, so that both runs share it.
        spark = build_session()
        batches: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
            (_FIRST, [{"id": 1, "price": "9.99"}, {"id": 2, "price": "120.00"}]),
            (_SECOND, [{"id": 3, "price": "5.00", "coupon": "SPRING"}]),
        ]
        rows = 0
        (folder / "dagster").mkdir()
        with DagsterInstance.local_temp(str(folder / "dagster")) as instance:
            for version, (schema, values) in enumerate(batches, 1):
                _produce(broker.bootstrap_servers, registry.url, schema, values)
                result = materialize([orders], resources=resources, instance=instance, run_config=_QUIET)
                (landed,) = result.asset_materializations_for_node("orders")
                rows = int(str(landed.metadata["dagster/row_count"].value))
                fields = ", ".join(field["name"] for field in schema["fields"])
                console.print(f"After records of version {version} of the schema ({fields}):")
                console.print(_shown(spark.read.format("delta").load(str(folder / "orders")).orderBy("id").collect()))
        spark.stop()
    return rows


def _produce(servers: str, url: str, schema: Mapping[str, Any], orders: Iterable[dict[str, Any]]) -> None:
    """Writes orders as any producer does that uses Confluent's serializer; it registers the schema."""
    make_serializer: Any = AvroSerializer
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    with SchemaRegistryClient({"url": url}) as client:
        serialize = make_serializer(client, json.dumps(schema))
        for order in orders:
            value = {**order, "price": Decimal(order["price"])}
            producer.produce(_TOPIC, serialize(value, SerializationContext(_TOPIC, MessageField.VALUE)))
    producer.flush(30)


def _shown(rows: list[Any]) -> Table:
    table = Table(*rows[0].asDict())
    for row in rows:
        table.add_row(*map(str, row))
    return table


@click.command()
def main() -> None:
    """Lands an Avro topic whose schema evolves."""
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        rows = run(console, Path(folder))
    console.print(f"registry example: OK {rows} rows")


if __name__ == "__main__":
    main()
