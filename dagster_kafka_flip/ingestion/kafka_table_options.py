"""KafkaTableOptions: the options of a Kafka table in Flink's SQL, as options of an asset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.formats.format import Format
from dagster_kafka_flip.formats.table_options import formats_of, is_of_formats
from dagster_kafka_flip.settings.arguments import check_arguments, expect
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.option_texts import check_texts
from dagster_kafka_flip.source.kafka_source import KafkaSource

if TYPE_CHECKING:
    from collections.abc import Mapping


class KafkaTableOptions(Settings):
    """What to read and how to decode it, from the options and columns of Flink's Kafka table.

    A value's columns have their own names. The key's (`key.fields`) are the fields of one STRUCT column, `kafka_key`,
    without `key.fields-prefix`; a raw key is that column itself.

    Attributes:
        source: What to read.
        value_format: How values are decoded.
        key_format: How keys are decoded; None if the table has no `key.format`.
    """

    source: KafkaSource
    value_format: Format
    key_format: Format | None = None

    @classmethod
    @check_arguments
    def from_options(cls, options: Mapping[str, str], schema: str) -> KafkaTableOptions:
        """Reads the options of a table.

        Args:
            options: What Flink's SQL sets in `WITH (...)`: texts by name.
            schema: The table's physical columns as DDL, with Spark's types.

        Raises:
            ConfigurationError: An option is unknown, malformed or missing, contradicts another one or the schema, or
                has no meaning here. The message names it.
        """
        check_texts(options)
        expect("schema", schema, str, '"id BIGINT, name STRING"')
        key_format, value_format = formats_of(
            {name: value for name, value in options.items() if is_of_formats(name)}, schema
        )
        source = KafkaSource.from_options({name: each for name, each in options.items() if not is_of_formats(name)})
        return cls(source=source, value_format=value_format, key_format=key_format)

    def asset_options(self) -> dict[str, Any]:
        """Returns them as options of `kafka_delta_asset`, `build_kafka_delta_asset` and `ingest`."""
        return {"source": self.source, "value_format": self.value_format, "key_format": self.key_format}
