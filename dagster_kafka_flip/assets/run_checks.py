"""Asset checks of a run: each tolerated error fails one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster import AssetCheckResult, AssetCheckSeverity, AssetCheckSpec, AutomationCondition, MetadataValue

from dagster_kafka_flip.ingestion.tolerance import (
    ALL_TOPICS_EXIST,
    CHECKS,
    NO_RECORDS_LOST,
    TABLE_INTACT,
    TIMES_PLAUSIBLE,
    WINDOWS_COMPLETE,
)
from dagster_kafka_flip.source.incident import total

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from dagster import AssetKey

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.fields import FieldsSeen
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.window import Windows

NO_RECORDS_REJECTED = "no_records_rejected"
NO_STRAGGLERS = "no_stragglers"
SCHEMA_FITS = "schema_fits"

LAG_BELOW = "lag_below"
WATERMARK_FRESH = "watermark_fresh"
SAME_LOG = "same_log"
NO_RECORDS_REJECTED_LATELY = "no_records_rejected_lately"
OF_A_MOMENT = frozenset({LAG_BELOW, WATERMARK_FRESH, SAME_LOG, NO_RECORDS_REJECTED_LATELY})
"""Checks whose result changes although the table does not."""

WITH_ITS_ASSET = AutomationCondition.any_deps_match(AutomationCondition.will_be_requested()).with_label(
    "with its asset"
)
"""The condition of a check that is a step of its own: Dagster then names all checks of a run that a condition starts.

Without it, Dagster would name none, so that all run; or, if another asset of the run has checks that it can't do
without, those alone.
"""

_DESCRIPTIONS = {
    NO_RECORDS_LOST: "The run found every planned record: no retention, truncation or other log in between.",
    ALL_TOPICS_EXIST: "Every topic and topic partition of the source exists.",
    TABLE_INTACT: "The table is as the stream left it: no rows deleted, not replaced, no foreign rows.",
    WINDOWS_COMPLETE: "Every window of the run was over, and no open transaction held back its records.",
    TIMES_PLAUSIBLE: "No record that the windows depend on has a timestamp in the future.",
    NO_STRAGGLERS: "Every record that the run read arrived in time for its window: none is missing from the table.",
    NO_RECORDS_REJECTED: "The run decoded every record.",
    SCHEMA_FITS: "The run's records have the fields that the schema declares.",
}


def check_names(
    tolerated: Collection[type[KafkaFlipError]],
    *,
    keeps_rejected: bool,
    rules: Windows | None,
    has_fields: bool = False,
) -> tuple[str, ...]:
    """Names of the checks that can fail, in the order of their descriptions; other errors fail the run."""
    names = {CHECKS[error] for error in tolerated} | ({NO_RECORDS_REJECTED} if keeps_rejected else set())
    if has_fields:
        names |= {SCHEMA_FITS}
    # In a repair, no record can miss its window.
    if rules is not None and not rules.repair:
        names |= {NO_STRAGGLERS}
    return tuple(name for name in _DESCRIPTIONS if name in names)


def check_specs(names: Collection[str], key: AssetKey) -> list[AssetCheckSpec]:
    """The check specs for Dagster."""
    return [AssetCheckSpec(name, asset=key, description=_DESCRIPTIONS[name]) for name in names]


@dataclass(frozen=True)
class Findings:
    """Findings of a run for the checks; None is an unknown number, and `unknown` the reason."""

    incidents: tuple[Incident, ...]
    rejected_records: int | None
    stragglers: int | None = 0
    unknown: str | None = None
    fields: FieldsSeen | None = None


def check_results(names: Collection[str], key: AssetKey, findings: Findings) -> Iterator[AssetCheckResult]:
    """Returns a result for each check."""
    numbers = {
        NO_RECORDS_REJECTED: ("Rejected records", "rejected_records", findings.rejected_records),
        NO_STRAGGLERS: ("Stragglers", "stragglers", findings.stragglers),
    }
    for name in names:
        if name == SCHEMA_FITS:
            yield _schema_fits(key, findings)
            continue
        if name in numbers:
            title, what, number = numbers[name]
            why = findings.unknown or "Spark reported nothing about the records that the write read"
            description = f"The number is unknown: {why}" if number is None else f"{title}: {number:,}"
            metadata = {} if number is None else {what: number}
            yield check_result(key, name, description, passed=number == 0, metadata=metadata)
            continue
        met = [incident for incident in findings.incidents if _check_of(incident.error) == name]
        metadata = {incident.error: MetadataValue.text(incident.message) for incident in met}
        number = total(incident.lost_offsets for incident in met)
        lost = {"lost_offsets": "unknown" if number is None else number} if name == NO_RECORDS_LOST else {}
        yield AssetCheckResult(
            check_name=name,
            asset_key=key,
            passed=not met,
            severity=AssetCheckSeverity.ERROR,
            metadata={**metadata, **lost},
        )


def failed_checks(names: Collection[str], key: AssetKey, findings: Findings) -> Iterator[AssetCheckResult]:
    """Returns only the results that failed: of a run that failed later, or that landed nothing."""
    yield from (result for result in check_results(names, key, findings) if not result.passed)


def check_result(
    key: AssetKey,
    name: str,
    description: str,
    *,
    passed: bool,
    severity: AssetCheckSeverity = AssetCheckSeverity.WARN,
    metadata: Mapping[str, Any] | None = None,
) -> AssetCheckResult:
    """The result of a check; its description ends with one full stop."""
    text = f"{description.rstrip('.')}."
    return AssetCheckResult(
        asset_key=key, check_name=name, description=text, passed=passed, severity=severity, metadata=metadata or {}
    )


def _schema_fits(key: AssetKey, findings: Findings) -> AssetCheckResult:
    fields = findings.fields
    if fields is None and findings.unknown is not None:
        passed, description = False, f"The fields of the records are unknown: {findings.unknown}."
    else:
        # An optional field that no record has only fails if some records have an undeclared one.
        passed = fields is None or not fields.is_suspicious
        description = "Nothing was read." if fields is None else f"{fields}."
    names_by_entry = (
        {} if fields is None else {"fields_never_seen": fields.never, "undeclared_fields": fields.undeclared}
    )
    metadata = {name: ", ".join(names) for name, names in names_by_entry.items() if names}
    return check_result(key, SCHEMA_FITS, description, passed=passed, metadata=metadata)


def _check_of(error: str) -> str | None:
    return next((check for kind, check in CHECKS.items() if kind.__name__ == error), None)
