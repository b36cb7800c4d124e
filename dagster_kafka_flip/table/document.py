"""Documents of commits: the position of a stream, or the windows, atomically with the rows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_kafka_flip.errors import ConfigurationError, DocumentVersionError
from dagster_kafka_flip.source.incident import Incident
from dagster_kafka_flip.source.state import EnumeratorState, splits_from_json, splits_to_json
from dagster_kafka_flip.source.window import Window
from dagster_kafka_flip.table.mode import Append, Mode, key_of, kind_of, mode_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit

T = TypeVar("T")


def read_marked(text: str | None, mark: str, version: int, what: str, read: Callable[[dict[str, Any]], T]) -> T | None:
    """Reads a commit's `userMetadata`; None if it is empty or foreign."""
    document = _marked_object(text, mark)
    if document is None:
        return None
    if isinstance(document[mark], int) and document[mark] > version:
        raise DocumentVersionError(
            f"a commit of this table was written by a newer dagster-kafka-flip (document version {document[mark]}; "
            f"this version reads up to {version}): upgrade dagster-kafka-flip"
        )
    try:
        return read(document)
    except (KeyError, TypeError, ValueError, AttributeError, ConfigurationError) as error:
        raise DocumentVersionError(
            f"a commit of this table contains {what} that can't be read ({type(error).__name__}: {error}): it is "
            "damaged, or was written by an early development version",
            "Use another table",
        ) from error


def _marked_object(text: str | None, mark: str) -> dict[str, Any] | None:
    if text is None or mark not in text:
        return None
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) and mark in document else None


def _compact(document: Mapping[str, Any], **optional: Any) -> str:
    """The text of a document, without the optional keys that are None."""
    there = {name: value for name, value in optional.items() if value is not None}
    return json.dumps({**document, **there}, separators=(",", ":"))


@dataclass(frozen=True)
class TableVersion:
    """A version of a table, identified by the table's id."""

    table: str
    table_id: str
    version: int

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TableVersion:
        """Reads the fields in a commit's document."""
        return cls(document["table"], document["table_id"], document["version"])


# Dead-letter fields of commits: the route of a stream's rejected records, and what the other table has settled.
#
# A batch's commit excludes rejected records; they are written to the dead-letter table right after it. Until that
# table's commit settles them, they are pending.


@dataclass(frozen=True)
class DeadLetterRoute:
    """Destination of a batch's rejected records, and the decoder that rejected them.

    Attributes:
        decoder: See `formats.description`.
        table_id: Delta's id of the dead-letter table: a table can have several names, and a name another table later.
        settled: Version of the stream's own table up to which the dead-letter table had all rejected records when the
            batch was committed; None if it had none yet. If it has fewer later, it was rolled back.
    """

    table: str
    stream: str
    decoder: Mapping[str, Any]
    table_id: str
    settled: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Serializes the route for a commit's document."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DeadLetterRoute:
        """Reads the result of `to_json`, which may have a batch, too."""
        return cls(**{each.name: document[each.name] for each in fields(cls)})


@dataclass(frozen=True)
class RoutedBatch:
    """A committed batch with a dead-letter route. Earlier batches have nothing pending."""

    version: int
    attempt: str
    run_id: str
    splits: tuple[KafkaPartitionSplit, ...]
    state: EnumeratorState
    route: DeadLetterRoute

    def to_json(self) -> dict[str, Any]:
        """Serializes the batch for the document of a later commit."""
        batch = {
            "version": self.version,
            "attempt": self.attempt,
            "run": self.run_id,
            "splits": splits_to_json(self.splits),
            "state": self.state.to_json(),
        }
        return {**self.route.to_json(), "batch": batch}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RoutedBatch | None:
        """Reads the result of `to_json`; None for a commit with its own batch."""
        batch = document.get("batch")
        if batch is None:
            return None
        return cls(
            version=batch["version"],
            attempt=batch["attempt"],
            run_id=batch["run"],
            splits=splits_from_json(batch["splits"]),
            state=EnumeratorState.from_json(batch["state"]),
            route=DeadLetterRoute.from_json(document),
        )


