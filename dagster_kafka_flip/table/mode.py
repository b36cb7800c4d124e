"""How a batch's rows are written to the table: they are appended, replace the row of their key, or end it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import field_validator, model_validator

from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.names import check_column_names

if TYPE_CHECKING:
    from collections.abc import Mapping


class Append(Settings):
    """Each row of a batch is added to the table."""


class _Keyed(Settings):
    """Rows have a key."""

    key: tuple[str, ...]

    @field_validator("key")
    @classmethod
    def _check_key(cls, key: tuple[str, ...]) -> tuple[str, ...]:
        if not key:
            raise ValueError("key: name at least one column")
        check_column_names("key", key)
        return key


class Upsert(_Keyed):
    """The table holds the current row of each key: a row of a batch replaces the one with its key, or deletes it.

    A row is a delete if its column `kafka_deleted` (with the prefix of KafkaColumns) is true. It is true for
    tombstones: records with a null value. The transform gets this column and may set it for other rows. It must keep
    it, and the record's topic, partition and offset. The table has all columns but `kafka_deleted`.

    Attributes:
        key: The columns that identify a row, never null. A tombstone's are filled from the key's fields of these names.
        order_by: The column whose higher value is the newer change of a key, for keys in several topic partitions.
            Needs `soft_delete`. Default: the offset, within one topic partition.
        soft_delete: Whether deleted rows stay, with the column `kafka_deleted`. Default: no.
    """

    order_by: str | None = None
    soft_delete: bool = False

    @model_validator(mode="after")
    def _check_order(self) -> Upsert:
        if self.order_by is None:
            return self
        if not self.soft_delete:
            raise ValueError(
                "order_by needs soft_delete=True: once a row is deleted, nothing is left to compare with, so an older "
                "change that is read later would bring it back"
            )
        if self.order_by.lower() in {name.lower() for name in self.key}:
            raise ValueError(f"order_by: {self.order_by!r} is a column of the key")
        return self


class Scd2(_Keyed):
    """The table holds the history of each key (a slowly changing dimension of type 2).

    Each change of a key ends the row that was valid (`valid_to`, `is_current`), and adds one that is valid from then on
    (`valid_from`); a delete only ends it. The times are those of the records; changes follow each other by offset.
    Deletes, and the columns that a transform must keep, are as in `Upsert`; it must also keep the record's timestamp.

    Attributes:
        key: The columns that identify what a row is about; see `Upsert`.
    """


Mode = Append | Upsert | Scd2


def key_of(mode: Mode) -> tuple[str, ...]:
    return () if isinstance(mode, Append) else mode.key


def kind_of(mode: Mode) -> dict[str, Any]:
    """A mode's options besides the key, as JSON; empty for `Append` and plain `Upsert`."""
    if isinstance(mode, Upsert):
        settings = {"order_by": mode.order_by, "soft_delete": mode.soft_delete}
        return {name: value for name, value in settings.items() if value}
    return {"history": True} if isinstance(mode, Scd2) else {}


def mode_of(key: tuple[str, ...], kind: Mapping[str, Any]) -> Mode:
    if not key:
        return Append()
    return Scd2(key=key) if kind.get("history") else Upsert(key=key, **kind)


def same_mode(one: Mode, other: Mode) -> bool:
    """Whether two modes are the same; order and case of a key's columns don't matter."""
    keys = [sorted(name.lower() for name in key_of(mode)) for mode in (one, other)]
    kinds = [{name: str(value).lower() for name, value in kind_of(mode).items()} for mode in (one, other)]
    return keys[0] == keys[1] and kinds[0] == kinds[1]


def written(mode: Mode) -> str:
    if isinstance(mode, Append):
        return "Append()"
    options = [f"key=[{', '.join(map(repr, mode.key))}]"]
    if isinstance(mode, Upsert):
        options += [f"{name}={value!r}" for name, value in kind_of(mode).items()]
    return f"{type(mode).__name__}({', '.join(options)})"
