"""CsvFormat: one row of CSV as typed columns."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationInfo, field_validator, model_validator

from dagster_kafka_flip.formats.column_types import SCALARS, ColumnType
from dagster_kafka_flip.formats.format import Format
from dagster_kafka_flip.formats.jvm_decoder import LibraryFormat

# Characters that end a row, or that no row may have.
_REFUSED = {"\r": "a line break", "\n": "a line break", "\x00": "U+0000"}

_LAST_OF_BMP = 0xFFFF


class CsvFormat(LibraryFormat):
    r"""Decodes one row of CSV into columns with declared types. The fields are in the declared order.

    A value becomes one column per field; a key becomes one STRUCT column.

    Strict: a record is rejected if it is not UTF-8, begins with a byte order mark, is empty, contains U+0000, is not
    exactly one row (with or without a trailing line break), has a quote that is not closed, has more or fewer fields
    than declared, has a value that does not fit its field's type, or a null in a NOT NULL field. A value that would
    change does not fit: a number with more digits than its DECIMAL, one beyond the range of its DOUBLE, a day or a time
    that does not exist.

    A STRING is the field's text unchanged, with its spaces. Without a null literal no field is null: an empty field is
    an empty STRING, and fits no number, day, time or BOOLEAN. BOOLEAN is `true` or `false`, DATE `2026-01-31`,
    TIMESTAMP `2026-01-31 12:00:00.123456` or with a `T`, and with `Z` or an offset such as `+01:00`, without which it
    is of the session's time zone; BINARY is base64. Numbers have a point, and may have an exponent. NaN and Infinity
    fit no type.

    Args:
        schema: The fields, as DDL or a StructType, without nested types.
        delimiter: The character between fields. Default: a comma.
        quote: The character around fields, doubled inside; None for none. Default: `"`.
        escape: A character before a quote or itself inside quotes, instead of doubling. Default: none.
        null_literal: The text that means null. Default: none.
        allow_comments: Whether lines before the row that begin with `#` are left out. Default: no.
        on_error: See Format.

    Attributes:
        declared: The schema, as it was given.
    """

    function = "decode_csv"
    # Each row has all of its fields.
    seen = Format.seen

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    null_literal: str | None = None
    allow_comments: bool = False

    @staticmethod
    def why_not(kind: ColumnType) -> str | None:
        """Why a field of CSV can't have a type."""
        if kind.name in SCALARS:
            return None
        is_nested = kind.name in {"ARRAY", "MAP", "STRUCT", "VARIANT"}
        advice = "a CSV field holds one value; use STRING, and parse it in the transform" if is_nested else "use STRING"
        return f" in CSV; {advice}"

    @field_validator("delimiter", "quote", "escape")
    @classmethod
    def _check_character(cls, character: str | None, info: ValidationInfo) -> str | None:
        if character is None:
            return None
        if len(character) != 1 or ord(character) > _LAST_OF_BMP:
            raise ValueError(f"{info.field_name} must be one character of UTF-16, not {character!r}")
        if character in _REFUSED:
            raise ValueError(f"{info.field_name} can't be {_REFUSED[character]}")
        return character

    @model_validator(mode="after")
    def _check_combination(self) -> CsvFormat:
        if self.escape is not None and self.quote is None:
            raise ValueError("escape only works inside quotes: set quote, or remove escape")
        given = [each for each in (self.delimiter, self.quote, self.escape) if each is not None]
        if len(set(given)) != len(given):
            msg = f"delimiter, quote and escape must be different characters, not {' and '.join(map(repr, given))}"
            raise ValueError(msg)
        if self.allow_comments and "#" in given:
            msg = "allow_comments leaves out lines that begin with #: use # for nothing else, or set it to False"
            raise ValueError(msg)
        return self

    @property
    def function_options(self) -> dict[str, Any]:
        """The characters, and what else decides how a row is read."""
        return self.model_dump(include={"delimiter", "quote", "escape", "null_literal", "allow_comments"})
