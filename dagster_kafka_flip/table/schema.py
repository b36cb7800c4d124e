"""Compares a batch's columns with the table's before the write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError, SchemaMismatchError
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.settings.names import first_few
from dagster_kafka_flip.table.layout import CHANGED_IN_PARTITIONS, INSTEAD
from dagster_kafka_flip.table.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField, StructType

# Lines of a message: a table can have thousands of columns.
_MOST_LINES = 50

# From narrow to wide.
_WIDER = (("byte", "short", "integer", "long"), ("float", "double"))
_ALLOW_WIDENING = (
    "set the property 'delta.enableTypeWidening' of the table to true with ALTER TABLE ... SET TBLPROPERTIES; then "
    "only readers with type widening can read it (Delta 3.2 and later)"
)


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table after a batch, and what it changes about them, such as `amount int -> bigint`.

    `not_written` are columns, and fields in them, that the batch does not have, such as `address.city`.
    """

    struct: StructType
    changes: tuple[str, ...] = ()
    not_written: tuple[str, ...] = ()


def check_schema(
    batch: StructType, table: StructType, name: str, *, may_change: bool, may_widen: Callable[[], bool]
) -> TableColumns:
    """Columns that only the table has must be nullable. `may_widen` asks for Delta's property of the table."""
    found = list(_differences(batch, table, ""))
    absent = [one for one in _differences(table, batch, "") if one.added is not None]
    missing = [one.path for one in absent if one.added is not None and not one.added.nullable]
    changed = [one for one in found if one.table is not None]
    added = [one for one in found if one.table is None]
    can_widen = bool(changed) and all(one.is_wider for one in changed)
    if changed and not (can_widen and may_change and may_widen()):
        what = first_few(
            (f"the column {one.path} is {one.table} in the table and {one.batch} in the batch" for one in changed),
            between="; ",
        )
        advice = (
            "Change the value format, cast in the transform, or use another table; if no run has written to this one "
            "yet, you can drop it"
        )
        if can_widen:
            steps = [
                *(() if may_change else ("set schema_evolution of its DeltaTarget to true",)),
                *(() if may_widen() else (_ALLOW_WIDENING,)),
            ]
            advice = f"To widen it, {' and '.join(steps)}; or cast in the transform"
        finding = f"the batch does not fit the table {name}: {what}"
    elif missing:
        finding = f"the table {name} requires {first_few(missing)}, which the batch does not have"
        advice = "Add the column in the transform, or drop NOT NULL from the table's"
    elif added and not may_change:
        columns = first_few(f"{one.path} ({one.batch})" for one in added)
        noun, them = ("column", "it") if len(added) == 1 else ("columns", "them")
        finding = f"the table {name} has no {noun} {columns}"
        advice = f"Set schema_evolution of its DeltaTarget to true to add {them}, or drop {them} in the transform"
    else:
        _check_can_be_added(added, name)
        return TableColumns(merged(table, batch), tuple(map(str, found)), tuple(one.path for one in absent))
    if len(found) + len(absent) > 1:
        lines = [line for one in found for line in one.lines()] + [
            f"- {one.path} {one.batch}{' NOT NULL' if one.path in missing else ''}" for one in absent
        ]
        advice = "\n".join([f"{advice}. The table (-) and the batch (+):", first_few(lines, _MOST_LINES, between="\n")])
    raise SchemaMismatchError(finding, advice)


@dataclass(frozen=True)
class _Difference:
    """A column, or a field in one, and its type in the table and in the batch; `added` if the table has none."""

    path: str
    table: str | None
    batch: str
    # Whether Delta can widen the table's type to the batch's.
    is_wider: bool = False
    added: StructField | None = None

    def lines(self) -> list[str]:
        before = [] if self.table is None else [f"- {self.path} {self.table}"]
        return [*before, f"+ {self.path} {self.batch}"]

    def __str__(self) -> str:
        if self.table is None:
            return f"+ {self.path} {self.batch}"
        return f"{self.path} {self.table} -> {self.batch}"