DOCUMENT_VERSION = 1
_APPEND = Append()
_MARK = "dagster-kafka-flip"


@dataclass(frozen=True)
class CommitDocument:
    """Content of a commit's `userMetadata`. Fixed before the write starts.

    Attributes:
        stream: Id of the stream.
        attempt: Id of the planned batch, the same for all retries.
        run_id: Id of the run that wrote it.
        base_version: Version of the table at which the position was read.
        anchor_version: Version of the commit that defined that position.
        after: Attempt of the stream's commit that had that position; None if there is none, or if it is unknown.
        splits: Splits of the batch.
        state: The stream's state after the commit.
        rows_before: Rows of the table at `base_version`.
        overrides_start: Whether the run's start was overridden.
        reason: Reason for a manual move of the position; None for the commit of a run.
        dead_letter: Route of the batch's rejected records; None if they fail the run or are kept.
        carried: The last batch with such a route, in a commit that only moves the position.
        incidents: Tolerated errors.
        settles: In a dead-letter table: the commit up to which all rejected records are settled. Uses the version, not
            the position: a position can decrease by a RESTORE or a manual move, a version can't.
        schemas: The schemas that the stream's records were met with or read as, by `key` and `value`, for formats with
            a registry.
        doubt: Open question about the previous commit that stops runs until a user decides, as finding, outcome and
            advice; None if there is none.
        mode: What became of the rows.
    """

    stream: str
    attempt: str
    run_id: str
    base_version: int
    anchor_version: int
    splits: tuple[KafkaPartitionSplit, ...]
    state: EnumeratorState
    rows_before: int | None = None
    overrides_start: bool = False
    reason: str | None = None
    dead_letter: DeadLetterRoute | None = None
    carried: RoutedBatch | None = None
    settles: TableVersion | None = None
    incidents: tuple[Incident, ...] = ()
    schemas: Mapping[str, Sequence[str]] = field(default_factory=dict[str, "Sequence[str]"])
    doubt: tuple[str, str, str] | None = None
    mode: Mode = _APPEND
    after: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify the table's rows; empty if rows are appended."""
        return key_of(self.mode)

    def routed(self, version: int) -> RoutedBatch | None:
        """The last batch with a dead-letter route, as of this document."""
        if self.carried is not None or self.dead_letter is None:
            return self.carried
        return RoutedBatch(version, self.attempt, self.run_id, self.splits, self.state, self.dead_letter)

    def to_text(self) -> str:
        """The document as compact JSON."""
        route = self.carried or self.dead_letter
        return _compact(
            {
                _MARK: DOCUMENT_VERSION,
                "stream": self.stream,
                "attempt": self.attempt,
                "run": self.run_id,
                "base": self.base_version,
                "anchor": self.anchor_version,
                "splits": splits_to_json(self.splits),
                "state": self.state.to_json(),
                "rows_before": self.rows_before,
            },
            after=self.after,
            overrides_start=self.overrides_start or None,
            reason=self.reason,
            dead_letter=None if route is None else route.to_json(),
            settles=None if self.settles is None else asdict(self.settles),
            doubt=self.doubt,
            key=self.key or None,
            mode=kind_of(self.mode) or None,
            incidents=[incident.to_json() for incident in self.incidents] or None,
            schemas={side: list(frames) for side, frames in self.schemas.items()} or None,
        )

    @classmethod
    def from_text(cls, text: str | None) -> CommitDocument | None:
        """Reads a commit's `userMetadata`; None if it is empty or foreign."""
        return read_marked(text, _MARK, DOCUMENT_VERSION, "a position", cls._from_json)

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> CommitDocument:
        return cls(
            stream=document["stream"],
            attempt=document["attempt"],
            run_id=document["run"],
            base_version=document["base"],
            anchor_version=document["anchor"],
            splits=splits_from_json(document["splits"]),
            state=EnumeratorState.from_json(document["state"]),
            rows_before=document["rows_before"],
            overrides_start=document.get("overrides_start", False),
            reason=document.get("reason"),
            dead_letter=None if (route := document.get("dead_letter")) is None else DeadLetterRoute.from_json(route),
            carried=None if route is None else RoutedBatch.from_json(route),
            incidents=tuple(Incident(**incident) for incident in document.get("incidents", ())),
            settles=None if (settles := document.get("settles")) is None else TableVersion.from_json(settles),
            schemas=document.get("schemas", {}),
            doubt=None if (doubt := document.get("doubt")) is None else (doubt[0], doubt[1], doubt[2]),
            mode=mode_of(tuple(document.get("key", ())), document.get("mode", {})),
            after=document.get("after"),
        )


