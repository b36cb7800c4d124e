"""Types that CSV fields can have: which strings fit a type, and the value of a string.

Spark's own conversion accepts more than a field should hold: `yes` for a BOOLEAN, `1d` for a DOUBLE, `2021` for
a DATE. It rounds `1.239` to fit a DECIMAL(5,2), and moves a time that a change of the clocks skips.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.ddl import check_ddl
from dagster_kafka_flip.formats.number_texts import fraction_digits, is_lost

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

_TAKEN = frozenset(
    {
        "BIGINT",
        "BINARY",
        "BOOLEAN",
        "BYTE",
        "DATE",
        "DEC",
        "DECIMAL",
        "DOUBLE",
        "FLOAT",
        "INT",
        "INTEGER",
        "LONG",
        "NUMERIC",
        "REAL",
        "SHORT",
        "SMALLINT",
        "STRING",
        "TIMESTAMP",
        "TIMESTAMP_LTZ",
        "TIMESTAMP_NTZ",
        "TINYINT",
    }
)
_NESTED = frozenset({"ARRAY", "MAP", "STRUCT", "VARIANT"})

# Around numbers, Java's trim() and so Flink take off what is not above a space.
_SPACE = r"[\x00- ]*+"
_NUMBER = r"[+-]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?+0*+[0-9]{1,4})?+"
# Spark has a year 0, which readers of Delta tables don't.
_DATE = "(?!0000)[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
_CLOCK = r"[ T][0-9]{1,2}:[0-9]{1,2}(?::[0-9]{1,2}(?:\.[0-9]{1,6}+0*+)?+)?+"
_LOCAL_TIME = _DATE + _CLOCK
_BASE64 = "(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?+"

# By name, because importing pyspark would cost every code location a second. Other types need no pattern: Spark is
# strict about whole numbers.
_PATTERNS = {
    "boolean": f"{_SPACE}(?i:true|false){_SPACE}",
    "date": _DATE,
    "decimal": _NUMBER,
    "double": _SPACE + _NUMBER + _SPACE,
    "float": _SPACE + _NUMBER + _SPACE,
    "timestamp": f"{_LOCAL_TIME}(?:Z|[+-][0-9]{{2}}:[0-9]{{2}})?+",
    "timestamp_ntz": _LOCAL_TIME,
}


def check_csv_types(schema: str | StructType) -> None:
    """Validates the types of a schema, as far as possible without Spark.

    Raises:
        ConfigurationError: The DDL is invalid, or a field has an unsupported type. The message names the field.
    """
    if isinstance(schema, str):
        check_ddl(schema, _check_type)
        return
    for field in schema.fields:
        _check_type(field.name, field.dataType.typeName().upper(), "")


def _check_type(field: str, name: str, keys: str) -> None:
    del keys
    # DDL may declare the struct as a whole, without field names.
    if name in _TAKEN or (name == "STRUCT" and field == "the schema"):
        return
    why = (
        "a CSV field holds one value; use STRING, and parse it in the transform"
        if name in _NESTED or "." in field
        else "use STRING"
    )
    msg = f"schema: {field}: unsupported type {name} in CSV; {why}"
    raise ConfigurationError(msg)


def value_of(data_type: DataType, text: Column) -> Column:
    """The value of a text; null if it has none."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType, StringType

    if isinstance(data_type, StringType):
        return text.cast(data_type)
    if isinstance(data_type, BinaryType):
        return f.when(text.rlike(rf"\A{_BASE64}\z"), f.unbase64(text))
    return text.try_cast(data_type)


def problems(data_type: DataType, text: Column, value: Column) -> list[tuple[str, Column]]:
    """What may be wrong with a text, each with its condition; empty if every text fits.

    Args:
        data_type: The declared type.
        text: The field's text; the conditions are true or null if it is null.
        value: From `value_of`.
    """
    from pyspark.sql.types import StringType

    if isinstance(data_type, StringType):
        return []
    misfit = f"does not fit {data_type.simpleString().upper()}"
    pattern = _PATTERNS.get(data_type.typeName())
    found = [] if pattern is None else [(misfit, ~_is(text, pattern))]
    return [*found, (misfit, value.isNull()), *_changes(data_type, text, value)]


def _changes(data_type: DataType, text: Column, value: Column) -> list[tuple[str, Column]]:
    """What Spark would change without an error."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DecimalType, DoubleType, FloatType, TimestampType

    name = data_type.simpleString().upper()
    if isinstance(data_type, DecimalType):
        return [(f"has more digits than {name} holds", fraction_digits(text) > data_type.scale)]
    if isinstance(data_type, (FloatType, DoubleType)):
        is_infinite = f.abs(value) == f.lit(float("inf")).cast(data_type)
        return [(f"is beyond the range of {name}", is_infinite | is_lost(text, value))]
    if isinstance(data_type, TimestampType):
        # Without an offset it is a time of the session's zone, which may skip an hour.
        is_moved = ~value.cast("timestamp_ntz").eqNullSafe(text.try_cast("timestamp_ntz"))
        # An offset may move it into another year.
        first, last = (f.lit(moment).cast(data_type) for moment in ("0001-01-01", "9999-12-31 23:59:59.999999"))
        is_beyond = (value < first) | (value > last)
        return [(f"does not fit {name}", (_is(text, _LOCAL_TIME) & is_moved) | is_beyond)]
    return []


def _is(text: Column, pattern: str) -> Column:
    return text.rlike(rf"\A{pattern}\z")
