"""Lanes: all lanes of one run, and who owns them. Each transaction begins as a run does, by becoming the owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import SinkFencedError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.sink.lane import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.sink.progress import Progress
    from dagster_kafka_flip.sink.progress_topic import ProgressTopic
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.telemetry.repeatedly import Log


class Lanes:
    """The lanes of one run."""

    def __init__(
        self,
        connection: KafkaConnection,
        sink: KafkaSink,
        topic: ProgressTopic,
        batch_bytes: Callable[[], int | None],
        unready: Callable[[], str],
        log: Log,
    ) -> None:
        self._sink, self._topic = sink, topic
        self._is_exact = sink.delivery_guarantee == "exactly_once"
        self._lanes = [Lane(connection, sink, number, batch_bytes, unready, log) for number in range(sink.lanes)]

    def __getitem__(self, number: int) -> Lane:
        return self._lanes[number]

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def own(self) -> dict[int, Progress]:
        """Opens the lanes that are not open, for one transaction each under exactly once; returns their progress.

        Under exactly once, only this run can change it now.
        """
        closed = [lane for lane in self._lanes if not lane.is_open]
        # All of them connect at the same time.
        for lane in closed:
            lane.connect()
        for lane in closed:
            lane.open()
        return self._topic.read(settled=self._is_exact)

    def own_again(self, committed: Sequence[Progress]) -> None:
        """Opens the lanes for the next transactions, unless another run has published since."""
        if self._is_exact:
            # Looked at before, too: a run that was frozen is not to fence the one that came after it. What this run
            # has just committed may not be visible yet.
            for lane, progress in self._topic.read(settled=False).items():
                known = committed[lane]
                if (progress.version, progress.rows) > (known.version, known.rows):
                    raise self._overtaken(progress, known)
        found = self.own()
        for known in committed if self._is_exact else ():
            if found.get(known.lane) != known:
                raise self._overtaken(found.get(known.lane), known)

    def close(self) -> None:
        """Aborts what is open, and ends the producers. Safe to call twice."""
        for lane in self._lanes:
            lane.close()

    def _overtaken(self, found: Progress | None, known: Progress) -> SinkFencedError:
        has = "no progress" if found is None else _shown(found)
        return SinkFencedError(
            f"another run of the sink {self._sink.transactional_id_prefix} has taken over the transactional id "
            f"{self._sink.transactional_id(known.lane)}: this run committed {_shown(known)}, and the progress topic "
            f"{self._topic.name} has {has}. What this run has committed stays; leave the rest to the other run",
            "If you expect no other run, find out who else uses this transactional_id_prefix",
        )


def _shown(progress: Progress) -> str:
    if (progress.version, progress.rows) == (progress.origin.before, 0):
        return "nothing yet"
    return f"version {progress.version} and {counted(progress.rows, 'row')} of the next"
