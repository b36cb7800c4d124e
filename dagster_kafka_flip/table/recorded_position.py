"""RecordedPosition: a copy of a stream's position, for where the table's history has lost it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import PositionLostError
from dagster_kafka_flip.source.next_step import TOPIC, set_position
from dagster_kafka_flip.table.history import Anchor
from dagster_kafka_flip.table.retention import LOG_RETENTION

if TYPE_CHECKING:
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecordedPosition:
    """A stream's position as it was seen in the table and noted elsewhere.

    Attributes:
        state: Where the stream stood.
        table_version: The newest version of the table then.
        anchor_version: Version of the commit that defined the position.
        transaction_version: The transaction version of that commit; None if it is not known.
        dead_letters_owed: Whether dead letters may have been owed.
    """

    state: EnumeratorState
    table_version: int
    anchor_version: int
    transaction_version: int | None
    dead_letters_owed: bool


def recorded_anchor(
    record: RecordedPosition | None, target: DeltaTarget, found: int | None, *, oldest: int, newest: int
) -> Anchor:
    """The position as a record tells it, if nothing can have happened to the rows since that nobody sees.

    Args:
        record: The record; None if there is none.
        target: The table and the stream.
        found: The stream's transaction version in Delta's log; None if there is none.
        oldest: The oldest version that history holds.
        newest: The newest.

    Raises:
        PositionLostError: The record can't stand in.
    """
    if found is None:
        reason = "Delta's log holds no transaction version of the stream either, so that nothing is known of it"
    elif record is None or record.transaction_version is None:
        reason = (
            f"the stream's last transaction version is {found}, and no record was given to the run that carries one"
        )
    elif record.transaction_version != found:
        reason = (
            f"the stream's last transaction version is {found}, and the record of the last run carries "
            f"{record.transaction_version}: it is not of the stream's last commit"
        )
    elif record.table_version < oldest - 1:
        # A RESTORE or a wipe leaves transaction versions as they are: what nobody can see may be one.
        reason = (
            f"the record of the last run carries its transaction version, {found}, and was made at version "
            f"{record.table_version}; what happened to the table in versions {record.table_version + 1} to "
            f"{oldest - 1} can't be seen any longer, and a RESTORE or a wipe may be among them"
        )
    elif record.dead_letters_owed:
        reason = "the record of the last run may owe dead letters, and which can't be seen any longer"
    else:
        _logger.warning(
            "the history of %s has lost the position of the stream %r; it is taken from the record of the last "
            "run, which carries the transaction version that Delta still holds (%d)",
            target,
            target.stream,
            found,
        )
        # The fence of all runs from this position, be it from history or from a record: of any two, one wins. It
        # is above the transaction version that is found, because a commit is newer than the one it rests on.
        return Anchor(
            table_version=newest,
            version=record.anchor_version,
            state=record.state,
            table_rows=None,
            other_streams={},
            is_recorded=True,
        )
    msg = (
        f"the table {target} no longer has the history that holds the position of the stream "
        f"{target.stream!r}: its oldest commit is version {oldest}, and no commit of the stream is left. "
        f"Nothing was read. Delta forgets commits after {LOG_RETENTION}. A record can't stand in: {reason}. Look "
        "what the table holds, and set the position: "
        f"{set_position(str(target), target.stream, topics=TOPIC)}"
    )
    raise PositionLostError(msg)
