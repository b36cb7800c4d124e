"""The document in every commit of a stream: stores the position atomically with the rows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.source.incident import Incident
from dagster_kafka_flip.source.serializer import from_document, to_document
from dagster_kafka_flip.source.state import SPLIT_SERIALIZER, STATE_SERIALIZER
from dagster_kafka_flip.table.dead_letter_route import DeadLetterRoute, RoutedBatch
from dagster_kafka_flip.table.marked_json import read_marked
from dagster_kafka_flip.table.mode import Append, Mode, key_of, kind_of, mode_of
from dagster_kafka_flip.table.table_version import TableVersion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState

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
        doubt: Open question about the previous commit that stops runs until a user decides; None if there is none.
        replays: In a replay table: the commit whose splits were replayed.
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
    replays: TableVersion | None = None
    schemas: Mapping[str, Sequence[str]] = field(default_factory=dict[str, "Sequence[str]"])
    doubt: str | None = None
    mode: Mode = _APPEND
    after: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify the table's rows; empty if rows are appended."""
        return key_of(self.mode)

    def routed(self, version: int) -> RoutedBatch | None:
        """The last batch with a dead-letter route, as of this document.

        Args:
            version: The version of the document's commit.
        """
        if self.carried is not None or self.dead_letter is None:
            return self.carried
        return RoutedBatch(version, self.attempt, self.run_id, self.splits, self.state, self.dead_letter)

    def to_text(self) -> str:
        """The document as compact JSON."""
        document: dict[str, Any] = {
            _MARK: DOCUMENT_VERSION,
            "stream": self.stream,
            "attempt": self.attempt,
            "run": self.run_id,
            "base": self.base_version,
            "anchor": self.anchor_version,
            "splits": to_document(SPLIT_SERIALIZER, self.splits),
            "state": to_document(STATE_SERIALIZER, self.state),
            "rows_before": self.rows_before,
        }
        if self.after is not None:
            document["after"] = self.after
        if self.overrides_start:
            document["overrides_start"] = True
        if self.reason is not None:
            document["reason"] = self.reason
        if self.carried is not None:
            document["dead_letter"] = self.carried.to_json()
        elif self.dead_letter is not None:
            document["dead_letter"] = self.dead_letter.to_json()
        if self.settles is not None:
            document["settles"] = asdict(self.settles)
        if self.replays is not None:
            document["replays"] = asdict(self.replays)
        if self.doubt is not None:
            document["doubt"] = self.doubt
        lists: dict[str, Any] = {
            "key": list(self.key),
            "mode": kind_of(self.mode),
            "incidents": [incident.to_json() for incident in self.incidents],
            "schemas": {side: list(frames) for side, frames in self.schemas.items()},
        }
        document |= {name: value for name, value in lists.items() if value}
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str | None) -> CommitDocument | None:
        """Reads a commit's `userMetadata`; None if it is empty or foreign.

        Raises:
            DocumentVersionError: A newer version of this package wrote it, or it is damaged.
        """
        return read_marked(text, _MARK, DOCUMENT_VERSION, "a position", cls._from_json)

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> CommitDocument:
        return cls(
            stream=document["stream"],
            attempt=document["attempt"],
            run_id=document["run"],
            base_version=document["base"],
            anchor_version=document["anchor"],
            splits=from_document(SPLIT_SERIALIZER, document["splits"]),
            state=from_document(STATE_SERIALIZER, document["state"]),
            rows_before=document["rows_before"],
            overrides_start=document.get("overrides_start", False),
            reason=document.get("reason"),
            dead_letter=None if (route := document.get("dead_letter")) is None else DeadLetterRoute.from_json(route),
            carried=None if route is None else RoutedBatch.from_json(route),
            incidents=tuple(Incident(**incident) for incident in document.get("incidents", ())),
            settles=None if (settles := document.get("settles")) is None else TableVersion.from_json(settles),
            replays=None if (replays := document.get("replays")) is None else TableVersion.from_json(replays),
            schemas=document.get("schemas", {}),
            doubt=document.get("doubt"),
            mode=mode_of(tuple(document.get("key", ())), document.get("mode", {})),
            after=document.get("after"),
        )