# Table property of streams' tables, so that an empty one is not used for windows.
STREAMS_PROPERTY = "dagster-kafka-flip.streams"
WINDOWS_PROPERTY = "dagster-kafka-flip.windows"
"""Table property that marks a table of windows; it contains the window definition."""
EXACT = "exact"

WINDOWS_DOCUMENT_VERSION = 1
_WINDOWS_MARK = "dagster-kafka-flip/windows"


@dataclass(frozen=True)
class WindowsDocument:
    """Content of the `userMetadata` of a commit of windows. Fixed before the write starts.

    Attributes:
        mode: `exact` or `repair`.
        windows: Consecutive windows in time order.
        state: Cluster, topics and read offsets of the table's rows, also of earlier commits.
        topics: The topics whose rows were replaced; None for all.
        repairs: Id of the repaired stream.
        until_ms: End of the last window of this or an earlier commit.
        schemas: See `CommitDocument`.
    """

    attempt: str
    run_id: str
    base_version: int
    mode: str
    windows: tuple[Window, ...]
    splits: tuple[KafkaPartitionSplit, ...]
    state: EnumeratorState
    topics: tuple[str, ...] | None = None
    repairs: str | None = None
    incidents: tuple[Incident, ...] = ()
    until_ms: int | None = None
    schemas: Mapping[str, Sequence[str]] = field(default_factory=dict[str, "Sequence[str]"])

    def overlaps(self, other: WindowsDocument) -> bool:
        """Whether both replace rows of the same window, or have windows of the same time."""
        if self.topics is not None and other.topics is not None and not set(self.topics) & set(other.topics):
            return False
        both = self.windows, other.windows
        begin = max(min((window.start_ms for window in each), default=0) for each in both)
        end = min(max((window.stop_ms for window in each), default=0) for each in both)
        return begin < end or bool({window.key for window in self.windows} & {window.key for window in other.windows})

    def to_text(self) -> str:
        """The document as compact JSON."""
        return _compact(
            {
                _WINDOWS_MARK: WINDOWS_DOCUMENT_VERSION,
                "attempt": self.attempt,
                "run": self.run_id,
                "base": self.base_version,
                "mode": self.mode,
                "windows": [[window.key, window.start_ms, window.stop_ms] for window in self.windows],
                "splits": splits_to_json(self.splits),
                "state": self.state.to_json(),
            },
            topics=self.topics,
            repairs=self.repairs,
            incidents=[incident.to_json() for incident in self.incidents] or None,
            until=self.until_ms,
            schemas={side: list(frames) for side, frames in self.schemas.items()} or None,
        )

    @classmethod
    def from_text(cls, text: str | None) -> WindowsDocument | None:
        """Reads a commit's `userMetadata`; None if it is not a windows document."""
        return read_marked(text, _WINDOWS_MARK, WINDOWS_DOCUMENT_VERSION, "a document of windows", cls._from_json)

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> WindowsDocument:
        topics = document.get("topics")
        return cls(
            attempt=document["attempt"],
            run_id=document["run"],
            base_version=document["base"],
            mode=document["mode"],
            windows=tuple(Window(*window) for window in document["windows"]),
            splits=splits_from_json(document["splits"]),
            state=EnumeratorState.from_json(document["state"]),
            topics=None if topics is None else tuple(topics),
            repairs=document.get("repairs"),
            incidents=tuple(Incident(**incident) for incident in document.get("incidents", ())),
            until_ms=document.get("until"),
            schemas=document.get("schemas", {}),
        )
