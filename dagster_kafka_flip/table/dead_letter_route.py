"""What commits say about dead letters: the stream's where its rejected records go, the other table's what is settled.

A batch's rejected records are left out of its commit and landed in a table of their own right after it. So a commit
that says where they go owes them until the other table says that it has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.source.serializer import from_document, to_document
from dagster_kafka_flip.source.state import SPLIT_SERIALIZER, STATE_SERIALIZER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState


@dataclass(frozen=True)
class DeadLetterRoute:
    """Where a batch's rejected records go, and by what they were rejected.

    Attributes:
        table: The dead-letter table, as its DeltaTarget prints it.
        stream: Id of the stream in that table.
        decoder: Description of the decoder; see `formats.description`.
        table_id: The id that Delta gave the dead-letter table. A table goes by many names (a path, a link to it, a
            catalog name), and under one name there may be another table tomorrow.
        settled: The version of the stream's own table up to which the dead-letter table had all rejected records when
            the batch was committed; None if it had none yet. If it has fewer later on, it was set back.
    """

    table: str
    stream: str
    decoder: Mapping[str, Any]
    table_id: str
    settled: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is kept in a commit's document."""
        return {
            "table": self.table,
            "table_id": self.table_id,
            "stream": self.stream,
            "decoder": dict(self.decoder),
            "settled": self.settled,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DeadLetterRoute:
        """Reads what `to_json` wrote."""
        return cls(
            table=document["table"],
            stream=document["stream"],
            decoder=document["decoder"],
            table_id=document["table_id"],
            settled=document["settled"],
        )


@dataclass(frozen=True)
class RoutedBatch:
    """A committed batch whose rejected records go to a table of their own. No batch before it owes any.

    Attributes:
        version: The version of the stream's table that the batch's commit made.
        attempt: Id of the batch.
        run_id: Id of the run that committed it.
        splits: What it read.
        state: Where the stream stood after it.
        route: Where the rejected records go.
    """

    version: int
    attempt: str
    run_id: str
    splits: tuple[KafkaPartitionSplit, ...]
    state: EnumeratorState
    route: DeadLetterRoute

    def to_json(self) -> dict[str, Any]:
        """As it is kept in the document of another commit than its own."""
        batch = {
            "version": self.version,
            "attempt": self.attempt,
            "run": self.run_id,
            "splits": to_document(SPLIT_SERIALIZER, self.splits),
            "state": to_document(STATE_SERIALIZER, self.state),
        }
        return {**self.route.to_json(), "batch": batch}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RoutedBatch | None:
        """Reads what `to_json` wrote; None for a commit that speaks of its own batch."""
        batch = document.get("batch")
        if batch is None:
            return None
        return cls(
            version=batch["version"],
            attempt=batch["attempt"],
            run_id=batch["run"],
            splits=from_document(SPLIT_SERIALIZER, batch["splits"]),
            state=from_document(STATE_SERIALIZER, batch["state"]),
            route=DeadLetterRoute.from_json(document),
        )
