"""OpenTelemetry metrics: what runs record, and that steps send them to a collector; and the fields of log lines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import job, json_console_logger, op
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from dagster_kafka_flip import DeltaSource, JsonSerializer, KafkaSink, Limits, publish
from dagster_kafka_flip.errors import TopicNotFoundError
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.window import Window
from dagster_kafka_flip.telemetry import metrics
from dagster_kafka_flip.telemetry.log_fields import log_with_fields
from dagster_kafka_flip.telemetry.metrics import INSTRUMENTS, Metrics, RunOutcome, measured_run, measured_runs
from tests.document_tests import ROOT, blocks

MONITORING = ROOT / "examples" / "monitoring"


@pytest.fixture
def measured(monkeypatch):
    """Gives what the SDK has measured: values (of histograms their counts) by name and attributes."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    api = SimpleNamespace(get_meter=provider.get_meter, get_meter_provider=lambda: provider)
    monkeypatch.setattr(metrics, "_api", lambda: api)
    metrics._instrument.cache_clear()

    def look():
        data = reader.get_metrics_data()
        found = {}
        for metric in [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points:
                value = getattr(point, "count", None) or getattr(point, "value", None)
                found[(metric.name, *sorted((point.attributes or {}).items()))] = value
        return found

    yield look
    metrics._instrument.cache_clear()
    provider.shutdown()


def test_without_a_provider_and_without_the_api_nothing_is_measured(monkeypatch):
    with measured_run(Metrics({"table": "t"})) as run:
        run.outcome = "idle"
    monkeypatch.setattr(metrics, "_api", lambda: None)
    with measured_run(Metrics({"table": "t"})) as run:
        Metrics().record("lag", 3)


def test_runs_that_end_together_are_counted_by_their_own_ends(measured):
    of = {name: Metrics({"table": name}) for name in ("one", "two", "three")}
    with measured_runs(of) as outcomes:
        outcomes["two"].outcome = "idle"
        outcomes["three"] = RunOutcome.of(ValueError("text that is not shown"))
    with pytest.raises(KeyboardInterrupt), measured_run(of["one"]):
        raise KeyboardInterrupt
    assert {key[1:]: value for key, value in measured().items() if key[0] == "kafka_flip.runs"} == {
        (("outcome", "committed"), ("table", "one")): 1,
        (("outcome", "interrupted"), ("table", "one")): 1,
        (("outcome", "idle"), ("table", "two")): 1,
        (("error.type", "ValueError"), ("outcome", "failed"), ("table", "three")): 1,
    }


def test_a_value_that_can_not_be_recorded_or_sent_fails_no_run(measured, monkeypatch, caplog):
    provider = metrics._api().get_meter_provider()

    def fail():
        msg = "no collector"
        raise TimeoutError(msg)

    monkeypatch.setattr(provider, "force_flush", fail)
    with measured_run(Metrics({"table": "t"})):
        Metrics().record("no such name", 1)
        Metrics().record("lag", None)
    assert [record.getMessage() for record in caplog.records] == [
        "kafka_flip.no such name could not be recorded: 'no such name'",
        "the metrics of the run were not sent: no collector",
    ]
    assert "kafka_flip.lag" not in {name for name, *_ in measured()}


@pytest.mark.kafka
@pytest.mark.spark
def test_runs_record_what_they_read_commit_and_leave(measured, kafka, connection, spark_of, table, topic, tmp_path):
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [(None, '{"n": 1}'), (None, "nonsense"), (None, '{"n": 2}')], timestamp=1_700_000_000_000)
    source = KafkaSource(topics=(topic,))
    options: dict[str, Any] = {
        "spark": spark_of,
        "connection": connection,
        "value_format": JsonFormat("n INT", on_error="null"),
    }
    first = ingest(source, table, **options)
    assert ingest(source, table, known=first.known, **options).is_idle
    with pytest.raises(TopicNotFoundError):
        ingest(KafkaSource(topics=(f"{topic}-gone",)), table, **options)

    found = measured()

    def value(name, **attributes):
        return found[(f"kafka_flip.{name}", *sorted({"stream": "main", "table": table, **attributes}.items()))]

    assert [value(name) for name in ("commits", "records", "rows", "rejected_records")] == [1, 3, 3, 1]
    assert value("record_bytes") == first.bytes
    assert value("file_bytes") > 0
    assert value("watermark") == 1_700_000_000
    assert value("lag", topic=topic) == 0
    assert [value("runs", outcome=outcome) for outcome in ("committed", "idle")] == [1, 1]
    assert value("runs", outcome="failed", **{"error.type": "TopicNotFoundError"}) == 1
    assert value("run_duration", outcome="idle") == 1

    windows, day = str(tmp_path / "windows"), Window.between("2023-11-14T00:00:00Z", "2023-11-15T00:00:00Z")
    assert [
        result.committed and result.committed.rows for result in rewrite_windows(source, windows, [day], **options)
    ] == [3]
    kafka.create(f"{topic}-back")
    sink = KafkaSink(topic=f"{topic}-back", transactional_id_prefix=topic, value=JsonSerializer(columns=("n",)))
    published = publish(DeltaSource(table=table, content="appended_rows"), sink, spark=spark_of, connection=connection)
    found = measured()
    assert value("rows", table=windows) == 3
    back = tuple({"sink": topic, "table": table, "topic": sink.topic}.items())
    assert found[("kafka_flip.published_records", *back)] == published.records == 3
    assert found[("kafka_flip.lag_versions", *back)] == 0

    # What a run has committed before it fails is counted, too.
    def partitioner(topic, key, value, partitions):
        if json.loads(value).get("n") is None:
            raise ValueError
        return 0

    failing = sink.model_copy(update={"transactional_id_prefix": f"{topic}-2", "partitioner": partitioner})
    one = Limits(max_records_per_batch=1)
    again: dict[str, Any] = {"spark": spark_of, "connection": connection, "limits": one}
    with pytest.raises(ValueError):  # noqa: PT011 - the partitioner's own, which has no text
        publish(DeltaSource(table=table, content="appended_rows"), failing, **again)
    found = measured()
    back = tuple({"sink": f"{topic}-2", "table": table, "topic": sink.topic}.items())
    assert found[("kafka_flip.published_records", *back)] == 2


