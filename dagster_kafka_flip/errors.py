"""Every error this package raises, under one base class.

The class identifies the situation, so that alerts and policies can select errors by class.
"""

from __future__ import annotations

import contextlib
import copyreg
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping


class KafkaFlipError(Exception):
    """Base class of all errors of this package. The message is its three parts, each without a full stop.

    Attributes:
        finding: What happened, to which topic partition or table, with which numbers.
        outcome: What was written, usually nothing. Whoever writes says it: see `outcome`.
        advice: What to do next.
        is_lasting: Whether all stays as it is until somebody changes something, so that no retry can help.
    """

    is_lasting: ClassVar[bool] = False

    def __init__(self, finding: str, advice: str = "", *, outcome: str = "") -> None:
        super().__init__(finding)
        self.finding, self.outcome, self.advice = finding, outcome, advice

    def __str__(self) -> str:
        return ". ".join(filter(None, (self.finding, self.outcome, self.advice)))

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by __init__, whose arguments differ by class.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # pyright: ignore[reportAttributeAccessIssue]

    def __init_subclass__(cls, *, is_lasting: bool | None = None) -> None:
        super().__init_subclass__()
        if is_lasting is not None:
            cls.is_lasting = is_lasting


@contextlib.contextmanager
def outcome(text: str | Callable[[], str]) -> Generator[None]:
    """Says what an error left behind that leaves this block, or the function that this decorates.

    Args:
        text: The outcome, or what gives it then; unless the error already has one.
    """
    try:
        yield
    except KafkaFlipError as error:
        error.outcome = error.outcome or (text if isinstance(text, str) else text())
        raise


# --- before anything runs -----------------------------------------------------------------------------------------
class ConfigurationError(KafkaFlipError, is_lasting=True):
    """A source, table, format or resource has invalid or contradicting options; nothing was read or written."""


# --- the development broker ---------------------------------------------------------------------------------------
class JavaNotFoundError(KafkaFlipError, is_lasting=True):
    """Java was not found, or is too old for Spark 4 and Kafka 4 (both need Java 17 or newer)."""


class JarDownloadError(KafkaFlipError, is_lasting=False):
    """Jars could not be downloaded into the local cache."""


class BrokerError(KafkaFlipError, is_lasting=False):
    """The development broker, or the development registry, could not be started, stopped or found."""


# --- Kafka --------------------------------------------------------------------------------------------------------
class ClusterUnreachableError(KafkaFlipError, is_lasting=False):
    """No broker answered in time."""


class ClusterRequestError(KafkaFlipError, is_lasting=False):
    """The cluster answered a metadata or offsets request with an error."""


class ClusterAccessError(ClusterRequestError, is_lasting=True):
    """The brokers refuse this client: a refused login, a failed TLS handshake, or a missing ACL."""


class GroupCommitError(KafkaFlipError, is_lasting=False):
    """A consumer group's offsets could not be committed. The rows stay committed; a run only logs a warning."""


class TopicNotFoundError(KafkaFlipError, is_lasting=True):
    """A topic or topic partition that the source lists does not exist, or this client may not describe it."""


class OffsetNotFoundError(KafkaFlipError, is_lasting=True):
    """A start or stop can't be resolved to an offset, such as a group without a committed offset."""


class EventTimeUnknownError(KafkaFlipError, is_lasting=False):
    """The event time that a topic partition has reached is unknown, so it can't be aligned with the others."""


class OffsetOutOfRangeError(KafkaFlipError, is_lasting=True):
    """A requested start or stop offset is outside the range of the log."""


class RetentionOvertookPositionError(KafkaFlipError, is_lasting=True):
    """Retention deleted records between the position and the beginning of the log before they were read.

    Attributes:
        log_start_offsets: Log start offset of each topic partition that it has overtaken, by topic and partition.
    """

    def __init__(self, *parts: str, log_start_offsets: Mapping[tuple[str, int], int]) -> None:
        super().__init__(*parts)
        self.log_start_offsets = log_start_offsets


class EndBeforePositionError(KafkaFlipError, is_lasting=True):
    """The log ends before the position: it was truncated, or the topic is a different one.

    Attributes:
        cut_offsets: Where logs were truncated, as far as it is known, by topic and partition.
    """

    def __init__(self, *parts: str, cut_offsets: Mapping[tuple[str, int], int] = {}) -> None:
        super().__init__(*parts)
        self.cut_offsets = cut_offsets


