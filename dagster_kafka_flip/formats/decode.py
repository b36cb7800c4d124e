"""Decodes Kafka records into the columns of a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.changelog import EVENTS, TOMBSTONE, TRUNCATE, ChangelogFormat
from dagster_kafka_flip.formats.fields import FieldWatch
from dagster_kafka_flip.formats.format import Format
from dagster_kafka_flip.formats.framed import FramedFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.runtime.jvm_library import use_library
from dagster_kafka_flip.runtime.remote import unskippable
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.settings.names import twice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry


REJECTED = "[dagster-kafka-flip: record rejected]"
"""Marks Spark's error as ours: a record could not be decoded."""

TRUNCATED = "[dagster-kafka-flip: table truncated]"
"""Marks Spark's error as ours: a change deletes all rows, and a table with a key can't follow it."""

OP = "_dagster_kafka_flip_op"
"""Column of finished changes: what each does."""

_OF_KEY = "key: "

_KEY = "_dagster_kafka_flip_key"
_VALUE = "_dagster_kafka_flip_value"
_KEY_PARSED = "_dagster_kafka_flip_key_parsed"
_VALUE_PARSED = "_dagster_kafka_flip_value_parsed"
_KEY_PROBLEM = "_dagster_kafka_flip_key_problem"
_VALUE_PROBLEM = "_dagster_kafka_flip_value_problem"
_EVENT = "_dagster_kafka_flip_event"


