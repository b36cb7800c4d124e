"""OpenTelemetry metrics of runs.

This package only calls OpenTelemetry's API. Without its API, or without a meter provider, which only the user sets up,
nothing is measured.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

_logger = logging.getLogger(__name__)

Outcome = Literal["committed", "idle", "failed", "interrupted"]


class _Instrument(NamedTuple):
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    description: str


# Units are UCUM's, with names in braces for counts, as OpenTelemetry's semantic conventions ask for.
INSTRUMENTS: Mapping[str, _Instrument] = {
    "runs": _Instrument("counter", "{run}", "Runs, by outcome: committed, idle, failed or interrupted"),
    "run_duration": _Instrument("histogram", "s", "Duration of runs, by outcome"),
    "commits": _Instrument("counter", "{commit}", "Commits of the table"),
    "records": _Instrument("counter", "{record}", "Records read from Kafka and committed"),
    "record_bytes": _Instrument("counter", "By", "Bytes of their keys and values"),
    "rows": _Instrument("counter", "{row}", "Rows committed"),
    "file_bytes": _Instrument("counter", "By", "Bytes of the files committed"),
    "rejected_records": _Instrument("counter", "{record}", "Records that could not be decoded"),
    "incidents": _Instrument("counter", "{incident}", "Tolerated errors, by error.type"),
    "lost_offsets": _Instrument("counter", "{offset}", "Offsets that tolerated errors lost, at most"),
    "lag": _Instrument("gauge", "{offset}", "Offsets that the last run left unread, by topic"),
    "watermark": _Instrument("gauge", "s", "Event time that the last run reached, in seconds since the epoch"),
    "published_records": _Instrument(
        "counter", "{record}", "Records that a sink published, also those that a run committed before it failed"
    ),
    "published_bytes": _Instrument("counter", "By", "Bytes of their keys and values"),
    "lag_versions": _Instrument("gauge", "{version}", "Table versions that a sink's last run left unpublished"),
}


@dataclass
class RunOutcome:
    """How a run ends, and the name of the error's class; set by the run."""

    outcome: Outcome = "committed"
    error_type: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> RunOutcome:
        """The outcome of a run that raises an error."""
        return cls("failed", type(error).__name__) if isinstance(error, Exception) else cls("interrupted")


@dataclass(frozen=True)
class Metrics:
    """The metrics of one stream's runs, with attributes of each measurement, such as the table."""

    attributes: Mapping[str, str] = field(default_factory=dict[str, str])

    def record(self, name: str, value: float | None, **attributes: str) -> None:
        """Adds to a counter, or sets a gauge. None is not recorded: unknown is not zero."""
        if value is None or _api() is None:
            return
        every = {
            **self.attributes,
            **{key.replace("error_type", "error.type"): text for key, text in attributes.items()},
        }
        try:
            _instrument(name)(value, every)
        except Exception as error:  # noqa: BLE001 - what is committed stays so, and a run never fails because of metrics
            _logger.warning("kafka_flip.%s could not be recorded: %s", name, error)


@contextlib.contextmanager
def measured_run(metrics: Metrics) -> Generator[RunOutcome]:
    """Measures a run from its beginning to its end, and sends what was measured."""
    with measured_runs({"": metrics}) as outcomes:
        yield outcomes[""]


@contextlib.contextmanager
def measured_runs(metrics: Mapping[str, Metrics]) -> Generator[dict[str, RunOutcome]]:
    """Measures runs that begin and end together. An error that is raised is the end of all."""
    begun = time.monotonic()
    outcomes = {name: RunOutcome() for name in metrics}
    raised: BaseException | None = None
    try:
        yield outcomes
    except GeneratorExit:
        # Whoever takes results one by one wants no more of them.
        raise
    except BaseException as error:
        raised = error
        raise
    finally:
        seconds = time.monotonic() - begun
        for name, each in metrics.items():
            run = outcomes[name] if raised is None else RunOutcome.of(raised)
            error_type = {} if run.error_type is None else {"error_type": run.error_type}
            each.record("runs", 1, outcome=run.outcome, **error_type)
            each.record("run_duration", seconds, outcome=run.outcome)
        if raised is None or isinstance(raised, Exception):
            _flush()


def _flush() -> None:
    """Sends now what was measured: a step of Dagster's ends without Python's exit handlers, which would send it."""
    api = _api()
    flush = None if api is None else getattr(api.get_meter_provider(), "force_flush", None)
    if flush is None:
        return
    try:
        flush()
    except Exception as error:  # noqa: BLE001 - a run never fails because its metrics can't be sent
        _logger.warning("the metrics of the run were not sent: %s", error)


@functools.cache
def _api() -> Any:
    try:
        from opentelemetry import metrics
    except ImportError:
        return None
    return metrics


@functools.cache
def _instrument(name: str) -> Callable[[float, Mapping[str, str]], None]:
    """Returns the function that records a measurement; it records nothing until there is a provider."""
    kind, unit, description = INSTRUMENTS[name]
    meter = _api().get_meter("dagster_kafka_flip")
    instrument = getattr(meter, f"create_{kind}")(f"kafka_flip.{name}", unit=unit, description=description)
    return getattr(instrument, {"counter": "add", "gauge": "set", "histogram": "record"}[kind])