# Behind the snippet of docs/metadata.md.
_FAILING = """
from dagster import Definitions
from dagster_kafka_flip import KafkaResource, KafkaSource, SparkResource, build_kafka_delta_asset

lost = build_kafka_delta_asset(name="lost", source=KafkaSource(topics=("no-such-topic",)), table="lost")
defs = Definitions(
    assets=[lost], resources={"kafka": KafkaResource(bootstrap_servers="%s"), "spark": SparkResource()}
)
"""


@pytest.mark.nightly
@pytest.mark.kafka
@pytest.mark.slow
def test_a_step_in_a_process_of_its_own_sends_its_metrics_to_a_collector(broker, tmp_path):
    received = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format, *args):  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (snippet,) = [block for block in blocks(ROOT / "docs" / "metadata.md") if block.marker == "sets up metrics"]
    (tmp_path / "defs.py").write_text(snippet.code + _FAILING % broker)
    (tmp_path / "home").mkdir()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dagster", "asset", "materialize", "--select", "lost", "-f", "defs.py"],
            cwd=tmp_path,
            env={
                **os.environ,
                "DAGSTER_HOME": str(tmp_path / "home"),
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
                "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        server.shutdown()
    assert "TopicNotFoundError" in done.stdout + done.stderr
    points = {
        (metric.name, attribute.key, attribute.value.string_value)
        for request in received
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in (*metric.sum.data_points, *metric.histogram.data_points)
        for attribute in point.attributes
    }
    assert ("kafka_flip.runs", "error.type", "TopicNotFoundError") in points
    assert ("kafka_flip.run_duration", "outcome", "failed") in points


def test_the_document_lists_each_metric():
    text = (ROOT / "docs" / "metadata.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `kafka_flip\.(\w+)` \| (\w+) \| `?([^|`]*)`? \| (.*) \|$", text, flags=re.MULTILINE)
    assert rows == [(name, each.kind, each.unit, each.description) for name, each in INSTRUMENTS.items()]


def test_the_dashboard_asks_for_metrics_that_there_are():
    # As Prometheus names them.
    suffix = {"By": "_bytes", "s": "_seconds"}
    names = set()
    for name, each in INSTRUMENTS.items():
        unit = suffix.get(each.unit, "")
        whole = f"kafka_flip_{name}" + ("" if name.endswith(unit) else unit)
        ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}[each.kind]
        names |= {whole + end for end in ends}
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert asked
    for expression in asked:
        assert set(re.findall(r"kafka_flip_\w+", expression)) <= names, expression
    rules = (MONITORING / "alerts.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"kafka_flip_\w+", rules)) <= names


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