@dataclass(frozen=True)
class Decoder:
    """Turns a source's records into columns.

    Attributes:
        key_format: How to read keys.
        value_format: How to read values.
        columns: Which of the record's own fields are kept, and under which names.
    """

    key_format: Format
    value_format: Format
    columns: KafkaColumns

    @classmethod
    def of(cls, key_format: Format | None, value_format: Format | None, columns: KafkaColumns | None) -> Decoder:
        """A decoder with defaults: raw bytes, and every field but the value."""
        for option, given in (("key_format", key_format), ("value_format", value_format)):
            if given is not None:
                expect(option, given, Format, 'JsonFormat("id BIGINT, name STRING")')
        if columns is not None:
            expect("columns", columns, KafkaColumns, "KafkaColumns(...)")
        decoder = cls(key_format or RawFormat(), value_format or RawFormat(), columns or KafkaColumns())
        if isinstance(decoder.key_format, ChangelogFormat):
            raise ConfigurationError(
                f"key_format: {type(decoder.key_format).__name__} decodes values, and keys are not changes",
                "Leave key_format out, or decode the key with JsonFormat or AvroFormat",
            )
        _check_names(decoder.landed_names or (), decoder.columns)
        return decoder

    def stage(self, records: DataFrame) -> DataFrame:
        """Adds the parsed key and value, and the reason for a rejection. Never fails on a record."""
        from pyspark.sql import functions as f

        if any(form.uses_library for form in self.formats.values()):
            use_library(records.sparkSession)
        of_key, of_value = (form.parse(self._payload(side)) for side, form in self.formats.items())
        if self.can_reject:
            records = records.select("*", of_key.alias(_KEY_PARSED), of_value.alias(_VALUE_PARSED))
            of_key, of_value = f.col(_KEY_PARSED), f.col(_VALUE_PARSED)
        row = self.value_format.row(of_value)
        key_problem = f.concat(f.lit(_OF_KEY), _problem(self.key_format, of_key))
        steps = [self.key_format.row(of_key).alias(_KEY), row.alias(_VALUE)]
        if self.changelog is not None:
            event = self.changelog.event(row)
            # The key of a heartbeat, for example, is not a row's key, and nobody reads it.
            key_problem = f.when(event.isNull() | (event == TOMBSTONE), key_problem)
            steps.append(event.alias(_EVENT))
        value_problem = _problem(self.value_format, of_value)
        return records.select("*", *steps, key_problem.alias(_KEY_PROBLEM), value_problem.alias(_VALUE_PROBLEM))

    @property
    def changelog(self) -> ChangelogFormat | None:
        """The format of values, if these are changes of a database's rows."""
        return self.value_format if isinstance(self.value_format, ChangelogFormat) else None

    def event_counts(self, *, keyed: bool = False) -> dict[str, Column]:
        """What counts staged records without a row, by what they are. With a key, a tombstone is a change."""
        from pyspark.sql import functions as f

        if self.changelog is None:
            return {}
        return {
            event: f.count(f.when(f.col(_EVENT) == event, 1)) for event in EVENTS if not (keyed and event == TOMBSTONE)
        }

    def _payload(self, side: str) -> Column:
        """A key or a value; after the frame with its schema's id, if that is in a header."""
        from pyspark.sql import functions as f

        return self.formats[side].framed(f.col(side), f.col("headers"))

    def written_with(self) -> list[Column]:
        """The schemas that key and value of a staged DataFrame were written with.

        Their texts, `key_schema` and `value_schema`, are null if they are unknown. Their ids, `key_schema_id` and
        `value_schema_id`, are null if the record names none.
        """
        from pyspark.sql import functions as f

        found: list[Column] = []
        for side, form in self.formats.items():
            text, number = form.written_with(self._payload(side))
            for name, column in ((f"{side}_schema", text), (f"{side}_schema_id", number)):
                found.append((f.lit(None) if column is None else column).cast("string").alias(name))
        return found

    @property
    def formats(self) -> dict[str, Format]:
        """The formats by `key` and `value`."""
        return {"key": self.key_format, "value": self.value_format}

    @property
    def registered(self) -> dict[str, FramedFormat]:
        """The formats with a registry, by `key` and `value`."""
        return {
            side: form
            for side, form in self.formats.items()
            if isinstance(form, FramedFormat) and form.registry is not None
        }

    @property
    def with_writers(self) -> dict[str, FramedFormat]:
        """Those of them that need the schema that a record was written with, by `key` and `value`."""
        return {side: form for side, form in self.registered.items() if form.needs_writers}

    @property
    def registry_keys(self) -> set[str]:
        """The keys of the Dagster resources with registries."""
        return {form.registry_key for form in self.registered.values() if form.registry_key is not None}

    def with_registries(self, registries: Mapping[str, SchemaRegistry]) -> Decoder:
        """The decoder with registries in place of the keys of resources, by these keys."""
        return self._with(
            {
                side: form.with_registry(registries[form.registry_key])
                for side, form in self.registered.items()
                if form.registry_key is not None
            }
        )

    def bound(self, topics: Collection[str] | None, *, may_lack: bool = False) -> Decoder:
        """The decoder for a run, with its reader schemas: see `FramedFormat.bound`."""
        return self._with(
            {
                side: form.bound(topics, is_key=side == "key", may_lack=may_lack)
                for side, form in self.registered.items()
            }
        )

    def _with(self, formats: Mapping[str, Format]) -> Decoder:
        return replace(self, **{f"{side}_format": form for side, form in formats.items()}) if formats else self

    @property
    def reader_schemas(self) -> dict[str, str]:
        """The registered schemas that a run reads records as, by `key` and `value`."""
        found = {side: form.pinned for side, form in self.registered.items()}
        return {
            side: f"{schema.subject} version {schema.version} (schema {schema.schema_id})"
            for side, schema in found.items()
            if schema is not None
        }

    @property
    def schemas(self) -> dict[str, list[str]]:
        """The schemas that records were met with or read as, as frames by `key` and `value`; kept in commits."""
        return {side: form.book.frames for side, form in self.with_writers.items()}

    def renew(self) -> None:
        """Reads records as the latest schemas from now on: see `FramedFormat.renew`. For a decoder from `bound`."""
        for form in self.registered.values():
            form.renew()

    def recall(self, schemas: Mapping[str, Sequence[str]]) -> None:
        """Asks the registries for `schemas` that earlier runs met, so that a batch need not be read twice."""
        for side, form in self.with_writers.items():
            form.book.recall(schemas.get(side, ()))

    def close(self) -> None:
        """Closes the connections of a run's decoder to its registries."""
        for form in self.registered.values():
            form.book.close()

    @property
    def can_reject(self) -> bool:
        """Whether any record can be rejected."""
        return self.key_format.can_reject or self.value_format.can_reject

    def problem(self) -> Column:
        """Why a record of a staged DataFrame is rejected; null if it is not."""
        from pyspark.sql import functions as f

        return f.coalesce(f.col(_VALUE_PROBLEM), f.col(_KEY_PROBLEM))

    def fields(self, span: int) -> list[FieldWatch]:
        """Returns what observes the fields of values and keys, for formats that declare fields."""
        from pyspark.sql import functions as f

        watches: list[FieldWatch] = []
        for side, parsed, problem, prefix in (
            ("value", _VALUE_PARSED, _VALUE_PROBLEM, ""),
            ("key", _KEY_PARSED, _KEY_PROBLEM, "key."),
        ):
            form = self.formats[side]
            if (seen := form.seen(f.col(parsed))) is not None:
                is_there, is_decoded = f.col(side).isNotNull(), f.col(problem).isNull()
                if isinstance(form, ChangelogFormat):
                    is_there = form.has_row(form.row(f.col(parsed)))
                watches.append(FieldWatch(seen, is_there, is_decoded, span, prefix))
        return watches

    def needed(self, carry: Iterable[str] = ()) -> list[str]:
        """Names of the columns of a staged DataFrame that `problem` and `finish` need, and of those to carry."""
        # A message names the first three.
        needed = ["topic", "partition", "offset", "timestamp", _KEY, _VALUE, _KEY_PROBLEM, _VALUE_PROBLEM]
        fields = self.columns.fields
        optional = {
            "timestampType": "timestamp_type" in fields,
            "headers": "headers" in fields,
            "value": "value" in fields or self.value_format.on_error == "null",
            "key": self.key_format.on_error == "null",
            _EVENT: self.changelog is not None,
        }
        needed += [name for name, is_needed in optional.items() if is_needed]
        return list(dict.fromkeys((*needed, *carry)))

    def finish(
        self,
        staged: DataFrame,
        *,
        leave_out_rejected: bool = False,
        carry: Mapping[str, str] | None = None,
        key: Sequence[str] = (),
    ) -> DataFrame:
        """Returns the columns of the table. It fails when it runs on a rejected record, unless its format keeps those.

        The staged DataFrame should be observed first (see BatchObservation): Spark moves this filter past everything
        else, down to where the records are read, and would then parse each of them once for every rule and field.

        Args:
            staged: From `stage`.
            leave_out_rejected: Whether rejected records are dropped, because they go to a dead-letter table.
            carry: Further columns of the staged DataFrame to keep, with their new names.
            key: The key of the table, if it has one: then tombstones are kept, and what a change does is in the column
                `OP`.

        Raises:
            ConfigurationError: Two columns have the same name.
        """
        from pyspark.sql import functions as f

        fatal = self._fatal()
        if fatal is not None and leave_out_rejected:
            staged = staged.where(fatal.isNull())
        elif fatal is not None:
            message = f.concat(f.lit(f"{REJECTED} "), _place(), f.lit(": "), fatal)
            # A filter, because a column that the transform drops would not be computed, and not be checked.
            staged = unskippable(staged, f.when(fatal.isNull(), True).otherwise(f.raise_error(message).cast("boolean")))
        if self.changelog is not None:
            staged = _with_rows(staged, self.changelog, key)
        columns = self._landed(keyed=bool(key)) + [
            (name, f.col(staged_name)) for staged_name, name in (carry or {}).items()
        ]
        _check_names([name for name, _ in columns], self.columns)
        # A comment goes with its column, through the transform as well, to the table and to Dagster.
        texts = self.value_format.comments()
        return staged.select(
            *(
                column.alias(name, metadata={"comment": texts[name]}) if name in texts else column.alias(name)
                for name, column in columns
            )
        )

    @property
    def landed_names(self) -> list[str] | None:
        """Names of the columns that `finish` gives; None if only Spark knows those of the value."""
        names, spread = self.columns, self.value_format.column_names
        if spread is None:
            return None
        landed = list(spread) if spread else [] if "value" in names.fields else [names.name("value")]
        if self.changelog is not None:
            landed.append(names.name("op"))
            landed += [names.name("unavailable")] if self.changelog.leaves_out else []
        landed += [names.name(field) for field in names.fields]
        if self.value_format.on_error == "null":
            landed.append(names.name("rejected_value"))
        if self.key_format.on_error == "null":
            landed.append(names.name("rejected_key"))
        if "null" in {self.value_format.on_error, self.key_format.on_error}:
            landed.append(names.name("error"))
        return landed

    def landed_key(self) -> Column:
        """The decoded key of a staged DataFrame, as one column of the table."""
        from pyspark.sql import functions as f

        return _if_decoded(self.key_format, f.col(_KEY_PROBLEM), self.key_format.as_one(f.col(_KEY)))

    def _fatal(self) -> Column | None:
        from pyspark.sql import functions as f

        sides = (self.value_format, _VALUE_PROBLEM), (self.key_format, _KEY_PROBLEM)
        problems = [f.col(name) for form, name in sides if form.can_reject and form.on_error == "fail"]
        return f.coalesce(*problems) if problems else None

    def _landed(self, *, keyed: bool = False) -> list[tuple[str, Column]]:
        from pyspark.sql import functions as f

        names = self.columns
        value = f.col(_VALUE)
        spread = self.value_format.spread(value)
        problem = f.col(_VALUE_PROBLEM)
        landed: list[tuple[str, Column]] = []
        own: dict[str, Column] = {
            "topic": f.col("topic"),
            "partition": f.col("partition"),
            "offset": f.col("offset"),
            "timestamp": f.col("timestamp"),
            "timestamp_type": f.col("timestampType"),
            "headers": f.col("headers"),
            "key": self.landed_key(),
        }
        if spread is not None:
            landed.extend((name, _if_decoded(self.value_format, problem, column)) for name, column in spread)
            own["value"] = f.col("value")
        else:
            own["value"] = _if_decoded(self.value_format, problem, self.value_format.as_one(value))
            if "value" not in names.fields:
                landed.append((names.name("value"), own["value"]))
        if (changelog := self.changelog) is not None:
            op = _if_decoded(changelog, problem, changelog.op(value))
            landed.append((OP if keyed else names.name("op"), op))
            if (unavailable := changelog.unavailable(value)) is not None:
                landed.append((names.name("unavailable"), _if_decoded(changelog, problem, unavailable)))
        landed.extend((names.name(field), own[field]) for field in names.fields)
        if self.value_format.on_error == "null":
            landed.append((names.name("rejected_value"), f.when(problem.isNotNull(), f.col("value"))))
        if self.key_format.on_error == "null":
            landed.append((names.name("rejected_key"), f.when(f.col(_KEY_PROBLEM).isNotNull(), f.col("key"))))
        if "null" in {self.value_format.on_error, self.key_format.on_error}:
            landed.append((names.name("error"), self.problem()))
        return landed


