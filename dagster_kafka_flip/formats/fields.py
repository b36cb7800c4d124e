"""Which declared fields a batch's records have, and which undeclared ones: told without a pass of its own.

A schema whose names match nothing lands rows full of nulls, and each record is well-formed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column

# To find undeclared fields the record is parsed once more. So only about that many records of a batch are.
_SAMPLED = 1000

# Fewer records may have no optional field by chance.
_ENOUGH = 100

MOST_NAMES = 20
"""Names of undeclared fields that are told."""

_LONGEST_NAME = 100

# Fields of which one number can tell whether they were seen: a BIGINT without its sign.
_BITS = 63


@dataclass(frozen=True)
class FieldsSeen:
    """What was seen of the fields of values and keys.

    Attributes:
        records: Values that could be decoded, or keys if these are more.
        never: Declared fields that none of them has, or only as null; those inside of a STRUCT as `struct.field`, those
            of keys as `key.field`.
        undeclared: Fields at the top of values and keys that are not declared, of one of about a thousand records in
            each batch, that which has most of them; no more than 20 names.
        is_any: Whether any value, and any key, has a declared field.
    """

    records: int
    never: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    is_any: bool = True

    @property
    def is_suspicious(self) -> bool:
        """Whether the schema looks wrong, and not only as if optional fields were left out."""
        if not self.records or not self.never:
            return False
        if not self.is_any:
            return True
        # A field inside of a STRUCT by its own name, too: the record may have it at its top.
        never = {_letters(part) for name in self.never for part in (name, name.rpartition(".")[2])}
        alike = never & {_letters(name) for name in self.undeclared}
        return bool(alike) or (self.records >= _ENOUGH and bool(self.undeclared))

    def __str__(self) -> str:
        if not self.records:
            return "there was no value to look at"
        never, undeclared = ", ".join(self.never), ", ".join(self.undeclared)
        told = f"of {self.records} records none has {never}" if never else f"{self.records} records have every field"
        return told + (f"; fields that are not declared: {undeclared}" if undeclared else "")


def together(seen: Iterable[FieldsSeen | None]) -> FieldsSeen | None:
    """What was seen of several batches; None if nothing is known of one of them, or if there is none.

    Args:
        seen: Of each batch.
    """
    found = list(seen)
    known = [each for each in found if each is not None]
    if not known or len(known) != len(found):
        return None
    told = [each for each in known if each.records]
    if not told:
        return FieldsSeen(0)
    never = tuple(name for name in told[0].never if all(name in each.never for each in told))
    undeclared = dict.fromkeys(name for each in told for name in each.undeclared)
    return FieldsSeen(
        sum(each.records for each in told),
        never,
        tuple(undeclared)[:MOST_NAMES],
        is_any=any(each.is_any for each in told),
    )


def of_values_and_keys(seen: Iterable[FieldsSeen]) -> FieldsSeen:
    """What was seen of the values and of the keys of one batch.

    Args:
        seen: Of each of the two that declares fields.
    """
    told = [each for each in seen if each.records]
    return FieldsSeen(
        max((each.records for each in told), default=0),
        tuple(name for each in told for name in each.never),
        tuple(name for each in told for name in each.undeclared)[:MOST_NAMES],
        is_any=all(each.is_any for each in told),
    )


class FieldWatch:
    """What is to be observed of a batch's values for it, or of its keys.

    Args:
        fields: Declared fields by name, each as a column that is null where the record doesn't have it.
        undeclared: The names of undeclared fields, as an array.
        is_decoded: Whether the record has a value, and it could be decoded.
        span: Offsets of the batch.
        prefix: What names are told with.
    """

    def __init__(
        self,
        fields: Sequence[tuple[str, Column]],
        undeclared: Column | None,
        is_decoded: Column,
        span: int,
        prefix: str = "",
    ) -> None:
        self._fields = fields
        self._undeclared = undeclared
        self._is_decoded = is_decoded
        self._each = max(1, span // _SAMPLED)
        self._prefix = prefix
        # Names of the metrics.
        side = prefix.rstrip(".")
        self._decoded, self._names, self._seen = f"{side}decoded", f"{side}undeclared", f"{side}seen"

    def metrics(self) -> list[Column]:
        """What is to be observed, of records as the decoder has staged them."""
        from pyspark.sql import functions as f

        found = [f.count(f.when(self._is_decoded, f.lit(1))).alias(self._decoded)]
        # A bit for each field: to count the records of each costs far more, with every record.
        for first in range(0, len(self._fields), _BITS):
            bits = [
                f.when(column.isNotNull(), f.lit(1 << bit)).otherwise(f.lit(0)).cast("bigint")
                for bit, (_, column) in enumerate(self._fields[first : first + _BITS])
            ]
            seen = reduce(lambda one, other: one.bitwiseOR(other), bits)
            found.append(f.bit_or(f.when(self._is_decoded, seen)).alias(f"{self._seen}{first}"))
        if self._undeclared is not None:
            is_sampled = self._is_decoded & (f.col("offset") % f.lit(self._each) == f.lit(0))
            # Of the record that has most of them: to gather the names of all records has no bound. As text, because an
            # Observation can't answer with an array.
            number = f.lpad(f.size(self._undeclared).cast("string"), 6, "0")
            names = f.concat(number, f.to_json(f.slice(self._undeclared, 1, MOST_NAMES)))
            found.append(f.max(f.when(is_sampled, names)).alias(self._names))
        return found

    def seen(self, answer: Mapping[str, Any]) -> FieldsSeen:
        """What was seen.

        Args:
            answer: What was observed.
        """
        if not answer[self._decoded]:
            # Tombstones, or records that could not be decoded.
            return FieldsSeen(0)
        never = tuple(
            self._prefix + name
            for number, (name, _) in enumerate(self._fields)
            if not answer[f"{self._seen}{number - number % _BITS}"] >> number % _BITS & 1
        )
        undeclared: list[str] = json.loads((answer.get(self._names) or "000000[]")[6:])
        return FieldsSeen(
            int(answer[self._decoded]),
            never,
            tuple(self._prefix + name[:_LONGEST_NAME] for name in undeclared),
            is_any=len(never) < len(self._fields),
        )


def _letters(name: str) -> str:
    """A name as `carrierCode`, `carrier_code` and `CARRIER-CODE` have in common."""
    return "".join(letter for letter in name.lower() if letter.isalnum()) or name
