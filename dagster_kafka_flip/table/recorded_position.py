"""RecordedPosition: a copy of a stream's position, for when the table's history no longer has it."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import PositionLostError
from dagster_kafka_flip.source.next_step import TOPIC, set_position
from dagster_kafka_flip.table.anchor import Anchor

if TYPE_CHECKING:
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)

LOG_RETENTION = "delta.logRetentionDuration"
DEFAULT_LOG_RETENTION = timedelta(days=30)

# Delta cleans up its log by whole days, so no useful setting deletes a younger commit.
TOO_YOUNG_TO_ASK = timedelta(hours=24)

_INTERVAL = re.compile(r"(?:interval\s+)?(?P<parts>\S.*)", re.DOTALL)
_PART = re.compile(r"([+-]?\d+(?:\.\d*)?)\s*(microsecond|millisecond|second|minute|hour|day|week)s?(?:\s+|$)")
_MICROSECONDS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_LONGEST = timedelta.max // timedelta(microseconds=1)


def log_retention(text: str | None, target: DeltaTarget) -> timedelta:
    """A table's log retention; if it can't be parsed, the shortest reasonable value."""
    parsed = parse_log_retention(text)
    if parsed is not None:
        return parsed
    _logger.warning(
        "%s of %s is %r, which can't be parsed; assuming the shortest reasonable value, %s",
        LOG_RETENTION,
        target,
        text,
        2 * TOO_YOUNG_TO_ASK,
    )
    return 2 * TOO_YOUNG_TO_ASK


def parse_log_retention(text: str | None) -> timedelta | None:
    """Parses `delta.logRetentionDuration`, such as `interval 30 days`; None if it can't be parsed.

    Delta does not allow months and years here, because their length varies. Values above the maximum of `timedelta` are
    reduced to it.
    """
    if text is None:
        return DEFAULT_LOG_RETENTION
    interval = _INTERVAL.fullmatch(text.strip().lower())
    rest = "" if interval is None else interval["parts"]
    microseconds = Decimal(0)
    while rest:
        part = _PART.match(rest)
        if part is None:
            return None
        microseconds += Decimal(part[1]) * _MICROSECONDS[part[2]]
        rest = rest[part.end() :]
    if interval is None or microseconds < 0:
        return None
    return timedelta(microseconds=int(min(microseconds, _LONGEST)))


@dataclass(frozen=True)
class RecordedPosition:
    """A stream's position that was read from the table and recorded elsewhere.

    Attributes:
        state: The stream's state.
        table_version: The table's newest version at that time.
        anchor_version: Version of the commit that defined the position.
        transaction_version: Transaction version of that commit; None if unknown.
        dead_letters_pending: Whether dead letters may have been pending.
    """

    state: EnumeratorState
    table_version: int
    anchor_version: int
    transaction_version: int | None
    dead_letters_pending: bool


def recorded_anchor(
    record: RecordedPosition | None, target: DeltaTarget, found: int | None, *, oldest: int, newest: int
) -> Anchor:
    """Returns the recorded position, if nothing unseen can have changed the rows since."""
    if found is None:
        reason = "Delta's log holds no transaction version of the stream either, so nothing is known about it"
    elif record is None or record.transaction_version is None:
        reason = f"the stream's last transaction version is {found}, and the run has no record that contains one"
    elif record.transaction_version != found:
        reason = (
            f"the stream's last transaction version is {found}, but the record of the last run contains "
            f"{record.transaction_version}: it does not belong to the stream's last commit"
        )
    elif record.table_version < oldest - 1:
        # A RESTORE or a deletion keeps transaction versions; versions outside the history may include one.
        reason = (
            f"the record of the last run contains its transaction version, {found}, from version "
            f"{record.table_version}; versions {record.table_version + 1} to {oldest - 1} are no longer in the "
            "history, and a RESTORE or a deletion may be among them"
        )
    elif record.dead_letters_pending:
        reason = "the record of the last run may have pending dead letters, and the history no longer shows which"
    else:
        _logger.warning(
            "the history of %s no longer holds the position of the stream %r; using the record of the last run, whose "
            "transaction version matches the one in Delta's log (%d)",
            target,
            target.stream,
            found,
        )
        # The fence for all runs from this position, from history or a record: only one of any two wins. It is above the
        # found transaction version, because a commit is newer than its base version.
        return Anchor(
            table_version=newest,
            version=record.anchor_version,
            state=record.state,
            table_rows=None,
            other_streams={},
            is_recorded=True,
        )
    raise PositionLostError(
        f"the table {target} no longer has the history that holds the position of the stream {target.stream!r}: its "
        f"oldest commit is version {oldest}, and it holds no commit of the stream",
        f"Delta removes commits after {LOG_RETENTION}. The record can't replace it: {reason}. Check the table's last "
        f"offsets, and set the position: {set_position(str(target), target.stream, topics=TOPIC)}",
    )
