"""What can be set for one run of an asset, in Dagster's launchpad or a run's config."""

# Without `from __future__ import annotations`: Dagster looks at the types of the fields.

import contextlib
from collections.abc import Generator
from typing import Any, NoReturn

from dagster import Config, EnvVar
from dagster._config.field_utils import IntEnvVar
from pydantic import Field

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings import CheckedModel
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.limits import Limits
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.window import Window

_MODES = ("append", "replace")
_LIMITS = ("max_records_per_batch", "max_bytes_per_batch", "max_batches")
# What a range of time has no use for; none of it may be passed over in silence.
_FOR_APPEND = ("max_bytes_per_batch", "max_batches")


@contextlib.contextmanager
def _told_of(field: str) -> Generator[None, None, None]:
    """Puts a field's name before what is wrong with its value."""
    try:
        yield
    except ConfigurationError as error:
        msg = f"{field}: {str(error).removeprefix('invalid KafkaSource: ')}"
        raise ConfigurationError(msg) from None


class _RunConfig(CheckedModel, Config):
    """Checked when it is made: in Python where it is written, and else when the run begins."""

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        super().__init__(*unnamed, **values)
        self._check()

    def _known(self, field: str) -> Any:
        """A field; None if it is not set, or nobody knows yet what an environment variable holds."""
        value = getattr(self, field)
        return None if isinstance(value, (EnvVar, IntEnvVar)) else value

    def _check(self) -> None:
        self.limited(Limits())

    def limited(self, limits: Limits) -> Limits:
        """Limits, with what is set for this run.

        Args:
            limits: The asset's.

        Raises:
            ConfigurationError: A limit is less than 1.
        """
        names = [name for name in _LIMITS if name in type(self).model_fields]
        overrides = {name: value for name in names if (value := self._known(name)) is not None}
        return Limits(**{**limits.model_dump(), **overrides})


class IngestRunConfig(_RunConfig):
    """Overrides for one run, in Dagster's launchpad or a run's config.

    Attributes:
        start: Start here instead of at the position; records in between are read again or skipped.
        stop: Stop here instead of at the source's stop.
        max_records_per_batch: Largest number of offsets in one commit.
        max_bytes_per_batch: About the largest number of bytes of keys and values in one commit.
        max_batches: Largest number of commits.
        verify: Look at the table even if Dagster's record says that there is nothing new.
        mode: `append` (default) lands what is read, and the position moves. `replace` reads a range of time again and
            puts it in the place of the rows that the table has of it; both start and stop are timestamps then, and the
            position stays.
        time_column: Under `replace`, the table's column with the record's time, if it has another name by now.
    """

    start: str | None = Field(
        default=None,
        description="earliest, latest, committed, timestamp:2026-01-31T00:00:00Z or offsets:{...}. Instead of the "
        "position, for this run: records in between are read again or skipped.",
    )
    stop: str | None = Field(default=None, description="latest, committed, timestamp:... or offsets:{...}.")
    max_records_per_batch: int | None = Field(default=None, description="Largest number of offsets in one commit.")
    max_bytes_per_batch: int | None = Field(
        default=None, description="About the largest number of bytes of keys and values in one commit; an estimate."
    )
    max_batches: int | None = Field(default=None, description="Largest number of commits in this run.")
    verify: bool = Field(default=False, description="Look at the table even if nothing seems to be new.")
    mode: str = Field(
        default="append",
        description="append: land what is read. replace: read a range of time (start and stop as timestamp:...) again, "
        "in the place of the rows that the table has of it; the position stays.",
    )
    time_column: str | None = Field(
        default=None, description="Under replace: the table's column with the record's time. Default: kafka_timestamp."
    )

    @property
    def replaces(self) -> bool:
        """Whether a range of time is replaced, instead of going on from the position."""
        return self.mode == "replace"

    @property
    def starting_offsets(self) -> OffsetsInitializer | None:
        """Where to start instead of at the position.

        Raises:
            ConfigurationError: The text names no offsets.
        """
        return self._offsets("start")

    def overridden(self, source: KafkaSource) -> KafkaSource:
        """A source, stopping where this run is to stop.

        Args:
            source: The asset's.

        Raises:
            ConfigurationError: Start or stop does not fit the source.
        """
        with _told_of("stop"):
            source = source.with_overrides(stopping_offsets=self._offsets("stop"))
        with _told_of("start"):
            source.with_overrides(starting_offsets=self.starting_offsets)
        return source

    def window(self) -> Window:
        """The range of time to replace.

        Raises:
            ConfigurationError: Start or stop is no timestamp, or the stop is not after the start.
        """
        start, stop = (None if each is None else each.timestamp_ms for each in map(self._offsets, ("start", "stop")))
        if start is None or stop is None:
            msg = (
                "mode: replace needs start and stop as timestamps, such as timestamp:2026-01-31T00:00:00Z; what it "
                "replaces is a range of time"
            )
            raise ConfigurationError(msg)
        with _told_of("stop"):
            return Window.between(start, stop)

    def _check(self) -> None:
        super()._check()
        mode = self._known("mode")
        if mode is not None and mode not in _MODES:
            msg = f"mode: {mode!r} is neither {' nor '.join(_MODES)}"
            raise ConfigurationError(msg)
        ends = [self._offsets(field) for field in ("start", "stop")]
        if mode == "append" and self.time_column is not None:
            msg = "time_column: it is for mode: replace alone; leave it out, or set the mode"
            raise ConfigurationError(msg)
        if mode != "replace":
            return
        unused = [name for name in _FOR_APPEND if getattr(self, name) is not None]
        if unused:
            msg = f"{', '.join(unused)}: not for mode: replace, which lands its range of time in one commit"
            raise ConfigurationError(msg)
        # An end in an environment variable is looked at when the run begins.
        if None not in ends or (self.start is None or self.stop is None):
            self.window()

    def _offsets(self, field: str) -> OffsetsInitializer | None:
        text = self._known(field)
        if text is None:
            return None
        with _told_of(field):
            return OffsetsInitializer.parse(text)


class WindowsRunConfig(_RunConfig):
    """Overrides for one run of an asset with partitions of time.

    Attributes:
        max_records_per_batch: Largest number of offsets in one commit; windows are not cut.
        tolerate: Names of errors that don't end this run, such as WindowBeyondRetentionError.
    """

    max_records_per_batch: int | None = Field(
        default=None, description="Largest number of offsets in one commit; a window is not cut."
    )
    tolerate: list[str] = Field(
        default_factory=list, description="Names of errors that don't end this run, such as WindowBeyondRetentionError."
    )
