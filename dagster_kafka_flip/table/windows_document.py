"""The document of a commit that replaces time windows: the windows and their offsets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.source.incident import Incident
from dagster_kafka_flip.source.serializer import from_document, to_document
from dagster_kafka_flip.source.state import (
    SPLIT_SERIALIZER,
    STATE_SERIALIZER,
)
from dagster_kafka_flip.source.window import Window
from dagster_kafka_flip.table.marked_json import read_marked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState

# Table property of streams' tables, so that an empty one is not used for windows.
STREAMS_PROPERTY = "dagster-kafka-flip.streams"
WINDOWS_PROPERTY = "dagster-kafka-flip.windows"
"""Table property that marks a table of windows; it contains the window definition."""
MODE_PROPERTY = f"{WINDOWS_PROPERTY}.mode"
"""Table property that tells exact windows from windows by offset, of an earlier version."""
EXACT = "exact"

WINDOWS_DOCUMENT_VERSION = 1
_MARK = "dagster-kafka-flip/windows"


@dataclass(frozen=True)
class WindowsDocument:
    """Content of the `userMetadata` of a commit of windows. Fixed before the write starts.

    Attributes:
        attempt: Id of the plan.
        run_id: Id of the run that wrote it.
        base_version: Version of the table that the plan is based on.
        mode: `exact` or `repair`; `offset` in tables of an earlier version, which are refused.
        windows: Consecutive windows in time order.
        splits: The splits that were read.
        state: Cluster, topics and read offsets of the table's rows; includes topics of earlier commits, so that the
            newest commit has the full state.
        topics: The topics whose rows were replaced; None for all.
        repairs: Id of the repaired stream.
        incidents: Tolerated errors.
        until_ms: End of the last window of this or an earlier commit, in milliseconds since the epoch.
        schemas: The schemas that records were met with or read as, by `key` and `value`, for formats with a registry.
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
        document: dict[str, Any] = {
            _MARK: WINDOWS_DOCUMENT_VERSION,
            "attempt": self.attempt,
            "run": self.run_id,
            "base": self.base_version,
            "mode": self.mode,
            "windows": [[window.key, window.start_ms, window.stop_ms] for window in self.windows],
            "splits": to_document(SPLIT_SERIALIZER, self.splits),
            "state": to_document(STATE_SERIALIZER, self.state),
        }
        if self.topics is not None:
            document["topics"] = list(self.topics)
        if self.repairs is not None:
            document["repairs"] = self.repairs
        if self.incidents:
            document["incidents"] = [incident.to_json() for incident in self.incidents]
        if self.until_ms is not None:
            document["until"] = self.until_ms
        if self.schemas:
            document["schemas"] = {side: list(frames) for side, frames in self.schemas.items()}
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str | None) -> WindowsDocument | None:
        """Reads a commit's `userMetadata`; None if it is not a windows document.

        Raises:
            DocumentVersionError: A newer version of this package wrote it, or it is damaged.
        """
        return read_marked(text, _MARK, WINDOWS_DOCUMENT_VERSION, "a document of windows", cls._from_json)

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> WindowsDocument:
        topics = document.get("topics")
        return cls(
            attempt=document["attempt"],
            run_id=document["run"],
            base_version=document["base"],
            mode=document["mode"],
            windows=tuple(Window(*window) for window in document["windows"]),
            splits=from_document(SPLIT_SERIALIZER, document["splits"]),
            state=from_document(STATE_SERIALIZER, document["state"]),
            topics=None if topics is None else tuple(topics),
            repairs=document.get("repairs"),
            incidents=tuple(Incident(**incident) for incident in document.get("incidents", ())),
            until_ms=document.get("until"),
            schemas=document.get("schemas", {}),
        )
