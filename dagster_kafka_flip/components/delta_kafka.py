"""DeltaKafkaComponent: an asset that publishes a Delta table to a Kafka topic, defined in a defs.yaml."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

from dagster import ComponentLoadContext, Definitions, scaffold_with
from pydantic import BaseModel, Field

from dagster_kafka_flip.assets.asset_options import MaterializedOptions
from dagster_kafka_flip.assets.delta_kafka_asset import build_delta_kafka_asset, delta_kafka_asset
from dagster_kafka_flip.checks.delta_kafka_checks import delta_kafka_checks
from dagster_kafka_flip.components import attributes
from dagster_kafka_flip.components.checked_component import CheckedComponent
from dagster_kafka_flip.components.scaffolding import DeltaKafkaScaffolder
from dagster_kafka_flip.components.schemas import options_of
from dagster_kafka_flip.components.templates import placed
from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.source.plan import Limits

# Attributes that are not options of delta_kafka_asset.
_OWN = frozenset({"checks"})


_Options = options_of(
    delta_kafka_asset,
    MaterializedOptions,
    attributes.SINK_OPTIONS,
    upstream="The key of the table's asset. Default: none.",
    description="The asset's description.",
    pool="Concurrency pool. Default: `kafka-sink:` and the transactional_id_prefix.",
)


@scaffold_with(DeltaKafkaScaffolder)
class DeltaKafkaComponent(CheckedComponent, _Options):
    """Publishes the changes of a Delta table to a Kafka topic, exactly once.

    The attributes are the options of delta_kafka_asset.
    """

    settings_of: ClassVar[Mapping[str, type[BaseModel]]] = {"source": DeltaSource, "sink": KafkaSink, "limits": Limits}

    checks: attributes.SinkChecksAttribute | None = Field(
        default=None, description="Options of delta_kafka_checks; {} for its defaults. Default: no check."
    )

    def transform(self, rows: Any) -> Any:
        """Transforms rows in subclasses; the method may also take `context`, and resources by key.

        Args:
            rows: A lazy Spark DataFrame of the rows that a run publishes.

        Returns:
            The rows that are published, each from one row alone. Default: as they are.
        """
        return rows

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Builds the asset, and its check.

        Raises:
            ConfigurationError: Attributes contradict each other; the message names file and line.
        """
        given = {name: getattr(self, name) for name in type(self).model_fields if name not in _OWN}
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        own = type(self).transform
        try:
            if own is DeltaKafkaComponent.transform:
                made = build_delta_kafka_asset(**options)
            else:
                options.setdefault("description", inspect.cleandoc(own.__doc__ or "") or None)
                made = delta_kafka_asset(**options)(self.transform)
            checks = [] if self.checks is None else delta_kafka_checks(made, **self.checks)
        except KafkaFlipError as error:
            raise placed(error, context) from None
        return Definitions(assets=[made], asset_checks=checks)
