"""Which declared and undeclared fields a batch's records have, observed while they are written.

A schema whose names match nothing lands rows full of nulls, and each record is well-formed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.settings.names import counted, first_few

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column

# Undeclared fields may need a second parse, so only about this many records of a batch are sampled.
_SAMPLED = 1000

# Fields that a message names of each kind; the metadata have all.
_MOST_SHOWN = 20

# Among fewer records, an optional field may be missing by chance.
_ENOUGH = 100

MOST_NAMES = 20
"""Number of undeclared fields that are reported."""

_LONGEST_NAME = 100

FIELDS_PER_NUMBER = 63
"""Fields per BIGINT of bits, without the sign."""


@dataclass(frozen=True)
class FieldsSeen:
    """The fields that values and keys have.

    Attributes:
        records: Values that could be decoded, or keys if these are more.
        never: Declared fields that none of them has, or only as null; those inside of a STRUCT as `struct.field`, those
            of keys as `key.field`.
        undeclared: Undeclared fields at the top of values and keys: of about a thousand records of each batch, those of
            the record that has most; no more than 20 names.
        names_fit: Whether any value, and any key, has a declared field; or these are all null, and there are certainly
            no others.
    """

    records: int
    never: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    names_fit: bool = True

    @property
    def is_suspicious(self) -> bool:
        """Whether the schema looks wrong, rather than optional fields missing."""
        if not self.records or not self.never:
            return False
        if not self.names_fit:
            return True
        # A field inside of a STRUCT by its own name, too: the record may have it at its top.
        never = {_letters(part) for name in self.never for part in (name, name.rpartition(".")[2])}
        alike = never & {_letters(name) for name in self.undeclared}
        return bool(alike) or (self.records >= _ENOUGH and bool(self.undeclared))

    def __str__(self) -> str:
        if not self.records:
            return "there were no values"
        never, undeclared = first_few(self.never, _MOST_SHOWN), first_few(self.undeclared, _MOST_SHOWN)
        records = counted(self.records, "record")
        have = "has" if self.records == 1 else "have"
        text = f"none of {records} has {never}" if never else f"{records} {have} every field"
        return text + (f"; undeclared fields: {undeclared}" if undeclared else "")


def merge_fields(seen: Iterable[FieldsSeen | None]) -> FieldsSeen | None:
    """Merges the fields of several batches; None if one is unknown or if there are none."""
    found = list(seen)
    known = [each for each in found if each is not None]
    if not known or len(known) != len(found):
        return None
    with_records = [each for each in known if each.records]
    if not with_records:
        return FieldsSeen(0)
    never = tuple(name for name in with_records[0].never if all(name in each.never for each in with_records))
    undeclared = dict.fromkeys(name for each in with_records for name in each.undeclared)
    return FieldsSeen(
        sum(each.records for each in with_records),
        never,
        tuple(undeclared)[:MOST_NAMES],
        names_fit=any(each.names_fit for each in with_records),
    )


def of_values_and_keys(seen: Iterable[FieldsSeen]) -> FieldsSeen:
    """Merges the fields of the values and of the keys of one batch."""
    with_records = [each for each in seen if each.records]
    return FieldsSeen(
        max((each.records for each in with_records), default=0),
        tuple(name for each in with_records for name in each.never),
        tuple(name for each in with_records for name in each.undeclared)[:MOST_NAMES],
        names_fit=all(each.names_fit for each in with_records),
    )


@dataclass(frozen=True)
class Seen:
    """Which fields a record has, as columns.

    Attributes:
        names: The declared fields.
        bits: A bit for each of them that the record has and that is not null, 63 in a BIGINT.
        undeclared: The names of undeclared fields, as an array. None if they are unknown.
    """

    names: Sequence[str]
    bits: Sequence[Column]
    undeclared: Column | None


class FieldWatch:
    """Observes the fields of a batch's values or keys; `is_decoded` holds for a null, too; `span` is of offsets."""

    def __init__(
        self,
        seen: Seen,
        is_there: Column,
        is_decoded: Column,
        span: int,
        prefix: str = "",
    ) -> None:
        self._names, self._bits, self._undeclared = seen.names, seen.bits, seen.undeclared
        self._is_there = is_there
        self._is_decoded = is_decoded
        # A power of two: Spark writes the number into generated code, and compiles that again for each new one.
        self._each = 1 << max(0, (span // _SAMPLED).bit_length() - 1)
        self._prefix = prefix
        # Not if there is only a sample of them, nor those inside of a STRUCT.
        self._sees_all_names = seen.undeclared is not None and self._each == 1 and not any("." in n for n in seen.names)
        # Names of the metrics and of their columns.
        side = prefix.rstrip(".")
        self._decoded, self._others = f"{side}decoded_fields", f"{side}undeclared"
        self._seen = [f"{side}seen{number}" for number in range(len(seen.bits))]

    def columns(self) -> list[Column]:
        """Returns the columns that the metrics need, to be added to staged records.

        They don't show whether the record could be decoded: Spark computes them together with its problem, not later.
        """
        from pyspark.sql import functions as f

        # One bit for each field: counting the records of each field costs far more.
        found = [
            f.when(self._is_there, bits).alias(_staged(name)) for name, bits in zip(self._seen, self._bits, strict=True)
        ]
        if self._undeclared is not None:
            is_sampled = self._is_there & (f.col("offset") % self._each == 0)
            # Of the record with the most undeclared fields: names of all records have no bound. As text, because an
            # Observation can't return an array.
            number = f.lpad(f.size(self._undeclared).cast("string"), 6, "0")
            names = f.concat(number, f.to_json(f.slice(self._undeclared, 1, MOST_NAMES)))
            # Null if there are none: Spark copies the highest text so far again for every record. Not a part of
            # `is_sampled`: Spark would then ask every record for its names.
            names = f.when(f.size(self._undeclared) > 0, names)
            found.append(f.when(is_sampled, names).alias(_staged(self._others)))
        return found

    def metrics(self) -> list[Column]:
        """Returns the metrics, on records with `columns`."""
        from pyspark.sql import functions as f

        def of_decoded(name: str) -> Column:
            return f.when(self._is_decoded, f.col(_staged(name)))

        found = [f.count(of_decoded(self._seen[0])).alias(self._decoded)]
        found += [f.bit_or(of_decoded(name)).alias(name) for name in self._seen]
        if self._undeclared is not None:
            found.append(f.max(of_decoded(self._others)).alias(self._others))
        return found

    def seen(self, answer: Mapping[str, Any]) -> FieldsSeen:
        """Returns the fields that the observed metrics describe."""
        if not answer[self._decoded]:
            # Tombstones, or records that could not be decoded.
            return FieldsSeen(0)
        never = tuple(
            self._prefix + name
            for number, name in enumerate(self._names)
            if not answer[self._seen[number // FIELDS_PER_NUMBER]] >> number % FIELDS_PER_NUMBER & 1
        )
        undeclared: list[str] = json.loads((answer.get(self._others) or "000000[]")[6:])
        return FieldsSeen(
            int(answer[self._decoded]),
            never,
            tuple(self._prefix + name[:_LONGEST_NAME] for name in undeclared),
            names_fit=len(never) < len(self._names) or (self._sees_all_names and not undeclared),
        )


def _staged(name: str) -> str:
    """Name of a metric's column."""
    return f"_dagster_kafka_flip_{name}"


def _letters(name: str) -> str:
    """The letters that `carrierCode`, `carrier_code` and `CARRIER-CODE` share."""
    return "".join(letter for letter in name.lower() if letter.isalnum()) or name