def _differences(batch: StructType, table: StructType, prefix: str) -> Iterator[_Difference]:
    existing = {field.name.lower(): field for field in table.fields}
    for field in batch.fields:
        path = f"{prefix}{field.name}"
        known = existing.get(field.name.lower())
        if known is None:
            yield _Difference(path, None, field.dataType.simpleString(), added=field)
        else:
            yield from _type_differences(field.dataType, known.dataType, path)


def _type_differences(batch: DataType, table: DataType, path: str) -> Iterator[_Difference]:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(batch, StructType) and isinstance(table, StructType):
        yield from _differences(batch, table, f"{path}.")
    elif isinstance(batch, ArrayType) and isinstance(table, ArrayType):
        yield from _type_differences(batch.elementType, table.elementType, f"{path}[]")
    elif isinstance(batch, MapType) and isinstance(table, MapType):
        yield from _type_differences(batch.keyType, table.keyType, f"{path} key")
        yield from _type_differences(batch.valueType, table.valueType, f"{path}{{}}")
    elif batch != table:
        yield _Difference(path, table.simpleString(), batch.simpleString(), _is_wider(batch, table))


def shaped(batch: DataType, table: DataType, column: Column) -> Column | None:
    """The column with the fields of the table's STRUCTs in their order, or null; None if it has them already."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(batch, ArrayType) and isinstance(table, ArrayType):
        elements = batch.elementType, table.elementType
        return _transformed(*elements, lambda change: f.transform(column, change))
    if isinstance(batch, MapType) and isinstance(table, MapType):
        values = batch.valueType, table.valueType
        return _transformed(*values, lambda change: f.transform_values(column, lambda _, value: change(value)))
    if not isinstance(batch, StructType) or not isinstance(table, StructType):
        return None
    there = {field.name.lower(): field for field in batch.fields}
    known = {field.name.lower() for field in table.fields}
    parts: list[Column] = []
    is_changed = False
    for field in table.fields:
        own = there.get(field.name.lower())
        if own is None:
            parts.append(f.lit(None).cast(field.dataType).alias(field.name))
            continue
        inner = column.getField(own.name)
        changed = shaped(own.dataType, field.dataType, inner)
        is_changed = is_changed or changed is not None
        parts.append((inner if changed is None else changed).alias(own.name))
    added = [field for field in batch.fields if field.name.lower() not in known]
    parts.extend(column.getField(field.name).alias(field.name) for field in added)
    names = [field.name.lower() for field in (*table.fields, *added)]
    if not is_changed and names == [field.name.lower() for field in batch.fields]:
        return None
    return f.when(column.isNotNull(), f.struct(*parts))


def _transformed(
    batch: DataType, table: DataType, over: Callable[[Callable[[Column], Column]], Column]
) -> Column | None:
    if shaped(batch, table, f.lit(None).cast(batch)) is None:
        return None
    return over(lambda value: value if (changed := shaped(batch, table, value)) is None else changed)


def _is_wider(batch: DataType, table: DataType) -> bool:
    """Whether Delta widens a type on a write with schema evolution (Delta's documentation, "Type widening")."""
    from pyspark.sql.types import DecimalType

    if isinstance(batch, DecimalType) and isinstance(table, DecimalType):
        more_digits = batch.scale - table.scale
        return more_digits >= 0 and batch.precision - table.precision >= more_digits
    kinds = (table.typeName(), batch.typeName())
    return any(
        kinds[0] in chain and kinds[1] in chain and chain.index(kinds[0]) < chain.index(kinds[1]) for chain in _WIDER
    )


def merged(table: StructType, batch: StructType) -> StructType:
    incoming = {field.name.lower(): field for field in batch.fields}
    known = {field.name.lower() for field in table.fields}
    kept = [
        type(field)(field.name, _merged_type(field.dataType, other.dataType), field.nullable, field.metadata)
        if (other := incoming.get(field.name.lower())) is not None
        else field
        for field in table.fields
    ]
    return type(table)([*kept, *(field for field in batch.fields if field.name.lower() not in known)])


def _merged_type(table: DataType, batch: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(table, StructType) and isinstance(batch, StructType):
        return merged(table, batch)
    if isinstance(table, ArrayType) and isinstance(batch, ArrayType):
        return ArrayType(_merged_type(table.elementType, batch.elementType), table.containsNull)
    if isinstance(table, MapType) and isinstance(batch, MapType):
        return MapType(
            _merged_type(table.keyType, batch.keyType),
            _merged_type(table.valueType, batch.valueType),
            table.valueContainsNull,
        )
    return batch


def check_can_be_stored(schema: StructType, name: str, partition_by: Sequence[str]) -> None:
    """Checks what Delta would take and not keep, or could not write later. It refuses all else itself."""
    partitions = {column.lower() for column in partition_by}
    wrong = [
        *_not_storable(schema, ""),
        *(
            f"the column {field.name!r} is {kind.upper()}, and Delta would change its {CHANGED_IN_PARTITIONS[kind]} in "
            f"a partition column; make it {INSTEAD}"
            for field in schema.fields
            if field.name.lower() in partitions and (kind := field.dataType.typeName()) in CHANGED_IN_PARTITIONS
        ),
    ]
    if wrong:
        raise ConfigurationError(f"the table {name} can't be created: {'; '.join(wrong)}")


def _check_can_be_added(added: Sequence[_Difference], name: str) -> None:
    wrong = [what for one in added if one.added is not None for what in _not_storable(one.added.dataType, one.path)]
    if wrong:
        raise ConfigurationError(f"the batch does not fit the table {name}: {'; '.join(wrong)}")


def _not_storable(kind: DataType, path: str) -> Iterator[str]:
    from pyspark.sql.types import StructType

    for column, part in _parts(kind, path):
        if isinstance(part, StructType) and not part.fields:
            yield f"the column {column!r} is a STRUCT without fields, which Parquet can't store; drop it"
        elif part.typeName() == "void":
            # Delta would leave it out of what it writes, and later refuse the type that it has then.
            yield (
                f"the column {column!r} has no type (VOID), as a null or an empty array has; cast it in the transform, "
                'such as with lit(None).cast("string"), or drop it'
            )


def _parts(kind: DataType, path: str) -> Iterator[tuple[str, DataType]]:
    from pyspark.sql.types import ArrayType, MapType, StructType

    yield path, kind
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _parts(field.dataType, f"{path}.{field.name}".lstrip("."))
    elif isinstance(kind, ArrayType):
        yield from _parts(kind.elementType, path)
    elif isinstance(kind, MapType):
        yield from _parts(kind.keyType, path)
        yield from _parts(kind.valueType, path)


def column_ddl(schema: StructType) -> str:
    """The columns of a new table, all nullable: tombstones have no values, and Delta refuses nulls around others.

    Spark's own DDL uses TIMESTAMP, which a session can interpret as another type (`spark.sql.timestampType`).
    """
    return ", ".join(f"{quoted(field.name)} {_type_ddl(field.dataType)}{_comment(field)}" for field in schema.fields)


def _type_ddl(kind: DataType) -> str:
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    if isinstance(kind, StructType):
        fields = (f"{quoted(field.name)}: {_type_ddl(field.dataType)}{_comment(field)}" for field in kind.fields)
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_type_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_type_ddl(kind.keyType)}, {_type_ddl(kind.valueType)}>"
    return "TIMESTAMP_LTZ" if isinstance(kind, TimestampType) else kind.simpleString()


def _comment(field: StructField) -> str:
    comment = (field.metadata or {}).get("comment")
    return "" if comment is None else f" COMMENT {literal(str(comment))}"
