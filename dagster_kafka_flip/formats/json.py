"""JsonFormat: a JSON object as typed columns."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from dagster_kafka_flip.formats.declared import DeclaredFormat
from dagster_kafka_flip.formats.format import OnError  # noqa: TC001 -- shown in the reference of options
from dagster_kafka_flip.formats.json_changes import as_declared, changes, doubt, exact, with_room
from dagster_kafka_flip.formats.json_types import check_json_types
from dagster_kafka_flip.settings import check_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField, StructType


# Where Spark's parser puts a record it could not parse; taken out again before anyone sees it.
_CORRUPT = "_dagster_kafka_flip_corrupt"

_MISFIT = "not valid JSON, or a value does not fit its field's type"

# A longer type, of a STRUCT with many fields, is cut.
_LONGEST_TYPE = 60

# What an error quotes of a value.
_LONGEST_VALUE = 40

_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false"}


class JsonFormat(DeclaredFormat):
    """Decodes a JSON object into columns with declared types.

    As a value format its fields become columns of their own; as a key format it is one STRUCT column.

    Strict: a record is rejected if it is no UTF-8, no JSON object, holds a value that does not fit its field's type, or
    lacks a field that is declared NOT NULL. A value that Spark would change does not fit: a number with more digits
    than its DECIMAL holds, one beyond the range of its DOUBLE, half of a surrogate pair. Fields that are not declared
    are left out. A STRING field takes any JSON value as its text, as Spark does, so that nested JSON can be landed
    unparsed. Text behind the object's closing brace is not looked at.

    Args:
        schema: The fields, as DDL such as `carrier STRING NOT NULL, flight INT`, or as a StructType.
        on_error: See Format.
        show_values: Whether the error about a rejected record quotes the start of each value that does not fit its
            field, 40 characters at most. Default: no, since more people read logs than tables.

    Attributes:
        declared: The schema, as it was given.
    """

    show_values: bool = False

    @check_arguments
    def __init__(self, schema: str | StructType, *, on_error: OnError = "fail", show_values: bool = False) -> None:
        super().__init__(declared=schema, on_error=on_error, show_values=show_values)  # pyright: ignore[reportCallIssue]

    @classmethod
    def check_types(cls, schema: str | StructType) -> None:
        """Refuses types that Spark can't read from JSON."""
        check_json_types(schema)

    def parse(self, data: Column) -> Column:
        """The parsed struct, with the text of what could not be parsed in a field of its own."""
        return _parsed(data, with_room(self.struct()).fields)

    def problem(self, data: Column, parsed: Column) -> Column | None:
        """The first rule that the record breaks."""
        from pyspark.sql import functions as f

        text = data.cast("string")
        # To Spark an empty text and an array are no errors: it makes nulls of the one, keeps one element of the other.
        # The first character is almost always enough, and costs far less than a regular expression.
        is_object = text.startswith("{") | text.rlike(r"\A[ \t\r\n]*\{")
        problem = (
            f.when(~f.is_valid_utf8(text), f.lit("not valid UTF-8"))
            .when(~is_object, f.lit("not a JSON object"))
            .when(
                _is_corrupt(parsed),
                f.lit(_MISFIT),
            )
        )
        for path, is_missing in _required(self.struct(), parsed, ""):
            problem = problem.when(is_missing, f.lit(f"the required field {path} is missing or null"))
        for message, is_so in changes(self.struct(), parsed, text):
            problem = problem.when(is_so, f.lit(message))
        problem = f.when(data.isNotNull(), problem)
        is_doubtful = doubt(self.struct(), text, parsed)
        if is_doubtful is None:
            return problem
        return f.coalesce(problem, f.when(is_doubtful, exact(self.struct(), text, _OPTIONS)))

    def explain(self, data: Column, problem: Column) -> Column:
        """Which fields the values don't fit. It parses the record once for each field."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType, StructField

        struct = self.struct()
        fits = [
            f.when(_is_corrupt(_parsed(data, [field])), self._misfit(data, declared))
            for field, declared in zip(with_room(struct).fields, struct.fields, strict=True)
        ]
        # A text takes any JSON.
        is_no_json = _is_corrupt(_parsed(data, [StructField(f"{_CORRUPT}_any", StringType())]))
        found = f.when(is_no_json, f.lit("not valid JSON")).otherwise(f.concat_ws(", ", *fits))
        return f.when((problem == f.lit(_MISFIT)) & (f.length(found) > 0), found).otherwise(problem)

    def _misfit(self, data: Column, field: StructField) -> Column:
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType, StructField

        message = f.lit(f"the value of {field.name} does not fit {_short(field)}")
        if not self.show_values:
            return message
        # As a text, a field takes any JSON.
        value = _parsed(data, [StructField(field.name, StringType())]).getField(field.name)
        cut = f.when(f.length(value) > _LONGEST_VALUE, f.concat(value.substr(1, _LONGEST_VALUE), f.lit("...")))
        return f.concat(message, f.lit(": "), f.coalesce(cut, value))

    def fields(self, parsed: Column) -> list[tuple[str, Column]]:
        """Each declared field, as it was parsed; of a STRUCT those inside of it."""
        return _fields(self.struct(), parsed, "")

    def undeclared(self, data: Column) -> Column | None:
        """The names at the top of the object that are not declared."""
        from pyspark.sql import functions as f

        declared = f.array(*map(f.lit, self.struct().names))
        return f.array_except(f.json_object_keys(data.cast("string")), declared)

    def column(self, field: StructField, parsed: Column) -> Column:
        """The field, without the digits that were added to find out about rounding."""
        return as_declared(field.dataType, parsed.getField(field.name))

    def as_one(self, parsed: Column) -> Column:
        """The parsed struct without the field for what could not be parsed."""
        from pyspark.sql import functions as f

        return f.when(parsed.isNotNull(), as_declared(self.struct(), parsed.dropFields(_CORRUPT)))


def _parsed(data: Column, fields: Sequence[StructField]) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    with_corrupt = StructType([*fields, StructField(_CORRUPT, StringType())])
    return f.from_json(data.cast("string"), with_corrupt, _OPTIONS)


def _is_corrupt(parsed: Column) -> Column:
    return parsed.isNull() | parsed.getField(_CORRUPT).isNotNull()


def _short(field: StructField) -> str:
    name = field.dataType.simpleString()
    # Names of fields inside of it keep their case.
    name = name if "<" in name else name.upper()
    return name if len(name) <= _LONGEST_TYPE else f"{name[:_LONGEST_TYPE]}..."


def _fields(struct: StructType, parent: Column, prefix: str) -> list[tuple[str, Column]]:
    from pyspark.sql.types import StructType

    found: list[tuple[str, Column]] = []
    for field in struct.fields:
        path, column = f"{prefix}{field.name}", parent.getField(field.name)
        if isinstance(field.dataType, StructType) and field.dataType.fields:
            found.extend(_fields(field.dataType, column, f"{path}."))
        else:
            found.append((path, column))
    return found


def _required(struct: StructType, parent: Column, prefix: str) -> list[tuple[str, Column]]:
    """For each NOT NULL field, at any depth: its path, and whether it is missing though its parent is there."""
    conditions: list[tuple[str, Column]] = []
    for field in struct.fields:
        path, column = f"{prefix}{field.name}", parent.getField(field.name)
        if not field.nullable:
            conditions.append((path, parent.isNotNull() & column.isNull()))
        conditions.extend(_required_inside(field.dataType, column, path))
    return conditions


def _required_inside(data_type: DataType, column: Column, path: str) -> list[tuple[str, Column]]:
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(data_type, StructType):
        return _required(data_type, column, f"{path}.")
    if isinstance(data_type, ArrayType):
        element_type, elements, path = data_type.elementType, column, f"{path}[]"
    elif isinstance(data_type, MapType):
        element_type, elements, path = data_type.valueType, f.map_values(column), f"{path}{{}}"
    else:
        return []
    # Whether there are rules inside does not depend on the element, so any column will do to find out.
    paths = [inner for inner, _ in _required_inside(element_type, column, path)]
    if not paths:
        return []

    def broken(element: Column) -> Column:
        return reduce(lambda a, b: a | b, (rule for _, rule in _required_inside(element_type, element, path)))

    return [(" or ".join(paths), f.exists(elements, broken))]
