"""Documents of commits: the position of a stream, or the windows, atomically with the rows."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from dagster_kafka_flip.errors import ConfigurationError, DocumentVersionError
from dagster_kafka_flip.source.incident import Incident
from dagster_kafka_flip.source.state import EnumeratorState, splits_from_json, splits_to_json
from dagster_kafka_flip.source.window import Window
from dagster_kafka_flip.table.mode import Append, Mode, key_of, kind_of, mode_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from dagster_kafka_flip.source.split import KafkaPartitionSplit


@dataclass(frozen=True)
class TableVersion:
    """A version of a table, identified by the table's id."""

    table: str
    table_id: str
    version: int


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


@dataclass(frozen=True, kw_only=True)
class Document:
    """What each commit has in its `userMetadata`, whoever makes it. Fixed before the write starts.

    Attributes:
        attempt: Id of the planned batch, the same for all retries.
        base_version: Version of the table that the plan goes out from.
        state: The position and the logs after the commit.
        schemas: The schemas that the records were met with or read as, by `key` and `value`, for formats with a
            registry.
    """

    mark: ClassVar[str]
    what: ClassVar[str]

    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    run_id: str = ""
    base_version: int
    splits: tuple[KafkaPartitionSplit, ...] = ()
    state: EnumeratorState
    incidents: tuple[Incident, ...] = ()
    schemas: Mapping[str, Sequence[str]] = field(default_factory=dict[str, "Sequence[str]"])

    def to_text(self) -> str:
        document = {
            self.mark: DOCUMENT_VERSION,
            **self._to_json(),
            "attempt": self.attempt,
            "run": self.run_id,
            "base": self.base_version,
            "splits": splits_to_json(self.splits),
            "state": self.state.to_json(),
            "incidents": [incident.to_json() for incident in self.incidents] or None,
            "schemas": {side: list(frames) for side, frames in self.schemas.items()} or None,
        }
        # Earlier readers want the number of rows, also where it is unknown.
        kept = {key: value for key, value in document.items() if value is not None or key == "rows_before"}
        return json.dumps(kept, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str | None) -> Self | None:
        """Reads a commit's `userMetadata`; None if it is empty, foreign, or of another kind."""
        document = _marked_object(text, cls.mark)
        if document is None:
            return None
        version = document[cls.mark]
        if isinstance(version, int) and version > DOCUMENT_VERSION:
            raise DocumentVersionError(
                f"a commit of this table was written by a newer dagster-kafka-flip (document version {version}; this "
                f"version reads up to {DOCUMENT_VERSION}): upgrade dagster-kafka-flip"
            )
        try:
            return cls(
                attempt=document["attempt"],
                run_id=document["run"],
                base_version=document["base"],
                splits=splits_from_json(document["splits"]),
                state=EnumeratorState.from_json(document["state"]),
                incidents=tuple(Incident(**incident) for incident in document.get("incidents", ())),
                schemas=document.get("schemas", {}),
                **cls._of_json(document),
            )
        except (KeyError, TypeError, ValueError, AttributeError, ConfigurationError) as error:
            raise DocumentVersionError(
                f"a commit of this table contains {cls.what} that can't be read ({type(error).__name__}: {error}): it "
                "is damaged, or was written by an early development version",
                "Use another table",
            ) from error

    def _to_json(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def _of_json(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError


def _marked_object(text: str | None, mark: str) -> dict[str, Any] | None:
    if text is None or mark not in text:
        return None
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) and mark in document else None


@dataclass(frozen=True, kw_only=True)
class CommitDocument(Document):
    """The document of a stream's commit.

    Attributes:
        anchor_version: Version of the commit that defined the position.
        after: Attempt of the stream's commit that had that position; None if there is none, or if it is unknown.
        rows_before: Rows of the table at `base_version`.
        reason: Reason for a manual move of the position; None for the commit of a run.
        dead_letter: Route of the batch's rejected records; None if they fail the run or are kept.
        carried: The last batch with such a route, in a commit that only moves the position.
        settles: In a dead-letter table: the commit up to which all rejected records are settled. Uses the version, not
            the position: a position can decrease by a RESTORE or a manual move, a version can't.
        doubt: Open question about the previous commit that stops runs until a user decides, as finding, outcome and
            advice; None if there is none.
    """

    mark = "dagster-kafka-flip"
    what = "a position"

    stream: str
    anchor_version: int
    rows_before: int | None = None
    overrides_start: bool = False
    reason: str | None = None
    dead_letter: DeadLetterRoute | None = None
    carried: RoutedBatch | None = None
    settles: TableVersion | None = None
    doubt: tuple[str, str, str] | None = None
    mode: Mode = _APPEND
    after: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return key_of(self.mode)

    def routed(self, version: int) -> RoutedBatch | None:
        """The last batch with a dead-letter route, as of this document."""
        if self.carried is not None or self.dead_letter is None:
            return self.carried
        return RoutedBatch(version, self.attempt, self.run_id, self.splits, self.state, self.dead_letter)

    def _to_json(self) -> dict[str, Any]:
        route = self.carried or self.dead_letter
        return {
            "stream": self.stream,
            "anchor": self.anchor_version,
            "rows_before": self.rows_before,
            "after": self.after,
            "overrides_start": self.overrides_start or None,
            "reason": self.reason,
            "dead_letter": None if route is None else route.to_json(),
            "settles": None if self.settles is None else asdict(self.settles),
            "doubt": self.doubt,
            "key": self.key or None,
            "mode": kind_of(self.mode) or None,
        }

    @classmethod
    def _of_json(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        route, settles, doubt = (document.get(name) for name in ("dead_letter", "settles", "doubt"))
        return {
            "stream": document["stream"],
            "anchor_version": document["anchor"],
            "rows_before": document.get("rows_before"),
            "overrides_start": document.get("overrides_start", False),
            "reason": document.get("reason"),
            "dead_letter": None if route is None else DeadLetterRoute.from_json(route),
            "carried": None if route is None else RoutedBatch.from_json(route),
            "settles": None if settles is None else TableVersion(**settles),
            "doubt": None if doubt is None else (doubt[0], doubt[1], doubt[2]),
            "mode": mode_of(tuple(document.get("key", ())), document.get("mode", {})),
            "after": document.get("after"),
        }


# Table property of streams' tables, so that an empty one is not used for windows.
STREAMS_PROPERTY = "dagster-kafka-flip.streams"
WINDOWS_PROPERTY = "dagster-kafka-flip.windows"
"""Table property that marks a table of windows; it contains the window definition."""


@dataclass(frozen=True, kw_only=True)
class WindowsDocument(Document):
    """The document of a commit of windows; its state has the logs of all rows, also of earlier commits.

    Attributes:
        windows: Consecutive windows in time order.
        topics: The topics whose rows were replaced; None for all.
        repairs: Id of the repaired stream; None in a table of windows.
        until_ms: End of the last window of this or an earlier commit.
    """

    mark = "dagster-kafka-flip/windows"
    what = "a document of windows"

    windows: tuple[Window, ...]
    topics: tuple[str, ...] | None = None
    repairs: str | None = None
    until_ms: int | None = None

    def overlaps(self, other: WindowsDocument) -> bool:
        """Whether both replace rows of the same window, or have windows of the same time."""
        if self.topics is not None and other.topics is not None and not set(self.topics) & set(other.topics):
            return False
        both = self.windows, other.windows
        begin = max(min((window.start_ms for window in each), default=0) for each in both)
        end = min(max((window.stop_ms for window in each), default=0) for each in both)
        return begin < end or bool({window.key for window in self.windows} & {window.key for window in other.windows})

    def _to_json(self) -> dict[str, Any]:
        return {
            "windows": [[window.key, window.start_ms, window.stop_ms] for window in self.windows],
            "topics": self.topics,
            "repairs": self.repairs,
            "until": self.until_ms,
        }

    @classmethod
    def _of_json(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        topics = document.get("topics")
        return {
            "windows": tuple(Window(*window) for window in document["windows"]),
            "topics": None if topics is None else tuple(topics),
            "repairs": document.get("repairs"),
            "until_ms": document.get("until"),
        }