class TopicRecreatedError(KafkaFlipError, is_lasting=True):
    """A topic has the name, but not the id, of the topic that the position belongs to.

    Attributes:
        topics: The names of such topics.
    """

    def __init__(self, *parts: str, topics: Collection[str] = ()) -> None:
        super().__init__(*parts)
        self.topics = tuple(topics)


class ClusterChangedError(KafkaFlipError, is_lasting=True):
    """The bootstrap servers lead to another cluster than the one that the position belongs to."""


class LogChangedError(KafkaFlipError, is_lasting=True):
    """A topic was recreated, a log truncated, or another cluster met during a read: rows may come from either log."""


# --- the schema registry ------------------------------------------------------------------------------------------
class SchemaRegistryError(KafkaFlipError, is_lasting=False):
    """The request to the schema registry failed: TLS, an error of the registry, or no registry at the address.

    Attributes:
        status: The answer's HTTP status; None if there was no answer.
        code: The registry's own error code; None if the answer has none.
    """

    def __init__(self, *parts: str, status: int | None = None, code: int | None = None) -> None:
        super().__init__(*parts)
        self.status = status
        self.code = code


class SchemaRegistryUnreachableError(SchemaRegistryError):
    """The schema registry, or the server of its OAuth tokens, did not answer in time."""


class SchemaRegistryLoginError(SchemaRegistryError, is_lasting=True):
    """The schema registry refuses the login (401) or the right to read (403), or no OAuth token was given."""


class SchemaNotFoundError(SchemaRegistryError):
    """The schema registry has no schema with the id or guid, or no subject with the name.

    Attributes:
        schema_id: The id that was asked for; None if none was.
        guid: The guid that was asked for; None if none was.
        subject: The subject that was asked for, or that an id was looked up in; None if none was.
    """

    def __init__(
        self,
        *parts: str,
        schema_id: int | None = None,
        guid: str | None = None,
        subject: str | None = None,
        **answer: int | None,
    ) -> None:
        super().__init__(*parts, **answer)
        self.schema_id = schema_id
        self.guid = guid
        self.subject = subject


class IncompatibleSchemaError(SchemaRegistryError, is_lasting=True):
    """The schema registry refuses a sink's schema: it is not compatible with the subject's registered schemas."""


# --- windows ------------------------------------------------------------------------------------------------------
class WindowNotCompleteError(KafkaFlipError, is_lasting=False):
    """A time window is not over, or an open transaction may still hold records of it."""


class WindowBeyondRetentionError(KafkaFlipError, is_lasting=True):
    """The log may no longer hold all records of a window."""


class RecordsFromFutureError(KafkaFlipError, is_lasting=False):
    """A record has a timestamp in the future, so records after it in the log can't be found by timestamp."""


class TimestampOutOfRangeError(KafkaFlipError, is_lasting=True):
    """A record's timestamp is out of range for a Spark TIMESTAMP, so Spark can't read the record."""


class WindowsChangedError(KafkaFlipError, is_lasting=True):
    """The table's windows differ from the asset's, or the table was not written in windows."""


# --- records ------------------------------------------------------------------------------------------------------
class RecordsRejectedError(KafkaFlipError, is_lasting=True):
    """Records could not be decoded; nothing of the batch was written."""


class TooManyDeadLettersError(RecordsRejectedError):
    """A batch has more undecodable records than the limit for dead letters; nothing of the batch was written."""


class DeadLetterLostError(KafkaFlipError, is_lasting=True):
    """Rejected records that are not in the dead-letter table are gone from the log, or are rejected no more."""


class DeadLetterTableMissingError(KafkaFlipError, is_lasting=True):
    """The dead-letter table that the stream's commits name is missing or was replaced by another table."""


class DeadLetterDecoderError(KafkaFlipError, is_lasting=True):
    """Pending dead letters were rejected by a decoder that can't be rebuilt, or in another time zone or isolation."""


class NullKeyError(KafkaFlipError, is_lasting=True):
    """A row of an upsert table has no key; nothing of the batch was written."""


class KeyOrderUnknownError(KafkaFlipError, is_lasting=True):
    """It is unknown which row of a key is last: its records are in two topic partitions, or a record has several."""


class UnavailableValueError(KafkaFlipError, is_lasting=True):
    """A connector left out a value that did not change, and neither the batch nor the table has it."""


class TableTruncatedError(KafkaFlipError, is_lasting=True):
    """A change event says that all rows of the database's table were deleted."""


# --- the table ----------------------------------------------------------------------------------------------------
class SparkSessionError(KafkaFlipError, is_lasting=False):
    """No Spark session is available that can read Kafka and write Delta."""


