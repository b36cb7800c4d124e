"""Asset checks of an asset that publishes a table: what its topic has, and what its last run left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster import AssetCheckResult, AssetChecksDefinition, AssetCheckSeverity, AssetsDefinition

from dagster_kafka_flip.assets.delta_kafka_asset import publishing_of
from dagster_kafka_flip.assets.position_record import MOST_MATERIALIZATIONS, newest_materializations
from dagster_kafka_flip.assets.resources import kafka_of, spark_of
from dagster_kafka_flip.assets.run_checks import check_result
from dagster_kafka_flip.checks.check_step import check_step
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import check_arguments, expect
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.sink.comparison import TopicComparison, check_comparable
from dagster_kafka_flip.sink.result import LEFT_OUT, LEFT_OUT_BY_ERROR, SINK, SINK_PROGRESS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dagster import AssetKey, DagsterInstance

    from dagster_kafka_flip.assets.delta_kafka_asset import Publishing
    from dagster_kafka_flip.sink.comparison import Comparison

PUBLISHED_EQUALS_TABLE = "published_equals_table"
NO_ROWS_LEFT_OUT = "no_rows_left_out"
DEFAULT_MAX_RECORDS = 100_000


@check_arguments
def delta_kafka_checks(
    asset: AssetsDefinition,
    *,
    equals_table: bool = True,
    max_records: int = DEFAULT_MAX_RECORDS,
    blocking: bool = True,
    op_tags: Mapping[str, Any] | None = None,
    pool: str | None = None,
) -> Sequence[AssetChecksDefinition]:
    """Creates checks of an asset that publishes a table, for `Definitions(asset_checks=...)`.

    `no_rows_left_out`, for a sink with `tolerate` or a `dead_letter_topic`, fails if the last run that published
    something left rows out. It needs neither Spark nor Kafka.

    `published_equals_table` compares the topic with the table at the published version: the last record of each key
    with the row, or, with `content="appended_rows"`, how often each row is there. A topic of up to `max_records`
    offsets is compared as a whole, a longer one only at its end. Spark reads both, each once.

    Args:
        asset: The asset that publishes the table.
        equals_table: `published_equals_table`. Default: yes.
        max_records: Maximum number of the topic's offsets to read. Default: 100,000.
        blocking: Whether downstream assets of the run wait for it, and are skipped if it fails as ERROR. Default: yes.
        op_tags: Tags of the ops, such as `dagster-k8s/config`. Default: none.
        pool: Concurrency pool of `published_equals_table`. Default: none.

    Raises:
        ConfigurationError: The asset does not publish a table, its records can't be compared with rows, no check is
            left, or max_records is less than 1.
    """
    expect("asset", asset, AssetsDefinition, "the definition that build_delta_kafka_asset returned")
    publishing = publishing_of(asset)
    if publishing is None:
        raise ConfigurationError("delta_kafka_checks takes an asset of delta_kafka_asset or build_delta_kafka_asset")
    if type(max_records) is not int or max_records < 1:
        raise ConfigurationError(f"max_records={max_records}: expected a whole number of at least 1")

    def look_back(context: Any, key: AssetKey) -> Iterator[AssetCheckResult]:
        yield _left_out(context.instance, key, publishing)

    def compare(context: Any, key: AssetKey) -> Iterator[AssetCheckResult]:
        found = TopicComparison(
            publishing.source,
            publishing.bound_sink(context),
            publishing.bound_transform(context),
            kafka_of(context, publishing.kafka, publishing.cluster),
            spark_of(context, publishing.spark)(),
            max_records,
        ).compare()
        yield _result(key, publishing, found)

    made: list[AssetChecksDefinition] = []
    if publishing.sink.may_leave_out:
        question = "The last run that published something left no rows out."
        made.append(check_step(asset.key, "left_out_checks", {NO_ROWS_LEFT_OUT: question}, look_back, op_tags=op_tags))
    if equals_table:
        check_comparable(publishing.source, publishing.sink)
        question = "The topic has what the table had at the published version."
        step = check_step(
            asset.key,
            "topic_checks",
            {PUBLISHED_EQUALS_TABLE: question},
            compare,
            resources=publishing.resource_keys,
            blocking=blocking,
            op_tags=op_tags,
            pool=pool,
        )
        made.append(step)
    if not made:
        msg = "delta_kafka_checks: equals_table=False leaves no check, because the sink leaves no rows out"
        raise ConfigurationError(msg)
    return made


def _left_out(instance: DagsterInstance, key: AssetKey, publishing: Publishing) -> AssetCheckResult:
    seen, totals, last, before = 0, dict[str, int](), None, 0
    for record in newest_materializations(instance, key):
        seen += 1
        metadata = {} if record.asset_materialization is None else record.asset_materialization.metadata
        values: dict[str, Any] = {name: value.value for name, value in metadata.items()}
        # A materialization of others says nothing of the rows.
        if "kafka/idle" not in values:
            continue
        sink, total = str(values.get(SINK)), _left_out_so_far(values)
        totals.setdefault(sink, total)
        if last is not None and sink == last[0]:
            before = total
            break
        if last is None and not values["kafka/idle"]:
            last = sink, values, record.run_id
    else:
        if last is not None and seen >= MOST_MATERIALIZATIONS:
            before = totals[last[0]]
    if last is None:
        return _result_of_rows(
            key,
            f"None of the last {seen:,} materializations published anything, so it is unknown whether the run before "
            "them left rows out"
            if seen
            else "Dagster has no run of the asset. Materialize it",
        )
    sink, values, run_id = last
    rows: int = values.get(LEFT_OUT, 0)
    # Runs that fail have no materialization: the sink's progress has their rows, too.
    of_failed = max(0, totals[sink] - before - rows)
    details: dict[str, Any] = {"rows_left_out": rows + of_failed, "run": run_id}
    if of_failed:
        details["left_out_by_failed_runs"] = of_failed
    if rows:
        details["by_error"] = values[LEFT_OUT_BY_ERROR]
    if not rows + of_failed:
        return _result_of_rows(key, "The last run that published something left no rows out", details)
    letters = publishing.sink.dead_letter_topic
    description = (
        f"The last run that published something left {counted(rows, 'row')} out"
        + (f", and failed runs left {of_failed:,} more out" if of_failed else "")
        + f". Readers of {publishing.sink.topic} have the earlier values of their keys, or none. "
        + ("The run's log has the first ones" if letters is None else f"The topic {letters} has them, with the reasons")
        + ". Correct the rows in the table, or append them again for content=appended_rows: the next run publishes them"
    )
    return _result_of_rows(key, description, details)


def _left_out_so_far(values: Mapping[str, Any]) -> int:
    lanes: Mapping[str, Mapping[str, int]] = values.get(SINK_PROGRESS) or {}
    return sum(lane.get("left_out", 0) for lane in lanes.values())


def _result_of_rows(key: AssetKey, description: str, details: Mapping[str, Any] | None = None) -> AssetCheckResult:
    passed = details is not None and not details["rows_left_out"]
    return check_result(key, NO_ROWS_LEFT_OUT, description, passed=passed, metadata=details)


def _result(key: AssetKey, publishing: Publishing, found: Comparison) -> AssetCheckResult:
    metadata: dict[str, Any] = {
        "records_read": found.records,
        "topic_offsets": found.offsets,
        "whole_topic": found.is_whole,
        "compared": found.keys,
        "missing": found.missing,
        "surplus": found.surplus,
        "differing": found.differing,
        "earlier_columns": found.earlier_columns,
    }
    if found.version is not None:
        metadata["delta/version"] = found.version
    if found.examples:
        metadata["examples"] = "\n".join(found.examples)
    # Weaker guarantees promise less, and a row that was left out is not a loss.
    is_wrong = found.differs and publishing.sink.is_exact and not found.may_be_left_out
    return check_result(
        key,
        PUBLISHED_EQUALS_TABLE,
        _description(publishing, found),
        passed=not found.differs and not found.unknown,
        severity=AssetCheckSeverity.ERROR if is_wrong else AssetCheckSeverity.WARN,
        metadata=metadata,
    )


def _description(publishing: Publishing, found: Comparison) -> str:
    what = "rows" if publishing.source.content == "appended_rows" else "keys"
    topic, table = publishing.sink.topic, f"{publishing.source} at version {found.version}"
    parts: list[str] = []
    if found.version is not None:
        of = "" if found.is_whole else f" of the {found.records:,} records at its end"
        parts.append(f"{found.keys:,} {what}{of} of the topic {topic} were compared with {table}")
        if found.differs:
            parts.append(
                f"{found.missing:,} are missing from the topic, {found.surplus:,} are only in the topic, and "
                f"{found.differing:,} have a different value. Records of other producers count, too"
            )
            if found.may_be_left_out:
                parts.append("These may be rows that the sink left out, or earlier values of their keys")
        elif not found.unknown:
            parts.append("All are equal" + ("" if found.is_whole else "; earlier records were not compared"))
    parts += [f"Unknown: {why}" for why in found.unknown]
    return ". ".join(part.rstrip(".") for part in parts)
