"""The fields of a log line can be taken apart by a machine: from the line, and from the attributes of the record."""

from __future__ import annotations

import json

from dagster import job, json_console_logger, op

from dagster_kafka_flip.telemetry.log_fields import log_with_fields


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
