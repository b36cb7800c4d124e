"""Run config of an asset, in Dagster's launchpad or a job's config."""

# Without `from __future__ import annotations`, because Dagster inspects the types of the fields.

import contextlib
from collections.abc import Generator
from typing import Any, Literal, NoReturn

from dagster import Config
from pydantic import Field

from dagster_kafka_flip.assets.config_fields import is_env_var
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.base import CheckedModel
from dagster_kafka_flip.settings.docstrings import entries
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Window

_LIMITS = ("max_records_per_batch", "max_bytes_per_batch", "max_batches")
_OF_LIMITS = entries(Limits)
# Options that mode replace does not use; setting one is an error.
_FOR_APPEND = ("max_bytes_per_batch", "max_batches")


@contextlib.contextmanager
def _naming_field(field: str) -> Generator[None, None, None]:
    """Prefixes an error with the field's name."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{field}: {str(error).removeprefix('invalid KafkaSource: ')}") from None


class _RunConfig(CheckedModel, Config):
    """Validated when created in Python, or else when the run begins."""

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        super().__init__(*unnamed, **values)
        self._check()

    def _known(self, field: str) -> Any:
        """A field's value; None if not set, or if it is an environment variable without a known value."""
        value = getattr(self, field)
        return None if is_env_var(value) else value

    def _check(self) -> None:
        self.limited(Limits())

    def limited(self, limits: Limits) -> Limits:
        """Returns the limits with the run's overrides."""
        names = [name for name in _LIMITS if name in type(self).model_fields]
        overrides = {name: value for name in names if (value := self._known(name)) is not None}
        return Limits(**{**limits.model_dump(), **overrides})


_TOLERATE = Field(
    default_factory=list, description="Names of errors that this run tolerates, such as WindowBeyondRetentionError."
)


class IngestRunConfig(_RunConfig):
    """Overrides for one run, in Dagster's launchpad or a run's config."""

    start: str | None = Field(
        default=None,
        description="earliest, latest, committed, timestamp:2026-01-31T00:00:00Z or offsets:{...}. Overrides the "
        "position for this run: records in between are read again or skipped.",
    )
    stop: str | None = Field(default=None, description="latest, committed, timestamp:... or offsets:{...}.")
    max_records_per_batch: int | None = Field(default=None, description=_OF_LIMITS["max_records_per_batch"])
    max_bytes_per_batch: int | None = Field(default=None, description=_OF_LIMITS["max_bytes_per_batch"])
    max_batches: int | None = Field(default=None, description=_OF_LIMITS["max_batches"])
    verify: bool = Field(default=False, description="Check the table even if nothing seems to be new.")
    mode: Literal["append", "replace"] = Field(
        default="append",
        description="append: add the records. replace: read a time range (start and stop as timestamp:...) again, and "
        "replace its rows; the position does not change.",
    )
    time_column: str | None = Field(
        default=None,
        description="With mode replace: the table's column with the record's timestamp. Default: kafka_timestamp.",
    )
    tolerate: list[str] = _TOLERATE

    @property
    def replaces(self) -> bool:
        """Whether a time range is replaced, instead of continuing from the position."""
        return self.mode == "replace"

    @property
    def starting_offsets(self) -> OffsetsInitializer | None:
        """The start that overrides the position."""
        return self._offsets("start")

    def overridden(self, source: KafkaSource) -> KafkaSource:
        """The source with this run's stop; its start is checked."""
        with _naming_field("stop"):
            source = source.with_overrides(stopping_offsets=self._offsets("stop"))
        with _naming_field("start"):
            source.with_overrides(starting_offsets=self.starting_offsets)
        return source

    def window(self) -> Window:
        """The time range to replace."""
        start, stop = (None if each is None else each.timestamp_ms for each in map(self._offsets, ("start", "stop")))
        if start is None or stop is None:
            raise ConfigurationError(
                "mode: replace needs start and stop as timestamps, such as timestamp:2026-01-31T00:00:00Z, because it "
                "replaces a time range"
            )
        with _naming_field("stop"):
            return Window.between(start, stop)

    def _check(self) -> None:
        super()._check()
        ends = [self._offsets(field) for field in ("start", "stop")]
        if not self.replaces:
            if self.time_column is not None:
                raise ConfigurationError("time_column: only for mode: replace; remove it, or set the mode")
            return
        unused = [name for name in _FOR_APPEND if getattr(self, name) is not None]
        if unused:
            msg = f"{', '.join(unused)}: not allowed with mode: replace, which writes its time range in one commit"
            raise ConfigurationError(msg)
        # A value from an environment variable is validated when the run begins.
        if None not in ends or (self.start is None or self.stop is None):
            self.window()

    def _offsets(self, field: str) -> OffsetsInitializer | None:
        text = self._known(field)
        if text is None:
            return None
        with _naming_field(field):
            return OffsetsInitializer.parse(text)


class WindowsRunConfig(_RunConfig):
    """Overrides for one run of an asset with time partitions."""

    max_records_per_batch: int | None = Field(
        default=None, description="Maximum number of offsets in one commit; a window is never split."
    )
    tolerate: list[str] = _TOLERATE


class PublishRunConfig(_RunConfig):
    """Overrides for one run of an asset that publishes a table."""

    stop: int | None = Field(default=None, description="The last table version to publish. Default: the newest.")
    max_records_per_batch: int | None = Field(default=None, description="Maximum number of records in a transaction.")
    max_bytes_per_batch: int | None = Field(
        default=None, description="Maximum number of bytes of keys and values in a transaction."
    )
    max_batches: int | None = Field(
        default=None, description="Maximum number of batches, each a transaction on every lane."
    )
    again_from: int | None = Field(
        default=None, description="First table version to publish again; the progress does not change."
    )
    again_to: int | None = Field(default=None, description="Last table version to publish again.")
    allow_doubles: bool = Field(
        default=False, description="Must be true to publish again: readers get these records a second time."
    )

    @property
    def again(self) -> tuple[int, int] | None:
        """The first and the last version to publish again; None for a run that continues."""
        first, last = self._known("again_from"), self._known("again_to")
        return None if first is None or last is None else (first, last)

    def _check(self) -> None:
        super()._check()
        for field in ("stop", "again_from", "again_to"):
            version = self._known(field)
            if version is not None and version < 0:
                raise ConfigurationError(f"{field}: {version} is not a table version; versions begin with 0")
        given = [version for version in (self.again_from, self.again_to) if version is not None]
        if not given:
            if self.allow_doubles:
                msg = "allow_doubles: only for publishing versions again; set again_from and again_to, or remove it"
                raise ConfigurationError(msg)
            return
        if len(given) == 1:
            msg = "again_from, again_to: set both (the first and the last version to publish again), or neither"
            raise ConfigurationError(msg)
        if self.stop is not None:
            raise ConfigurationError("stop: not allowed with again_from and again_to; again_to is the last version")
        first, last = self.again or (0, 0)
        if first > last:
            raise ConfigurationError(f"again_to: version {last} is before again_from, version {first}")
        if not self.allow_doubles:
            raise ConfigurationError(
                "again_from, again_to: readers of the topic get the records of these versions a second time, after "
                "newer ones",
                "Set allow_doubles: true if that is what you want",
            )
