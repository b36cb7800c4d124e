"""What a step gives to Dagster: its events, and an error that says first what happened and whether a retry may help."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from dagster import AssetCheckEvaluation, AssetCheckKey, AssetCheckResult, AssetObservation, Failure

from dagster_kafka_flip.assets.dagster_internals import AssetCheckExecutionRecordStatus
from dagster_kafka_flip.assets.run_checks import OF_A_MOMENT
from dagster_kafka_flip.errors import KafkaFlipError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dagster import AssetKey

T = TypeVar("T")

# Causes that the message already describes, with hundreds of lines of Python and JVM frames.
_IN_MESSAGE = frozenset({"py4j", "pyspark", "grpc", "confluent_kafka", "cimpl", "tenacity"})
# Exception: a user's function failed on an executor.
_OF_USERS = "PythonException"

# Marks the result of a check that is repeated, because nothing has changed since.
UNCHANGED = "unchanged"

FINISHED = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}

_logger = logging.getLogger(__name__)


def step_events(context: Any, events: Iterator[T]) -> Iterator[T]:
    """Yields a step's events, and raises this package's errors as Dagster's Failure.

    The result of a check that the run has not selected goes to Dagster's log of events, because the step has no output
    for it. Whoever starts a run with a list of checks may not know of this one.

    The step observes an asset with nothing new. The last results of its checks then stay, with those that are steps of
    their own: Dagster skips them, would show that instead of a failure, and hold back what waits for them to pass.
    """
    idle: list[AssetKey] = []
    try:
        for event in events:
            if isinstance(event, AssetCheckResult) and _key(event) not in context.selected_asset_check_keys:
                context.log_event(_evaluation(event))
            else:
                yield event
            if isinstance(event, AssetObservation):
                idle.append(event.asset_key)
        for key in idle:
            _repeat_results(context, key)
    except KafkaFlipError as error:
        _logger.debug("full traceback of the error that ended the run", exc_info=error)
        cause = error.__cause__
        if cause is None or _is_in_message(cause):
            raise as_failure(error) from None
        raise as_failure(error) from cause.with_traceback(None)


def as_failure(error: KafkaFlipError) -> KafkaFlipError:
    """Makes an error one of Dagster's Failures, too: its page begins with the message, and retries are only for some.

    It has no traceback: the frames between an asset and this package's error say nothing that the message doesn't.
    """
    kind = type(error)
    made: Any = type(kind.__name__, (kind, Failure), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    failure = made.__new__(made, *error.args)
    # Not by their __init__: each class has its own.
    vars(failure).update(vars(error))
    known = {name: value for name, value in vars(error).items() if name not in {"finding", "outcome", "advice"}}
    vars(failure).update(vars(Failure(str(error), _metadata(known), allow_retries=not kind.is_lasting)))
    return failure


def _repeat_results(context: Any, key: AssetKey) -> None:
    """Repeats the last result of each check of an asset that the run has planned and not evaluated.

    Not of one whose result changes with the time, such as a lag, nor if it is a step of its own, has passed and blocks
    nothing.
    """
    history = context.instance.event_log_storage.get_asset_check_execution_history
    graph = context.job_def.asset_layer.asset_graph
    for check in sorted(each for each in graph.get_check_keys_for_assets({key}) if each.name not in OF_A_MOMENT):
        newest, finished = history(check, limit=1), history(check, limit=1, status=FINISHED)
        is_left = bool(newest) and newest[0].run_id == context.run_id and newest[0].status not in FINISHED
        before = finished[0].evaluation if finished else None
        if not is_left or before is None:
            continue
        if not before.passed or graph.get(check).blocking or check in context.selected_asset_check_keys:
            context.log_event(_evaluation(before, before.target_materialization_data, {UNCHANGED: True}))


def _metadata(values: Mapping[str, Any]) -> dict[str, Any]:
    """What an error knows besides its message."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= {f"{name}/{topic}-{partition}": offset for (topic, partition), offset in value.items()}
        elif isinstance(value, tuple):
            found[name] = ", ".join(map(str, value))
        elif value is not None:
            found[name] = value
    return found


def _key(result: Any) -> AssetCheckKey:
    return AssetCheckKey(result.asset_key, result.check_name)


def _evaluation(result: Any, target: Any = None, more: Mapping[str, Any] = {}) -> AssetCheckEvaluation:
    return AssetCheckEvaluation(
        check_name=result.check_name,
        asset_key=result.asset_key,
        passed=result.passed,
        metadata={**(result.metadata or {}), **more},
        target_materialization_data=target,
        severity=result.severity,
        description=result.description,
    )


def _is_in_message(cause: BaseException) -> bool:
    kind = type(cause)
    if kind.__name__ == _OF_USERS:
        return False
    return isinstance(cause, KafkaFlipError) or kind.__module__.partition(".")[0] in _IN_MESSAGE
