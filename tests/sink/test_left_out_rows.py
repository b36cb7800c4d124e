"""Rows that can't be records: which end a run, which are left out and counted, and where dead letters go."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.errors import (
    ConfigurationError,
    RowMisplacedError,
    RowTooLargeError,
    RowWithoutKeyError,
    SinkFencedError,
    TopicNotFoundError,
    UnpublishableRowError,
)
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.publish import publish
from dagster_kafka_flip.sink.record_router import _MOST_AROUND, batch_bytes
from dagster_kafka_flip.sink.serializers import StringSerializer
from dagster_kafka_flip.source.plan import Limits

LIMIT = 20_000
TEXTS = {"key": StringSerializer(column="id"), "value": StringSerializer(column="v")}


@pytest.mark.parametrize(
    ("wrong", "output"),
    [
        ({"tolerate": "RowTooLargeError"}, "expected a list of error classes"),
        ({"tolerate": RowTooLargeError}, "expected a list of error classes"),
        (
            {"tolerate": ["RowTooLargeError"]},
            "'RowTooLargeError' can't be tolerated by a sink; allowed are the classes",
        ),
        ({"tolerate": [SinkFencedError]}, "SinkFencedError can't be tolerated"),
        ({"dead_letter_topic": "a b"}, "invalid topic 'a b'"),
        ({"dead_letter_topic": ""}, "dead_letter_topic: empty"),
        ({"dead_letter_topic": "t"}, "use another one"),
        ({"dead_letter_topic": "s-progress"}, "use another one"),
    ],
)
def test_a_wrong_policy_is_refused_before_anything_runs(wrong, output):
    with pytest.raises(ConfigurationError, match=output):
        KafkaSink(**({"topic": "t", "transactional_id_prefix": "s"} | wrong))


def test_which_errors_a_policy_tolerates():
    def left_out(**policy):
        sink = KafkaSink(topic="t", transactional_id_prefix="s", **policy)
        return [sink.leaves_out(error("x")) for error in (RowTooLargeError, RowWithoutKeyError)]

    assert left_out() == [False, False]
    assert left_out(tolerate=[RowTooLargeError]) == [True, False]
    assert left_out(tolerate=[UnpublishableRowError]) == [True, True]
    assert left_out(dead_letter_topic="d") == [True, True]
    assert left_out(dead_letter_topic="d", tolerate=[RowWithoutKeyError]) == [False, True]


@pytest.mark.parametrize(
    ("key", "value", "headers", "size"),
    # 61 bytes of the batch, the record's length, and the record. A broker agrees in the test below.
    [(None, None, [], 68), (b"", b"", [], 68), (b"k", None, [], 69), (b"k", b"v" * 64, [("h", None), ("", b"x")], 141)],
)
def test_the_size_of_a_record(key, value, headers, size):
    assert batch_bytes(key, value, headers) == size


def test_a_record_without_headers_is_at_most_so_much_larger_than_its_content():
    texts = [None, *(b"x" * length for length in (0, 63, 64, 8191, 8192, 1_048_575, 1_048_576))]
    for key in texts:
        for value in texts:
            assert batch_bytes(key, value, []) <= len(key or b"") + len(value or b"") + _MOST_AROUND


def _text_of(size: int, key: bytes) -> int:
    """The length of the value with which a record has a size."""
    return next(length for length in range(size, 0, -1) if batch_bytes(key, b"v" * length, []) <= size)


def letters(published, topic):
    """Key, length of the value, error and what the value is, of each dead letter; and the headers of the last."""
    found, headers = [], {}
    for record in published.records(topic):
        headers = {name: text.decode() for name, text in record.headers}
        size = None if record.value is None else len(record.value)
        found.append((record.key, size, headers["kafka_flip.error"], headers["kafka_flip.value"]))
    return sorted(found, key=repr), headers


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_rows_that_are_left_out_are_dead_letters_in_the_same_transactions(published, kafka, topic, guarantee):
    kafka.create(f"{topic}-small", 2, max_message_bytes=str(LIMIT))
    kafka.create(f"{topic}-dead", 2, max_message_bytes="30000")
    fits = _text_of(LIMIT, b"fits")
    with pytest.raises(Exception, match="MSG_SIZE_TOO_LARGE"):
        kafka.produce(f"{topic}-small", [("over", "v" * (fits + 1))])
    published.create("id string, v string, t timestamp")
    published.sql(
        f"INSERT INTO {{t}} VALUES ('fits', repeat('v', {fits}), null), ('over', repeat('v', {fits + 1}), null), "
        "('huge', repeat('v', 900000), null), (null, 'no key', null), ('away', 'w', null), "
        "('early', 'w', timestamp_millis(-5))"
    )
    # Many small records, which must not go in batches that the topic refuses.
    published.sql("INSERT INTO {t} SELECT concat('k', id), repeat('s', 1000), null FROM range(200)")
    published.sql("DELETE FROM {t} WHERE id IS NULL")
    seen = []

    def partitioner(topic, key, value, partitions):
        seen.append(key)
        if len(seen) == 150 and guarantee == "exactly_once":
            # In the middle of a transaction with dead letters.
            raise KeyboardInterrupt
        return 9 if key == b"away" else 0

    options = {
        **TEXTS,
        "start": 0,
        "topic": f"{topic}-small",
        "dead_letter_topic": f"{topic}-dead",
        "delivery_guarantee": guarantee,
        "partitioner": partitioner,
        "timestamp": "t",
        "limits": Limits(max_records_per_batch=130),
    }
    if guarantee == "exactly_once":
        with pytest.raises(KeyboardInterrupt):
            published.run(**options)
    result = published.run(**options)
    assert result.lag_versions == 0
    records = published.records(f"{topic}-small")
    # The row without a key is a record; only its tombstone can't be one.
    assert sorted(str(record.key) for record in records) == sorted(
        map(str, [b"fits", None, *(f"k{number}".encode() for number in range(200))])
    )
    found, headers = letters(published, f"{topic}-dead")
    assert found == sorted(
        [
            (b"over", fits + 1, "RowTooLargeError", "record"),
            (b"huge", None, "RowTooLargeError", "left out: too large"),
            (b"away", 1, "RowMisplacedError", "record"),
            (b"early", 1, "RowMisplacedError", "record"),
            (None, None, "RowWithoutKeyError", "record"),
        ],
        key=repr,
    )
    assert headers["kafka_flip.table"].endswith(str(published.table))
    # Its transaction was committed.
    assert "open transaction" not in headers["kafka_flip.message"]
    assert {"kafka_flip.version", "kafka_flip.message", "kafka_flip.topic", "kafka_flip.sink"} <= headers.keys()
    if guarantee == "at_least_once":
        assert result.left_out == {"RowMisplacedError": 2, "RowTooLargeError": 2, "RowWithoutKeyError": 1}
        assert (result.records, result.dead_letters) == (202, 5)
    assert published.run(**options).records == 0


@pytest.mark.kafka
@pytest.mark.spark
def test_only_what_is_named_is_tolerated_and_a_row_can_not_name_a_topic_of_the_sink(published, kafka, topic):
    kafka.create(f"{topic}-compacted", cleanup_policy="compact")
    kafka.create(f"{topic}-expires")
    published.create("id string, v string, t string")
    rows = [("a", topic), ("b", "no where"), ("c", f"{topic}-progress"), ("d", f"{topic}-missing"), ("e", "")]
    reported = ", ".join(f"('{key}', 'v', '{name}')" for key, name in rows)
    published.sql(f"INSERT INTO {{t}} VALUES {reported}, (null, 'v', '{topic}-compacted')")
    options = {**TEXTS, "start": 0, "topic_column": "t"}
    with pytest.raises(RowWithoutKeyError, match=r"its key is null, but the topic .* is compacted"):
        published.run(**options)
    with pytest.raises(RowMisplacedError, match=r"names 'no where', which is not a valid topic name"):
        published.run(tolerate=[RowWithoutKeyError])
    assert published.records() == []
    result = published.run(tolerate=[RowMisplacedError, RowWithoutKeyError])
    assert result.left_out == {"RowMisplacedError": 4, "RowWithoutKeyError": 1}
    assert (result.records, result.dead_letters) == (1, 0)
    assert [record.key for record in published.records()] == [b"a"]

    with pytest.raises(TopicNotFoundError, match=r"nowhere.* correct dead_letter_topic"):
        published.run(dead_letter_topic="nowhere")

    def without_the_topic():
        kafka.delete(f"{topic}-gone")
        return published.spark

    # That is no error of rows, which would all be left out.
    kafka.create(f"{topic}-gone")
    sink = KafkaSink(
        topic=f"{topic}-gone",
        transactional_id_prefix=f"{topic}-gone",
        key=StringSerializer(column="id"),
        tolerate=(RowMisplacedError,),
    )
    with pytest.raises(TopicNotFoundError, match=r"-gone does not exist.* correct topic of"):
        publish(published.source, sink, spark=without_the_topic, connection=published.connection)
    published.sql("INSERT INTO {t} VALUES ('f', 'v', '')")
    with pytest.raises(ConfigurationError, match=r"-compacted is compacted: it can't hold rows without a key"):
        published.run(dead_letter_topic=f"{topic}-compacted")
    assert published.run(dead_letter_topic=f"{topic}-expires").dead_letters == 1

    # A topic that comes up in the middle gets batches as large as those of the others.
    kafka.create(f"{topic}-small", max_message_bytes=str(LIMIT))
    names = f"if(id % 2 = 0, '{topic}', '{topic}-small')"
    published.sql(f"INSERT INTO {{t}} SELECT concat('k', id), repeat('s', 1000), {names} FROM range(200)")
    with pytest.raises(RowTooLargeError, match=r"lower batch.size in the properties"):
        published.run()
    result = published.run(properties={"batch.size": str(LIMIT)})
    assert (result.records, result.dead_letters, result.batches) == (200, 0, 1)
    assert [len(published.records(name)) for name in (topic, f"{topic}-small")] == [101, 100]
