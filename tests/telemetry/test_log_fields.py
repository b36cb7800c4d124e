"""The fields of a log line can be taken apart by a machine: from the line, and from the attributes of the record."""

from __future__ import annotations

import json
import logging
import shlex

import pytest
from dagster import job, json_console_logger, op

from dagster_kafka_flip.telemetry.log_fields import log_with_fields

_logger = logging.getLogger("dagster_kafka_flip.test")


@pytest.fixture
def logged(caplog):
    """What a message with fields is logged as: the line, and the record's field."""

    def log(**fields):
        with caplog.at_level(logging.INFO, logger=_logger.name):
            log_with_fields(_logger, "committed version %d", 3, **fields)
        record = caplog.records[-1]
        return record.getMessage(), record.kafka_flip

    return log


def test_fields_are_names_and_values_in_the_order_given(logged):
    assert logged(rows=5, seconds=1.234, lag=0) == (
        "committed version 3: rows=5 seconds=1.23 lag=0",
        {"rows": 5, "seconds": 1.234, "lag": 0},
    )


def test_unknown_values_are_left_out(logged):
    assert logged(ui=None, seconds=2.0) == ("committed version 3: seconds=2.00", {"seconds": 2.0})


def test_a_text_with_spaces_or_quotes_stays_one_fact(logged):
    line, fields = logged(table='the "lake" = home', stream="main", empty="")
    assert shlex.split(line)[3:] == ['table=the "lake" = home', "stream=main", "empty="]
    assert fields["table"] == 'the "lake" = home'


def test_dagsters_json_logger_shows_them_as_fields(capsys):
    @op
    def commit(context):
        log_with_fields(context.log, "committed version %d", 3, rows=5)

    @job(logger_defs={"console": json_console_logger})
    def commits():
        commit()

    assert commits.execute_in_process(run_config={"loggers": {"console": {}}}).success
    written = capsys.readouterr()
    lines = [json.loads(line) for line in (written.out + written.err).splitlines() if line.startswith("{")]
    (found,) = [line["kafka_flip"] for line in lines if "kafka_flip" in line]
    assert found == {"rows": 5}
