"""Dead-letter fields of commits: the route of a stream's rejected records, and what the other table has settled.

A batch's commit excludes rejected records; they are written to the dead-letter table right after it. Until that table's
commit settles them, they are pending.
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
    """Destination of a batch's rejected records, and the decoder that rejected them.

    Attributes:
        table: The dead-letter table, as text of its DeltaTarget.
        stream: Id of the stream in that table.
        decoder: Description of the decoder; see `formats.description`.
        table_id: Delta's id of the dead-letter table. A table can have several names (a path, a link, a catalog name),
            and a name can refer to another table later.
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
        return {
            "table": self.table,
            "table_id": self.table_id,
            "stream": self.stream,
            "decoder": dict(self.decoder),
            "settled": self.settled,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> DeadLetterRoute:
        """Reads the result of `to_json`."""
        return cls(
            table=document["table"],
            stream=document["stream"],
            decoder=document["decoder"],
            table_id=document["table_id"],
            settled=document["settled"],
        )


@dataclass(frozen=True)
class RoutedBatch:
    """A committed batch with a dead-letter route. Earlier batches have nothing pending.

    Attributes:
        version: The version of the stream's table that the batch created.
        attempt: Id of the batch.
        run_id: Id of the run that committed it.
        splits: Splits of the batch.
        state: The stream's state after the batch.
        route: Destination of the rejected records.
    """

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
            "splits": to_document(SPLIT_SERIALIZER, self.splits),
            "state": to_document(STATE_SERIALIZER, self.state),
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
            splits=from_document(SPLIT_SERIALIZER, batch["splits"]),
            state=from_document(STATE_SERIALIZER, batch["state"]),
            route=DeadLetterRoute.from_json(document),
        )
