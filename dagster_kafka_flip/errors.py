"""Every error this package raises, under one base class.

A message names what happened, to which topic partition or table, with which numbers, and what to do next. The classes
say which of those situations it is, so that an alert can be routed and a policy can be set by class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class KafkaFlipError(Exception):
    """Base class of all errors of this package."""


# --- before anything runs -----------------------------------------------------------------------------------------


class ConfigurationError(KafkaFlipError):
    """A source, table, format or resource was described in a way that can't work; nothing was read or written."""


# --- the development broker ---------------------------------------------------------------------------------------


class JavaNotFoundError(KafkaFlipError):
    """There is no Java, or it is too old for Spark 4 and Kafka 4 (both need Java 17 or newer)."""


class JarDownloadError(KafkaFlipError):
    """Jars could not be brought into the local cache."""


class BrokerError(KafkaFlipError):
    """The development broker could not be started, stopped or found."""


# --- Kafka --------------------------------------------------------------------------------------------------------


class ClusterUnreachableError(KafkaFlipError):
    """No broker answered in time."""


class ClusterRequestError(KafkaFlipError):
    """The cluster answered a metadata or offsets request with an error."""


class ClusterAccessError(ClusterRequestError):
    """Brokers are there, but don't let this client in: a refused login, a failed TLS handshake, a missing right."""


class GroupCommitError(KafkaFlipError):
    """A consumer group's offsets were left alone. What was landed stays landed; only a warning of a run."""


class TopicNotFoundError(KafkaFlipError):
    """A listed topic, or a named topic partition, does not exist (or may not be described)."""


class OffsetNotFoundError(KafkaFlipError):
    """A start or stop could not be turned into an offset, such as a group without a committed offset."""


class EventTimeUnknownError(KafkaFlipError):
    """How far a topic partition is in event time can't be told, so that it can't be aligned with the others."""


class OffsetOutOfRangeError(KafkaFlipError):
    """A start or stop offset that was asked for lies outside of what the log can hold."""


class RetentionOvertookPositionError(KafkaFlipError):
    """Records between the position and the beginning of the log were deleted before they were read.

    Attributes:
        log_start_offsets: By topic and partition: where the log begins, of each topic partition that was looked at.
    """

    def __init__(self, message: str, log_start_offsets: Mapping[tuple[str, int], int]) -> None:
        super().__init__(message)
        self.log_start_offsets = log_start_offsets


class EndBeforePositionError(KafkaFlipError):
    """The log ends before the position: it was truncated, or the topic is another one."""


class TopicRecreatedError(KafkaFlipError):
    """A topic has the name, but not the id, of the topic whose position is known.

    Attributes:
        topics: The names of such topics.
    """

    def __init__(self, message: str, topics: Collection[str] = ()) -> None:
        super().__init__(message)
        self.topics = tuple(topics)


class ClusterChangedError(KafkaFlipError):
    """Another cluster answers under the address than the one whose position is known."""


class LogChangedError(KafkaFlipError):
    """A topic was made again, or another cluster answered, while a batch was read: its rows may be of either."""


# --- windows ------------------------------------------------------------------------------------------------------


class WindowNotCompleteError(KafkaFlipError):
    """A window of time is not over, or an open transaction may hold records of it back."""


class WindowBeyondRetentionError(KafkaFlipError):
    """The log may no longer hold all records of a window."""


class RecordsFromFutureError(KafkaFlipError):
    """A record is dated later than now, so that what stands behind it in the log can't be found by its time."""


class TimestampOutOfRangeError(KafkaFlipError):
    """A record's timestamp is one that no Spark TIMESTAMP can hold, so that Spark can't read the record."""


class TimestampTypeChangedError(KafkaFlipError):
    """A topic whose brokers set the times of its records (LogAppendTime) holds records whose producers did."""


class WindowsChangedError(KafkaFlipError):
    """The table's windows are others than the asset's, or it is no table of windows."""


# --- records ------------------------------------------------------------------------------------------------------


class RecordsRejectedError(KafkaFlipError):
    """Records could not be decoded; nothing of the batch was written."""


class TooManyDeadLettersError(RecordsRejectedError):
    """More of a batch's records could not be decoded than may be dead letters; nothing of the batch was written."""


class DeadLetterLostError(KafkaFlipError):
    """Rejected records that were not landed in the dead-letter table yet are no longer in the log."""


class DeadLetterTableMissingError(KafkaFlipError):
    """The dead-letter table that the stream's commits speak of is not there, or another table is in its place."""


class DeadLetterDecoderError(KafkaFlipError):
    """Dead letters are owed that another decoder rejected, and it can't be made again."""


# --- the table ----------------------------------------------------------------------------------------------------


class SparkSessionError(KafkaFlipError):
    """There is no Spark session that can read Kafka and write Delta."""


class TableError(KafkaFlipError):
    """The place named as the table can't be used as a Delta table."""


class SchemaMismatchError(KafkaFlipError):
    """The records' columns don't fit the table's columns; nothing was written."""


class UnsafeStoreError(KafkaFlipError):
    """The table's store can't keep two writers apart, and nothing says that there is only one."""


class ForeignRowsError(KafkaFlipError):
    """The table has rows that no stream wrote, and the stream has no position in it."""


class StreamOverlapError(KafkaFlipError):
    """Two streams of one table read the same topic partitions."""


class TableReplacedError(KafkaFlipError):
    """The table's content was replaced or wiped since the stream's last commit."""


class TableChangedError(KafkaFlipError):
    """The table was restored or replaced between the look at the position and the commit."""


class PositionLostError(KafkaFlipError):
    """The position can't be found, or not be trusted, in the table's history."""


class DocumentVersionError(KafkaFlipError):
    """A commit's document was written by a newer version of this package, or can't be read."""


class ConcurrentIngestionError(KafkaFlipError):
    """Another run committed to the same stream first; nothing of this batch was written."""


class CommitUnknownError(KafkaFlipError):
    """Whether a batch was committed can't be told, because the table can't be asked; the next run finds out."""


class WriteFailedError(KafkaFlipError):
    """The commit did not happen, and the table's history shows that it did not."""
