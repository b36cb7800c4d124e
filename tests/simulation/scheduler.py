"""The scheduler: several runs as one interleaving, which its seed decides."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from greenlet import greenlet

T = TypeVar("T")

_MOST_STEPS = 6000


class Killed(BaseException):
    """The process of a run is dead: nothing that it still does has an effect."""


class StuckError(BaseException):
    """Something waits for ever; no code of the product may handle it."""


@dataclass
class Chances:
    """How often what happens at a call of a port; all zero for an undisturbed turn."""

    switch: float = 0.0
    event: float = 0.0
    fails_before: float = 0.0
    fails_after: float = 0.0
    dies_before: float = 0.0
    dies_after: float = 0.0


@dataclass
class Actor:
    """A process that makes one run after another."""

    name: str
    work: Callable[[], None]
    waits_for: Callable[[], bool] | None = None
    is_dead: bool = False

    def __post_init__(self) -> None:
        self.life = greenlet(self.work)


class Scheduler:
    """Decides at each call of a port who goes on, and whether the call fails.

    Attributes:
        strikes: How many events, failures and deaths the seed had.
        left_out: The numbers of those that do not happen, in a story that is shrunk.
    """

    def __init__(self, seed: int, left_out: frozenset[int] = frozenset()) -> None:
        self.random = random.Random(seed)
        self.strikes = 0
        self.left_out = left_out
        self.schedule: list[str] = []
        self.chances = Chances()
        self.most_events = 60
        self.events: list[tuple[str, Callable[[], str | None]]] = []
        self.on_death: Callable[[Actor], None] = lambda _: None
        self._actors: list[Actor] = []
        self._current: Actor | None = None
        self._is_over = False
        self._steps = 0

    @property
    def actor(self) -> Actor:
        """The actor that moves."""
        assert self._current is not None
        return self._current

    def note(self, what: str) -> None:
        """Adds a line to the schedule."""
        who = self._current.name if self._current is not None else "-"
        self.schedule.append(f"{who}: {what}")

    def run(self, actors: list[Actor]) -> None:
        """Runs the actors to their ends."""
        self._actors, self._steps, self._is_over = actors, 0, False
        try:
            while left := self._left():
                if not (ready := self._ready(left)):
                    msg = "all that is left waits for ever"
                    raise StuckError(msg)
                self._hand_over(self.random.choice(ready))
        finally:
            self._current, self._is_over = None, True
            for actor in self._left():
                with contextlib.suppress(Killed):
                    actor.life.throw(Killed)

    def _left(self) -> list[Actor]:
        return [actor for actor in self._actors if not actor.life.dead]

    def _hand_over(self, actor: Actor) -> None:
        self._current = actor
        actor.life.switch()

    def _ready(self, actors: list[Actor]) -> list[Actor]:
        return [actor for actor in actors if actor.waits_for is None or actor.waits_for()]

    def _switch(self, actor: Actor) -> None:
        if actor is not self._current:
            self._hand_over(actor)

    def call(self, what: str, effect: Callable[[], T], failure: Callable[[], Exception] | None = None) -> T:
        """One call of a port.

        Args:
            what: The call.
            effect: What it does.
            failure: The error with which it may fail, before or after it was done. Default: it doesn't.
        """
        if self._is_over or self.actor.is_dead:
            raise Killed
        self._steps += 1
        if self._steps > _MOST_STEPS:
            msg = f"more than {_MOST_STEPS} steps: something waits for ever"
            raise StuckError(msg)
        chances, strikes = self.chances, self._strikes
        while self.most_events > 0 and self.events and self.random.random() < chances.event:
            self.happen()
        if len(self._actors) > 1 and self.random.random() < chances.switch:
            self._switch(self.random.choice(self._ready(self._left())))
        if strikes(chances.dies_before):
            self._die(f"dies before: {what}")
        if failure is not None and strikes(chances.fails_before):
            self.note(f"fails before: {what}")
            raise failure()
        found = effect()
        self.note(what)
        if failure is not None and strikes(chances.fails_after):
            self.note(f"the answer is lost: {what}")
            raise failure()
        if strikes(chances.dies_after):
            self._die(f"dies after: {what}")
        return found

    def happen(self) -> None:
        """Lets one of the world's events happen."""
        self.most_events -= 1
        name, event = self.random.choice(self.events)
        if self._is_left_out():
            return
        what = event()
        if what is not None:
            self.schedule.append(f"   world: {name} {what}".rstrip())

    def _strikes(self, chance: float) -> bool:
        return self.random.random() < chance and not self._is_left_out()

    def _is_left_out(self) -> bool:
        self.strikes += 1
        return self.strikes in self.left_out

    def _die(self, what: str) -> None:
        self.note(what)
        self.actor.is_dead = True
        self.on_death(self.actor)
        raise Killed

    def wait(self, is_ready: Callable[[], bool], what: str) -> None:
        """Waits for another actor."""
        me = self.actor
        if self._is_over or me.is_dead:
            raise Killed
        if is_ready():
            return
        self.note(f"waits: {what}")
        me.waits_for = is_ready
        if not (ready := self._ready(self._left())):
            msg = f"{me.name} waits for ever: {what}"
            raise StuckError(msg)
        self._switch(self.random.choice(ready))
        me.waits_for = None
        assert is_ready()