class DecoderLibraryError(KafkaFlipError, is_lasting=True):
    """A Spark session can't load this package's Java library, which decodes records, or has another version of it."""


class TableError(KafkaFlipError, is_lasting=False):
    """The table's path or name can't be used for a Delta table."""


class SchemaMismatchError(KafkaFlipError, is_lasting=True):
    """The records' columns, or a value in a partition column, don't fit the table; nothing was written."""


class UnsafeStoreError(KafkaFlipError, is_lasting=True):
    """The table's store does not prevent concurrent writers, and single_writer is not set."""


class ForeignRowsError(KafkaFlipError, is_lasting=True):
    """The table has rows that no stream wrote, and the stream has no position in it."""


class TableModeError(KafkaFlipError, is_lasting=True):
    """The table is written in another mode: appended instead of upserted, the other way round, or with another key."""


class StreamOverlapError(KafkaFlipError, is_lasting=True):
    """Two streams of one table read the same topic partitions."""


class TableReplacedError(KafkaFlipError, is_lasting=True):
    """The table's content was replaced or deleted since the stream's last commit."""


# Lasting: what must not be there has been committed, and each way out is a RESTORE. Another try could build upon it.
class TableChangedError(KafkaFlipError, is_lasting=True):
    """The table was restored or replaced after the position was read and before the batch was committed."""


class PositionLostError(KafkaFlipError, is_lasting=True):
    """The table's history holds no position that can be used."""


class PositionTooOldError(TableError):
    """Maintenance would make Delta delete the commit that holds the position."""


class DocumentVersionError(KafkaFlipError, is_lasting=True):
    """A commit's document can't be read, or was written by a newer version of this package."""


class ConcurrentIngestionError(KafkaFlipError, is_lasting=False):
    """Another run committed to the same stream first; nothing of this batch was written."""


class CommitUnknownError(KafkaFlipError, is_lasting=False):
    """It is unknown whether a batch was committed, because the table can't be read; the next run finds out."""


class WriteFailedError(KafkaFlipError, is_lasting=False):
    """The commit failed, and the table's history confirms that nothing was written."""


# --- back to Kafka ------------------------------------------------------------------------------------------------
class VersionOutOfRangeError(KafkaFlipError, is_lasting=False):
    """A start or stop of a DeltaSource is beyond the table's newest version."""


class VersionsGoneError(KafkaFlipError, is_lasting=True):
    """VACUUM or log retention deleted table versions before they were published."""


class IncompatibleVersionsError(KafkaFlipError, is_lasting=True):
    """Table versions to publish have schemas that one read can't span, such as before and after a renamed column."""


class ChangeDataFeedError(KafkaFlipError, is_lasting=True):
    """A table has no change data feed, or had none in some of the versions to publish."""


class NotAppendedError(KafkaFlipError, is_lasting=True):
    """A sink publishes appended rows, but a commit updated or deleted rows."""


class SinkProgressError(KafkaFlipError, is_lasting=False):
    """A sink's progress is unknown, may be lost, or belongs to another table, number of lanes or settings."""


class SinkFencedError(KafkaFlipError, is_lasting=False):
    """Another run of the same sink took over; this run's open transaction was aborted."""


class TransactionTimedOutError(KafkaFlipError, is_lasting=False):
    """A transaction was open longer than its timeout, for which brokers abort it."""


class UnpublishableRowError(KafkaFlipError, is_lasting=True):
    """A row of the table can't become a record. Each reason has a subclass."""


class RowTooLargeError(UnpublishableRowError):
    """A row's record is larger than the producer or the topic allows."""


class RowWithoutKeyError(UnpublishableRowError):
    """A row's key is null, but it is a tombstone, or the topic is compacted."""


class RowMisplacedError(UnpublishableRowError):
    """A row names a topic, a topic partition, a time or a header that a record can't have."""


class RowNotSerializableError(UnpublishableRowError):
    """The schema of the key or value can't represent a row's value exactly."""


class PublishFailedError(KafkaFlipError, is_lasting=False):
    """Spark could not read rows, or a broker refused records or a transaction, of which committed readers see none."""


# --- errors of others ---------------------------------------------------------------------------------------------
def error_text(error: BaseException) -> str:
    """The text of an error. Spark's JVM is asked for that of a Java error each time, and may have ended with it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever a connection to a JVM that is gone ends with
        return "Spark's JVM stopped before it told the reason, usually an OutOfMemoryError"
