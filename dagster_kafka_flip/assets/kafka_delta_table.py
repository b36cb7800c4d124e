"""KafkaDeltaTable: one of several tables that share one read of a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster import AssetSpec

from dagster_kafka_flip.settings.arguments import check_options
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from pyspark.sql import DataFrame

    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.ingestion.dead_letters import DeadLetters


@dataclass(frozen=True)
class KafkaDeltaTable:
    """One table of `build_kafka_delta_multi_asset`, with its asset.

    Attributes:
        spec: The asset spec: key, description, group, owners, tags, kinds, automation condition, freshness policy and
            additional dependencies. A string is the key of a plain spec.
        table: A path, a catalog name, or a DeltaTarget.
        transform: Function from the run's records to the rows of this table, both lazy DataFrames; takes `records`, and
            may take `context` and resources by their keys. Default: the records as decoded.
        key_format: Format of keys. Default: RawFormat.
        value_format: Format of values. Default: RawFormat.
        columns: The record fields to keep as columns. Default: all but the value.
        dead_letter: Table for records that this table's formats can't decode: DeadLetters, or a path or name. Default:
            the format's `on_error` decides whether they fail the run or are kept.
    """

    spec: AssetSpec | str
    table: str | PathLike[str] | DeltaTarget
    transform: Callable[..., DataFrame] | None = None
    key_format: Format | None = None
    value_format: Format | None = None
    columns: KafkaColumns | None = None
    dead_letter: DeadLetters | str | None = None

    @property
    def asset_spec(self) -> AssetSpec:
        """The spec as given."""
        return self.spec if isinstance(self.spec, AssetSpec) else AssetSpec(self.spec)


# Raises a ConfigurationError with a suggestion instead of a TypeError.
KafkaDeltaTable.__init__ = check_options(inside={"table": DeltaTarget})(KafkaDeltaTable.__init__)
