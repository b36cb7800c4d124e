"""DeltaTarget: describes the table of a stream."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pydantic import Field, field_validator, model_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.names import check_column_names
from dagster_kafka_flip.table.mode import Append, Scd2, Upsert, key_of
from dagster_kafka_flip.table.sql import quoted

_NAME_PART = re.compile(r"`((?:[^`]|``)+)`|([^.]+)")
_QUOTED = re.compile(r"`(?:[^`]|``)+`")
_NO_PLACE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:/*")
# Delta finds no table in the root of a store.
_ROOT = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/]*/*")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
# SQL syntax for a table by path.
_SQL_PATH = re.compile(r"delta\.`((?:[^`]|``)+)`", re.IGNORECASE)
_PARAMETER = re.compile(r"\?[^/]*=")
_PLAIN_NAME = re.compile(r"\w+")
# Schemes that Spark can read but not write.
_WEB = frozenset({"ftp", "http", "https", "sftp"})
# Three schemes of the same store.
_S3 = frozenset({"s3", "s3a", "s3n"})
DEFAULT_CATALOG = "spark_catalog"
DEFAULT_SCHEMA = "default"
TRANSACTION_PREFIX = "dagster-kafka-flip/"
_PLAIN_STREAM = re.compile(r"[A-Za-z0-9_.-]{1,100}")
# Replaced for an asset for each topic (assets/asset_per_topic.py).
_PLACEHOLDER = re.compile(r"\{(?:topic|name)\}")


class DeltaTarget(Settings):
    """A Delta table, by path or catalog name, and the stream that writes to it.

    Attributes:
        table: A path (with a slash, or a scheme such as `s3a:`) or a catalog name such as `lake.flights`. Relative
            paths start at the working directory.
        stream: Id of the stream: keep it when you rename asset or topics. Default: `main`.
        mode: How rows are written, such as `Upsert(key=["id"])`.
        partition_by: Partition columns, when the table is created.
        cluster_by: Liquid clustering columns, when the table is created.
        properties: Delta table properties, when the table is created.
        schema_evolution: Whether to add missing columns to the table, and to widen types if its property
            `delta.enableTypeWidening` is `true`.
        single_writer: Confirms that only one process at a time writes here. Required on stores without concurrent
            writers (`oss://`; `s3://`, `s3a://` without a commit coordinator).
    """

    table: str = Field(min_length=1)
    stream: str = "main"
    mode: Append | Upsert | Scd2 = Append()
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = Field(default_factory=dict[str, str])
    schema_evolution: bool = False
    single_writer: bool = False

    @classmethod
    def of(cls, table: DeltaTarget | str | PathLike[str]) -> DeltaTarget:
        """Creates a target with defaults from a path or name.

        Raises:
            ConfigurationError: The value is not a DeltaTarget, path or name, or its stream has a placeholder.
        """
        if isinstance(table, DeltaTarget):
            if _PLACEHOLDER.search(table.stream):
                raise ConfigurationError(
                    f"the stream id {table.stream!r} is for an asset for each topic: use build_kafka_delta_assets, or "
                    "write the id without braces"
                )
            return table
        expect("table", table, (str, PathLike, DeltaTarget), '"lake/orders"')
        return cls(table=os.fspath(table))

    @field_validator("table", mode="before")
    @classmethod
    def _take_paths(cls, table: Any) -> Any:
        return os.fspath(table) if isinstance(table, PathLike) else table

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: str) -> str:
        if _NO_PLACE.fullmatch(table):
            raise ValueError(f"the table {table!r} has a scheme but no path; write it like s3a://bucket/orders")
        # Before the others, whose errors show the table: also where a space or an invisible character hides its scheme.
        _check_scheme(_place("".join(filter(str.isprintable, table)).strip()))
        if _ROOT.fullmatch(_place(table)):
            msg = f"the table {table!r} is a whole store, and not a folder in it; write it like s3a://bucket/orders"
            raise ValueError(msg)
        if table != table.strip():
            raise ValueError(f"the table {table!r} begins or ends with a space; remove it")
        if not table.isprintable():
            raise ValueError(f"the table {table!r} contains an invisible character, such as a newline; remove it")
        if "${" in table:
            raise ValueError(f"the table {table!r} contains ${{, which Spark's SQL replaces; rename the folder")
        if _place(table).startswith("~"):
            raise ValueError(
                f"the table {table!r} begins with ~, which only a shell expands; write the full path, or "
                "./~ for a folder of that name"
            )
        is_name = "/" not in table and not _SCHEME.match(table)
        if is_name and not all(_QUOTED.sub("quoted", table).split(".")):
            msg = (
                f"the table {table!r} is neither a path nor a catalog name; write lake/orders, or catalog.schema.table"
            )
            raise ValueError(msg)
        return table

    @field_validator("stream")
    @classmethod
    def _check_stream(cls, stream: str) -> str:
        if not _PLAIN_STREAM.fullmatch(_PLACEHOLDER.sub("topic", stream)):
            raise ValueError(f"invalid stream id {stream!r}: use 1 to 100 letters, digits, '.', '_' and '-'")
        return stream

    @field_validator("mode", mode="before")
    @classmethod
    def _check_mode(cls, mode: Any) -> Any:
        if not isinstance(mode, (Append, Upsert, Scd2)):
            raise ValueError('mode: expected Append(), Upsert(key=["id"]) or Scd2(key=["id"])')  # noqa: TRY004 - pydantic reports only a ValueError
        return mode

    @model_validator(mode="after")
    def _check_layout(self) -> DeltaTarget:
        if self.partition_by and self.cluster_by:
            raise ValueError("a Delta table can have partition columns or clustering columns, not both")
        for option in ("partition_by", "cluster_by"):
            check_column_names(option, getattr(self, option))
        return self

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row; empty if rows are appended."""
        return key_of(self.mode)

    @property
    def is_path(self) -> bool:
        place = _place(self.table)
        return "/" in place or _SCHEME.match(place) is not None

    @property
    def local_path(self) -> Path | None:
        """The absolute local path; None for a catalog name or another file system.

        Resolves `..` as the file system does; Spark removes it textually, which differs after a link.
        """
        if not self.is_path:
            return None
        place = _place(self.table)
        if place[:5].lower() == "file:":
            place = place[5:]
        elif _SCHEME.match(place):
            return None
        if place.startswith("/"):
            # Spark takes what follows two slashes for a host, and Python keeps them.
            place = f"/{place.lstrip('/')}"
        return Path(os.path.normpath(Path(place).absolute()))

    @property
    def location(self) -> str:
        """The path for Spark: absolute, with its scheme if it has one. Only for a path."""
        return _place(self.table) if self.local_path is None else str(self.local_path)

    @property
    def identity(self) -> str:
        """Normalized name of the table: two targets are the same table if their identity is equal.

        A local path without links, `..` or a trailing slash; a URI likewise, with one scheme for S3; a catalog name in
        lower case without unnecessary quotes. Does not detect that a path and a catalog name, or two links on another
        machine, refer to the same table.
        """
        path = self.local_path
        if path is not None:
            return os.path.realpath(path)
        if self.is_path:
            scheme, _, rest = _place(self.table).partition(":")
            scheme = "s3a" if scheme.lower() in _S3 else scheme.lower()
            authority, slash, inside = rest[2:].partition("/") if rest.startswith("//") else ("", "/", rest.lstrip("/"))
            inside = posixpath.normpath(slash + inside.lstrip("/")).lstrip("/") if inside else ""
            return f"{scheme}://{authority}/{inside}".rstrip("/")
        parts = [part.lower() for part in self.name_parts]
        if len(parts) > 2 and parts[0] == DEFAULT_CATALOG:  # noqa: PLR2004 - catalog, schema, table
            parts = parts[1:]
        if len(parts) == 1:
            parts = [DEFAULT_SCHEMA, *parts]
        return ".".join(part if _PLAIN_NAME.fullmatch(part) else quoted(part) for part in parts)

    def is_nested_with(self, other: DeltaTarget) -> bool:
        """Whether one of two paths is in the folder of the other, where VACUUM treats its files as unused."""
        one, two = f"{self.identity}/", f"{other.identity}/"
        return self.is_path and other.is_path and one != two and (one.startswith(two) or two.startswith(one))

    @property
    def name_parts(self) -> list[str]:
        return [inside.replace("``", "`") or plain for inside, plain in _NAME_PART.findall(self.table)]

    @property
    def identifier(self) -> str:
        if self.is_path:
            return f"delta.{quoted(self.location)}"
        # Quotes all parts again: quoted parts may contain dots, and no name can end its own quotes.
        return ".".join(map(quoted, self.name_parts))

    @property
    def uri(self) -> str | None:
        """The table's URI, if known from the description alone."""
        if self.local_path is not None:
            return self.local_path.as_uri()
        return _place(self.table) if self.is_path else None

    @property
    def transaction_id(self) -> str:
        """The stream's application id in the table's transactions (Delta's `txnAppId`)."""
        return f"{TRANSACTION_PREFIX}{self.stream}"

    def __str__(self) -> str:
        return self.location if self.is_path else self.table


