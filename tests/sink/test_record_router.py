"""Where a record goes, with a real topic: no Spark."""

from __future__ import annotations

import contextlib
import logging
import re
from typing import Any

import numpy as np
import pytest

from dagster_kafka_flip.errors import RowMisplacedError
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.record_router import RecordRouter
from dagster_kafka_flip.sink.table_rows import INSERT, TableRow
from dagster_kafka_flip.source.cluster import KafkaCluster

pytestmark = pytest.mark.kafka

ROW = TableRow(3, INSERT, b"k", b"v", 0, None, None, None, None)


@pytest.fixture
def router(connection, kafka, topic):
    kafka.create(topic, 2)
    with contextlib.closing(KafkaCluster(connection)) as cluster:

        def of(**options: Any) -> RecordRouter:
            sink = KafkaSink(topic=topic, transactional_id_prefix=topic, **options)
            return RecordRouter(cluster, sink, logging.getLogger(__name__))

        yield of


@pytest.mark.parametrize("returned", ["1", b"1", 0.7, 1.0, True, False, None])
def test_a_partitioner_that_returns_no_whole_number_is_an_error_of_the_row(router, topic, returned):
    output = f"row 7: the partitioner names the topic partition {re.escape(repr(returned))}, but {topic} has 2, "
    with pytest.raises(RowMisplacedError, match=output):
        router(partitioner=lambda *_: returned).of(ROW, b"k", b"v", "row 7")


def test_a_partitioner_may_return_a_whole_number_of_numpy(router, topic):
    chosen = router(partitioner=lambda *_: np.int64(1)).of(ROW, b"k", b"v", "row 7")
    assert chosen == (topic, 1)
    assert type(chosen[1]) is int


@pytest.mark.parametrize("name", ["\0", "a\0b", "b\0"])
def test_the_name_of_a_header_that_the_client_would_cut_is_an_error_of_the_row(router, name):
    found = router(headers="h")
    assert found.headers(ROW._replace(headers=[("a", b"\0")]), "row 7") == [("a", b"\0")]
    row = ROW._replace(headers=[("a", b"1"), (name, b"2")])
    with pytest.raises(RowMisplacedError, match=r"row 7: the name of a header in the column h contains U\+0000"):
        found.headers(row, "row 7")
