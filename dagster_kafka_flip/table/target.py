"""DeltaTarget: the table that a stream is landed in, described."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from dagster_kafka_flip.settings import Settings
from dagster_kafka_flip.table.sql import quoted

_NAME_PART = re.compile(r"`((?:[^`]|``)+)`|([^.]+)")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_PLAIN_STREAM = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class DeltaTarget(Settings):
    """A Delta table, by path or by catalog name, and the stream that feeds it.

    Attributes:
        table: A path (with a slash, or beginning with a scheme such as `s3a:`) or a catalog name such as
            `lake.flights`. A relative path is taken from the working directory.
        stream: Id of the stream: one source feeding one table. Explicit, so that renaming an asset, a group or a topic
            list re-reads nothing. Default `main`.
        partition_by: Partition columns, when the table is created.
        cluster_by: Columns of liquid clustering, when the table is created.
        properties: Delta table properties, when the table is created.
        schema_evolution: Whether columns that the table lacks may be added to it. Default: an error.
        single_writer: Says that only one process at a time writes to this table; needed on stores that can't keep two
            writers apart (`s3://`, `s3a://` with the default log store).
    """

    table: str = Field(min_length=1)
    stream: str = "main"
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = Field(default_factory=dict[str, str])
    schema_evolution: bool = False
    single_writer: bool = False

    @field_validator("stream")
    @classmethod
    def _check_stream(cls, stream: str) -> str:
        if not _PLAIN_STREAM.fullmatch(stream):
            msg = f"the stream id {stream!r} can't be: 1 to 100 letters, digits, '.', '_' and '-'"
            raise ValueError(msg)
        return stream

    @model_validator(mode="after")
    def _check_layout(self) -> DeltaTarget:
        if self.partition_by and self.cluster_by:
            msg = "a Delta table has partition columns or clustering columns, not both"
            raise ValueError(msg)
        return self

    @property
    def is_path(self) -> bool:
        """Whether the table is named by a path."""
        return "/" in self.table or _SCHEME.match(self.table) is not None

    @property
    def local_path(self) -> Path | None:
        """The absolute path on this machine; None for a catalog name or another file system."""
        if not self.is_path:
            return None
        if self.table.startswith("file:"):
            return Path("/" + self.table.removeprefix("file:").lstrip("/"))
        return None if _SCHEME.match(self.table) else Path(self.table).absolute()

    @property
    def location(self) -> str:
        """The path as it is handed to Spark: absolute, with its scheme where it has one. For a path only."""
        return self.table if self.local_path is None else str(self.local_path)

    @property
    def identifier(self) -> str:
        """The table in SQL."""
        if self.is_path:
            return f"delta.{quoted(self.location)}"
        # Already quoted parts may hold dots; both are quoted anew, so that no name can end its own quotes.
        parts = (quoted.replace("``", "`") or plain for quoted, plain in _NAME_PART.findall(self.table))
        return ".".join(map(quoted, parts))

    @property
    def uri(self) -> str | None:
        """The table's URI, where the description alone tells it."""
        if self.local_path is not None:
            return self.local_path.as_uri()
        return self.table if self.is_path else None

    @property
    def transaction_id(self) -> str:
        """The stream's key among the table's transaction ids, which Delta calls `txnAppId`."""
        return f"dagster-kafka-flip/{self.stream}"

    def __str__(self) -> str:
        return self.location if self.is_path else self.table