def _with_rows(staged: DataFrame, changelog: ChangelogFormat, key: Sequence[str]) -> DataFrame:
    """The staged records that have rows, one for each: with a key also tombstones, but none that deletes all rows."""
    from pyspark.sql import functions as f

    event = f.col(_EVENT)
    if not key:
        return _one_for_each(staged.where(event.isNull()), changelog, key)
    staged = staged.where(event.isNull() | (event == TOMBSTONE))
    message = f.concat(f.lit(f"{TRUNCATED} "), _place(), f.lit(" [end]"))
    is_truncate = f.coalesce(changelog.op(f.col(_VALUE)) == TRUNCATE, f.lit(False))
    is_none = f.when(is_truncate, f.raise_error(message).cast("boolean")).otherwise(True)
    return _one_for_each(unskippable(staged, is_none), changelog, key)


def _one_for_each(staged: DataFrame, changelog: ChangelogFormat, key: Sequence[str]) -> DataFrame:
    """The staged records, once for each of their rows; once for a record without any."""
    from pyspark.sql import functions as f

    if not changelog.has_rows:
        return staged
    return staged.withColumn(_VALUE, f.explode_outer(changelog.rows(f.col(_VALUE), key)))


def _place() -> Column:
    """Where a record is, as text."""
    from pyspark.sql import functions as f

    return f.concat_ws("", f.col("topic"), f.lit("-"), f.col("partition"), f.lit(" offset "), f.col("offset"))


def _if_decoded(form: Format, problem: Column, column: Column) -> Column:
    """A column of a key or a value; null if it could not be decoded and was kept."""
    from pyspark.sql import functions as f

    return f.when(problem.isNull(), column) if form.on_error == "null" else column


def _problem(form: Format, parsed: Column) -> Column:
    """Why a key or a value is rejected; null if it is not."""
    from pyspark.sql import functions as f

    problem = form.problem(parsed)
    return f.lit(None).cast("string") if problem is None else problem


def _check_names(names: Sequence[str], columns: KafkaColumns) -> None:
    if (name := twice(names)) is not None:
        chosen = {columns.name(field).lower() for field in columns.fields}
        or_leave_out = ", or leave the field out of KafkaColumns.fields" if name.lower() in chosen else ""
        raise ConfigurationError(
            f"two columns would be named {name!r}: one comes from the value, one from the record itself",
            f"Rename the field, {'' if or_leave_out else 'or '}choose another prefix in KafkaColumns{or_leave_out}",
        )
