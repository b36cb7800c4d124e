"""CsvFormat: one row of CSV as typed columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationInfo, field_validator, model_validator

from dagster_kafka_flip.formats.csv_types import check_csv_types, problems, value_of
from dagster_kafka_flip.formats.declared import DeclaredFormat
from dagster_kafka_flip.formats.format import OnError  # noqa: TC001 -- shown in the reference of options
from dagster_kafka_flip.settings.arguments import check_arguments

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructField, StructType

# Spark's parser puts a record with a different number of fields here.
_CORRUPT = "corrupt"

_MISFIT = "not one row of CSV"
_COUNT = "has a different number of fields than declared"

# Characters with another meaning: they end a row, or mean "no character" to Spark.
_REFUSED = {"\r": "a line break", "\n": "a line break", "\x00": "U+0000"}

_LAST_OF_BMP = 0xFFFF

# With more fields in a record, Spark's parser ends the query, and its error quotes the record.
_MOST_FIELDS = 20_480


class CsvFormat(DeclaredFormat):
    r"""Decodes one row of CSV into columns with declared types. The fields are in the declared order.

    A value becomes one column per field; a key becomes one STRUCT column.

    Strict: a record is rejected if it is not UTF-8, begins with a byte order mark, is empty, contains U+0000, is not
    exactly one row (with or without a trailing line break), has a quote that is not closed, has more or fewer fields
    than declared, has a value that does not fit its field's type, or a null in a NOT NULL field. A value that Spark
    would change does not fit: a number with more digits than its DECIMAL, one beyond the range of its DOUBLE, a day or
    a time that does not exist.

    A STRING is the field's text unchanged, with its spaces. Without a null literal no field is null: an empty field is
    an empty STRING, and fits no number, day, time or BOOLEAN. BOOLEAN is `true` or `false`, DATE `2026-01-31`,
    TIMESTAMP `2026-01-31 12:00:00.123456` or with a `T`, and with `Z` or an offset such as `+01:00`, without which it
    is of the session's time zone; BINARY is base64. Numbers have a point, and may have an exponent. NaN and Infinity
    fit no type.

    Args:
        schema: The fields, as DDL such as `carrier STRING NOT NULL, flight INT`, or as a StructType. Nested types are
            refused.
        delimiter: The character between two fields. Default: a comma.
        quote: The character around a field that holds a delimiter or a line break; it is doubled inside. None if there
            is none. Default: `"`.
        escape: A character before a quote or itself inside quotes, instead of a doubled quote. A record with an escape
            elsewhere is rejected. Default: none.
        null_literal: The text that means null, quoted or not. Default: none.
        allow_comments: Whether lines before the row that begin with `#` are left out. Default: no.
        on_error: See Format.

    Attributes:
        declared: The schema, as it was given.
    """

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    null_literal: str | None = None
    allow_comments: bool = False

    @check_arguments
    def __init__(
        self,
        schema: str | StructType,
        *,
        delimiter: str = ",",
        quote: str | None = '"',
        escape: str | None = None,
        null_literal: str | None = None,
        allow_comments: bool = False,
        on_error: OnError = "fail",
    ) -> None:
        super().__init__(
            declared=schema,  # pyright: ignore[reportCallIssue]
            delimiter=delimiter,  # pyright: ignore[reportCallIssue]
            quote=quote,  # pyright: ignore[reportCallIssue]
            escape=escape,  # pyright: ignore[reportCallIssue]
            null_literal=null_literal,  # pyright: ignore[reportCallIssue]
            allow_comments=allow_comments,  # pyright: ignore[reportCallIssue]
            on_error=on_error,
        )

    @classmethod
    def check_types(cls, schema: str | StructType) -> None:
        """Refuses types that a field of CSV can't hold."""
        check_csv_types(schema)

    @field_validator("delimiter", "quote", "escape")
    @classmethod
    def _check_character(cls, character: str | None, info: ValidationInfo) -> str | None:
        if character is None:
            return None
        if len(character) != 1 or ord(character) > _LAST_OF_BMP:
            msg = f"{info.field_name} must be one character of UTF-16, not {character!r}"
            raise ValueError(msg)
        if character in _REFUSED:
            msg = f"{info.field_name} can't be {_REFUSED[character]}"
            raise ValueError(msg)
        return character

    @model_validator(mode="after")
    def _check_combination(self) -> CsvFormat:
        if self.escape is not None and self.quote is None:
            msg = "escape only works inside quotes: set quote, or remove escape"
            raise ValueError(msg)
        given = [each for each in (self.delimiter, self.quote, self.escape) if each is not None]
        if len(set(given)) != len(given):
            msg = f"delimiter, quote and escape must be different characters, not {' and '.join(map(repr, given))}"
            raise ValueError(msg)
        return self

    def parse(self, data: Column) -> Column:
        """The values as a struct, and beside it what is wrong with the row's fields."""
        from pyspark.sql import functions as f

        fields = self.struct().fields
        declared = ", ".join([*(f"{_field(number)} STRING" for number in range(len(fields))), f"{_CORRUPT} STRING"])
        row = self._row(data)
        cells = f.from_csv(f.when(self._can_be_cut(row), row), declared, self._options())

        def typed(row: Column) -> Column:
            values = [
                value_of(field.dataType, self._text(row, number)).alias(field.name)
                for number, field in enumerate(fields)
            ]
            return f.struct(row.alias("row"), f.struct(*values).alias("values"))

        def checked(both: Column) -> Column:
            row, values = both.getField("row"), both.getField("values")
            return f.struct(values.alias("values"), self._wrong(row, values).alias("wrong"))

        # Transforms, so that a row is cut once for all fields and a text is cast once, outside of Spark's generated
        # code for each record: Java does not compile methods of more than 8,000 bytes.
        done = f.transform(f.transform(f.array(cells), typed), checked)
        return f.when(data.isNotNull(), f.get(done, f.lit(0)))

    def prepared(self, data: Column) -> Column | None:
        """The record as text: Spark copies the bytes each time that it makes a text of them."""
        return data.cast("string")

    def problem(self, data: Column, parsed: Column) -> Column | None:
        """The first rule that the record breaks."""
        from pyspark.sql import functions as f

        text, row = data.cast("string"), self._row(data)
        problem = (
            f.when(~f.is_valid_utf8(text), f.lit("not valid UTF-8"))
            .when(text.startswith("\ufeff"), f.lit("begins with a byte order mark"))
            .when(row == f.lit(""), f.lit("has no row" if self.allow_comments else "empty"))
            # Spark's parser drops it at the edges of a field with quotes.
            .when(row.contains("\x00"), f.lit("contains U+0000"))
            .when(~self._is_one_row(row), f.lit(_MISFIT))
            .otherwise(parsed.getField("wrong"))
        )
        return f.when(data.isNotNull(), problem)

    def explain(self, data: Column, problem: Column) -> Column:
        """How many fields the row has, if it is not the declared number."""
        from pyspark.sql import functions as f

        row = self._row(data)
        if self.quote is not None:
            row = f.regexp_replace(row, _quoted(self.quote, self.escape), "")
        counted = f.concat(
            f.lit("has "),
            self._delimiters(row) + f.lit(1),
            f.lit(f" fields, but {len(self.struct().fields)} are declared"),
        )
        return f.when(problem == f.lit(_COUNT), counted).otherwise(problem)

    def column(self, field: StructField, parsed: Column) -> Column:
        """The field's value."""
        return parsed.getField("values").getField(field.name)

    def as_one(self, parsed: Column) -> Column:
        """The values as one struct."""
        return parsed.getField("values")

    def _row(self, data: Column) -> Column:
        """The record without leading comments and without a trailing line break."""
        from pyspark.sql import functions as f

        row = data.cast("string")
        if self.allow_comments:
            is_commented = row.startswith("#")
            row = f.when(is_commented, f.regexp_replace(row, r"\A(?:#[^\n]*+(?:\n|\z))++", "")).otherwise(row)
        return f.when(row.endswith("\n"), f.regexp_replace(row, r"\r?\n\z", "")).otherwise(row)

    def _options(self) -> dict[str, str]:
        quote = self.quote or ""
        return {
            "mode": "PERMISSIVE",
            "columnNameOfCorruptRecord": _CORRUPT,
            # Spark takes a backslash for the start of an escape.
            "sep": "\\\\" if self.delimiter == "\\" else self.delimiter,
            "quote": quote,
            **({} if self.quote is None else {"escape": self.escape or quote}),
            **({} if self.escape is None else {"charToEscapeQuoteEscaping": self.escape}),
            # An empty text is null to Spark, quoted or not, and no other text is.
            "nullValue": "",
            "emptyValue": "",
        }

    def _is_one_row(self, row: Column) -> Column:
        """Whether Spark's parser and Flink's see the same fields in it."""
        # Without any of these characters there is nothing to doubt.
        doubtful = ["\r", "\n", *(each for each in (self.quote, self.escape) if each is not None)]
        is_plain = ~row.contains(doubtful[0])
        for character in doubtful[1:]:
            is_plain &= ~row.contains(character)
        return is_plain if self.quote is None else is_plain | row.rlike(self._fields_in(self.quote, "*+"))

    def _can_be_cut(self, row: Column) -> Column:
        """Whether Spark's parser takes a row, whose number of fields is wrong otherwise."""
        from pyspark.sql import functions as f

        # A short row has few, and to look at its length costs almost nothing.
        has_few = (f.octet_length(row) < f.lit(_MOST_FIELDS)) | (self._delimiters(row) < f.lit(_MOST_FIELDS))
        if self.quote is None:
            return has_few
        return has_few | row.rlike(self._fields_in(self.quote, f"{{0,{_MOST_FIELDS - 1}}}+"))

    def _delimiters(self, row: Column) -> Column:
        """How many delimiters there are, quoted or not."""
        from pyspark.sql import functions as f

        return f.length(row) - f.length(f.replace(row, f.lit(self.delimiter), f.lit("")))

    def _fields_in(self, quote: str, further: str) -> str:
        """A pattern of one row: a field, and as many further ones as the quantifier says."""
        delimiter = _in_pattern(self.delimiter)
        # Spark's parser looks for a quote behind spaces, too.
        not_in = rf"{delimiter}\r\n{_in_pattern(self.escape or self.delimiter)}"
        plain = rf"(?![\x00- &&[^{delimiter}]]*+{_in_pattern(quote)})[^{not_in}]*+"
        field = f"(?:{_quoted(quote, self.escape)}|{plain})"
        return rf"\A{field}(?:{delimiter}{field}){further}\z"

    def _text(self, row: Column, number: int) -> Column:
        """A field's text; null if it is the null literal."""
        from pyspark.sql import functions as f

        text = f.coalesce(row.getField(_field(number)), f.lit(""))
        return text if self.null_literal is None else f.when(text != f.lit(self.null_literal), text)

    def _wrong(self, row: Column, values: Column) -> Column:
        from pyspark.sql import functions as f

        wrong = f.when(row.isNull() | row.getField(_CORRUPT).isNotNull(), f.lit(_COUNT))
        for number, field in enumerate(self.struct().fields):
            text = self._text(row, number)
            if not field.nullable and self.null_literal is not None:
                wrong = wrong.when(text.isNull(), f.lit(f"the required field {field.name} is null"))
            for what, is_so in problems(field.dataType, text, values.getField(field.name)):
                wrong = wrong.when(text.isNotNull() & is_so, f.lit(f"the value of {field.name} {what}"))
        return wrong


def _field(number: int) -> str:
    return f"field{number}"


def _in_pattern(character: str) -> str:
    return rf"\x{{{ord(character):x}}}"


def _quoted(quote: str, escape: str | None) -> str:
    """A pattern of a quoted field. Possessive, so that Java does not recurse on long texts."""
    mark = _in_pattern(quote)
    if escape is None:
        return f"{mark}(?:[^{mark}]++|{mark}{mark})*+{mark}"
    sign = _in_pattern(escape)
    return f"{mark}(?:[^{mark}{sign}]++|{sign}[{mark}{sign}])*+{mark}"
