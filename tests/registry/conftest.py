"""What tests of topics with schemas share: a producer's client of the registry, and a run that lands what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dagster_kafka_flip.ingestion.result import IngestResult
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry


@pytest.fixture
def client(registry: SchemaRegistry) -> Iterator[SchemaRegistryClient]:
    """As producers do, it registers schemas."""
    with SchemaRegistryClient({"url": registry.url}) as producer:
        yield producer


@pytest.fixture
def land(connection: Any, spark_of: Any, topic: str, table: str) -> Callable[..., IngestResult]:
    """Lands what is new in the topic."""

    def run(form: Any, **options: Any) -> IngestResult:
        target = options.pop("target", DeltaTarget(table=table, schema_evolution=True))
        given: dict[str, Any] = {
            "columns": KafkaColumns(fields=("topic", "partition", "offset")),
            "spark": spark_of,
            "connection": connection,
            **options,
        }
        return ingest(KafkaSource(topics=(topic,)), target, value_format=form, **given)

    return run
