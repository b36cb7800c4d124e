"""Stories of several tables that land what one read holds: each has its records once, and all are in step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

from dagster_kafka_flip.errors import KafkaFlipError, OffsetOutOfRangeError
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.run_spec import RunSpec
from dagster_kafka_flip.ingestion.several_tables import TableRun, ingest_tables
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.target import DeltaTarget
from tests.simulation.scheduler import Actor, Chances
from tests.simulation.story import MOST_TURNS, Ended, Story, Stream, WrongError
from tests.simulation.world import CONNECTION, SILENT, SimSource


class TablesStory(Story):
    """The story of one seed in which runs land one source in several tables."""

    def _make_streams(self) -> None:
        super()._make_streams()
        draw, one = self.random, self.streams[0]
        at = TopicPartition(self._topics[0], 0)
        start = draw.choice(
            (
                one.source.starting_offsets,
                OffsetsInitializer.specific_offsets({at: draw.randint(0, self.world.log.partition(at).end)}),
            )
        )
        source = self._source(start)
        self.streams = [
            Stream(source, DeltaTarget(table=f"simulated.{table}"), one.limits, one.tolerated)
            for table in ("a", "b", "c")[: draw.choice((2, 2, 3))]
        ]

    def _actors(self) -> list[Actor]:
        return [self._actor(self.streams[0], number) for number in range(self.random.choice((1, 2)))]

    def _one_try(self, stream: Stream) -> None:
        # Users select some of the tables, too.
        some = [each for each in self.streams if self.random.random() < 0.8] or [stream]
        for each, ended in zip(some, self._run(some, stop=self._stop(stream)), strict=True):
            if isinstance(ended, KafkaFlipError):
                self._met(each, ended)

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
        ended: list[Ended] = []
        for name in runs:
            one = found.failures.get(name) or found.results.get(name)
            if not isinstance(one, Ended):
                msg = f"{name} ended with {one!r}"
                raise WrongError(msg)
            ended.append(one)
        return ended

    def _end(self) -> None:
        self.streams = [_unlimited(stream) for stream in self.streams]
        for turn in (self._all_in_turn, self._all_in_turn, self._in_step, self._all_in_turn):
            if all(stream.has_given_up for stream in self.streams):
                return
            self.world.scheduler.run([Actor("the last turn", turn)])

    def _all_in_turn(self) -> None:
        """All tables run together, and each that fails runs alone as its message says."""
        self.world.now += timedelta(hours=25)
        for _ in range(MOST_TURNS):
            if not (streams := [stream for stream in self.streams if not stream.has_given_up]):
                return
            ended = dict(zip(map(id, streams), self._run(streams), strict=True))
            for stream in streams:
                self._follow_all(stream, ended[id(stream)])
            if all(not isinstance(each, Exception) and each.is_idle for each in ended.values()):
                for stream in streams:
                    self._check_position(stream, cast("Any", ended[id(stream)]))
                return
        msg = "the tables do not come to rest"
        raise WrongError(msg)

    def _follow_all(self, stream: Stream, ended: Ended) -> None:
        for _ in range(MOST_TURNS):
            if not isinstance(ended, KafkaFlipError):
                return
            self._met(stream, ended)
            if (start := self._follow(stream, ended)) is None:
                return
            (ended,) = self._run([stream], start)
        msg = f"{stream} does not come to rest"
        raise WrongError(msg)

    def _follow(self, stream: Stream, error: KafkaFlipError) -> OffsetsInitializer | None:
        if not isinstance(error, OffsetOutOfRangeError):
            return super()._follow(stream, error)
        # Of a topic that was made again, before there was a position.
        for each in self.streams:
            each.source, each.has_chosen_start = self._source(OffsetsInitializer.earliest()), True
        return None

    def _source(self, start: OffsetsInitializer) -> SimSource:
        return SimSource(topics=tuple(self._topics), connection=CONNECTION, starting_offsets=start, world=self.world)

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
        if any(position != positions[0] for position in positions):
            msg = f"the tables are not in step: {positions}"
            raise WrongError(msg)


def _unlimited(stream: Stream) -> Stream:
    stream.limits = Limits(max_records_per_batch=stream.limits.max_records_per_batch)
    return stream
