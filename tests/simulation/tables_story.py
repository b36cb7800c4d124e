"""Stories of several tables that land what one read holds: each has its records once, and all are in step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, cast

from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.run_spec import RunSpec
from dagster_kafka_flip.ingestion.several_tables import TableRun, ingest_tables
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.target import DeltaTarget
from tests.simulation.scheduler import Actor, Chances
from tests.simulation.story import Ended, Story, Stream
from tests.simulation.world import SILENT


class TablesStory(Story):
    """The story of one seed in which runs land one source in several tables."""

    def _make_streams(self) -> None:
        super()._make_streams()
        draw, one = self.random, self.streams[0]
        at = TopicPartition(self._topics[0], 0)
        start = draw.choice(
            (
                OffsetsInitializer.earliest() if one.source.group_id else one.source.starting_offsets,
                OffsetsInitializer.specific_offsets({at: draw.randint(0, self.world.log.partition(at).end)}),
            )
        )
        source = self._source(self._topics, start)
        self.streams = [
            Stream(source, DeltaTarget(table=f"simulated.{table}"), one.limits, one.tolerated)
            for table in ("a", "b", "c")[: draw.choice((2, 2, 3))]
        ]

    def _actors(self) -> list[Actor]:
        return [self._actor(self.streams[0], number) for number in range(self.random.choice((1, 2)))]

    def _try(self, stream: Stream) -> None:
        # Users select some of the tables, too.
        some = [each for each in self.streams if self.random.random() < 0.8] or [stream]
        self._one_try(some, stop=self._stop(stream))

    def _launch(self, streams: Sequence[Stream], source: KafkaSource, start: OffsetsInitializer | None) -> list[Ended]:
        session = cast("Any", self.session)
        runs = {
            stream.target.table: TableRun(
                RunSpec(
                    source=source,
                    target=stream.target,
                    spark=lambda: session,
                    decoder=Decoder.of(None, None, None),
                    limits=stream.limits,
                    tolerated=stream.tolerated,
                    run_id=f"run {self._runs}",
                    log=SILENT,
                ),
                stream.known,
                self.random.choice((None, -1)),
            )
            for stream in streams
        }
        try:
            found = ingest_tables(runs, verify_after=timedelta(hours=24), log=SILENT, starting_offsets=start)
        except KafkaFlipError as error:
            if self.world.scheduler.chances == Chances():
                raise
            return [error] * len(streams)
        ended: list[Any] = [found.failures.get(name) or found.results.get(name) for name in runs]
        assert all(isinstance(one, Ended) for one in ended), f"{list(runs)} ended with {ended}"
        return ended

    def _end(self) -> None:
        for stream in self.streams:
            stream.limits = stream.limits.model_copy(update={"max_batches": None})
        all_in_turn = partial(self._turn, self.streams)
        for turn in (all_in_turn, all_in_turn, self._in_step, all_in_turn):
            if all(stream.has_given_up for stream in self.streams):
                return
            self.world.scheduler.run([Actor("the last turn", turn)])

    def _in_step(self) -> None:
        """While records arrive, all tables come to one stop."""
        scheduler = self.world.scheduler
        for _ in range(2):
            self._produce()
        scheduler.events, scheduler.most_events = [each for each in self._events() if each[0] == "produces"], 10
        scheduler.chances = Chances(event=0.2)
        ended = self._run([stream for stream in self.streams if not stream.has_given_up])
        scheduler.chances = Chances()
        positions = [each if isinstance(each, Exception) else each.state.position for each in ended]
        assert all(position == positions[0] for position in positions), f"the tables are not in step: {positions}"
