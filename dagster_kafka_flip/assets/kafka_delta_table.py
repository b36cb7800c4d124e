"""KafkaDeltaTable: one of several tables that one read of a source is landed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster import AssetSpec

from dagster_kafka_flip.settings import check_arguments

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from pyspark.sql import DataFrame

    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
    from dagster_kafka_flip.table.target import DeltaTarget


@dataclass(frozen=True)
class KafkaDeltaTable:
    """One table of `build_kafka_delta_multi_asset`, and the asset that it is.

    Attributes:
        spec: The asset: its key, and all that Dagster shows of it and goes by (description, group, owners, tags, kinds,
            automation condition, freshness policy, further dependencies). A text stands for a spec of that key.
        table: A path, a catalog name, or a DeltaTarget.
        transform: From the run's records to the rows of this table, both lazy DataFrames; takes `records`, and may take
            `context` and resources by their keys. Default: the records as they are decoded.
        key_format: How to read keys. Default: RawFormat.
        value_format: How to read values. Default: RawFormat.
        columns: Which of the record's own fields are kept. Default: all but the value.
        dead_letter: Where records go that this table's formats can't decode: DeadLetters, or the path or name of a
            table. Default: they stop this table's run, or are kept, as their format says.
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
        """The spec as it was given."""
        return self.spec if isinstance(self.spec, AssetSpec) else AssetSpec(self.spec)


# What is misspelt is told as by the functions, and not as a TypeError.
KafkaDeltaTable.__init__ = check_arguments(KafkaDeltaTable.__init__)