def _place(table: str) -> str:
    """Returns the path, also from SQL syntax; otherwise the name unchanged."""
    in_sql = _SQL_PATH.fullmatch(table)
    return table if in_sql is None else in_sql[1].replace("``", "`")


def _has_password(rest: str) -> bool:
    """Whether the part of a URI behind its scheme has a password before the host."""
    authority, _, path = rest.removeprefix("//").partition("/")
    login, at, _ = unquote(authority).rpartition("@")
    if at:
        return ":" in login
    # A slash in the password, which ends the host's part too early: then no port is behind the colon.
    _, colon, port = authority.rpartition(":")
    return "@" in path and bool(colon) and not port.isdigit()


def _check_scheme(place: str) -> None:
    """Rejects invalid table URIs. The error does not show them, because they may contain passwords."""
    scheme, _, rest = place.partition(":")
    if not _SCHEME.match(place):
        return
    if _has_password(rest):
        raise ValueError(
            "the table's URI has a password, which logs, metadata and asset names would show; give Spark the store's "
            "credentials in its config, such as spark.hadoop.fs.s3a.secret.key"
        )
    if scheme.lower() in _WEB:
        raise ValueError(
            f"the table begins with {scheme}:, a web address, which Spark can't write to; use the store's scheme, "
            "such as s3a://bucket/orders or abfss://container@account.dfs.core.windows.net/orders"
        )
    if scheme.lower() == "file":
        # Spark would treat the host, or a relative path, as a folder at the root.
        if not rest.startswith("/") or (rest.startswith("//") and not rest.startswith("///")):
            msg = "the table begins with file:, but has no absolute path; write it like file:///srv/lake/orders"
            raise ValueError(msg)
        return
    if _PARAMETER.search(rest):
        raise ValueError(
            "the table's URI has parameters after a question mark, such as a signature, which Spark would take for a "
            "part of a folder's name, and logs, metadata and asset names would show; remove them, and give Spark the "
            "store's credentials in its config"
        )
    if not rest.startswith("/"):
        raise ValueError(f"the table begins with {scheme}:, but has no slash; write it like s3a://bucket/orders")
