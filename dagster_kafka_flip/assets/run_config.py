"""What can be set for one run of an asset, in Dagster's launchpad or a run's config."""

# Without `from __future__ import annotations`: Dagster looks at the types of the fields.

from dagster import Config
from pydantic import Field

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.window import Window


class IngestRunConfig(Config):
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
        """Whether a range of time is replaced, instead of going on from the position.

        Raises:
            ConfigurationError: The mode is none of the two.
        """
        if self.mode not in {"append", "replace"}:
            msg = f"mode: {self.mode!r} is neither append nor replace"
            raise ConfigurationError(msg)
        return self.mode == "replace"

    def window(self) -> Window:
        """The range of time to replace.

        Raises:
            ConfigurationError: Start or stop is no timestamp.
        """
        ends = [OffsetsInitializer.parse(text).timestamp_ms if text else None for text in (self.start, self.stop)]
        start, stop = ends
        if start is None or stop is None:
            msg = (
                "mode: replace needs start and stop as timestamps, such as timestamp:2026-01-31T00:00:00Z; what it "
                "replaces is a range of time"
            )
            raise ConfigurationError(msg)
        return Window.between(start, stop)


class WindowsRunConfig(Config):
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
