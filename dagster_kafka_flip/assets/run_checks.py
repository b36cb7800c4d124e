"""Asset checks that come with an asset: what a run was told to go on in spite of fails one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster import AssetCheckResult, AssetCheckSeverity, AssetCheckSpec, MetadataValue

from dagster_kafka_flip.ingestion.tolerance import (
    ALL_TOPICS_THERE,
    CHECKS,
    NO_RECORDS_LOST,
    TABLE_AS_LEFT,
    TIMES_PLAUSIBLE,
    WINDOWS_COMPLETE,
)
from dagster_kafka_flip.source.incident import lost_offsets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from dagster import AssetKey

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.fields import FieldsSeen
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.window import Windows

NO_RECORDS_REJECTED = "no_records_rejected"
NO_STRAGGLERS = "no_stragglers"
SCHEMA_FITS = "schema_fits"

_DESCRIPTIONS = {
    NO_RECORDS_LOST: "The run found every record it had to read: no retention, truncation or other log in between.",
    ALL_TOPICS_THERE: "The run found every topic and topic partition that the source names.",
    TABLE_AS_LEFT: "The run found the table as the stream had left it: not wiped, not replaced, not filled by others.",
    WINDOWS_COMPLETE: "Every window that the run landed was over, and no open transaction held records of it back.",
    TIMES_PLAUSIBLE: "No record in the way of a window was dated in the future.",
    NO_STRAGGLERS: "Every record that the run read came in time for its window: none is left out of the table.",
    NO_RECORDS_REJECTED: "The run could decode every record.",
    SCHEMA_FITS: "The run's records have the fields that the schema declares.",
}


def check_names(
    tolerated: Collection[type[KafkaFlipError]],
    *,
    keeps_rejected: bool,
    rules: Windows | None,
    has_fields: bool = False,
) -> tuple[str, ...]:
    """The checks that can fail, in the order of their descriptions; what is not tolerated ends the run instead.

    Args:
        tolerated: Errors that don't end a run.
        keeps_rejected: Whether records that can't be decoded don't end it either.
        rules: How records are put into windows; None for a stream.
        has_fields: Whether a format declares fields, which the records may not have.
    """
    names = {CHECKS[error] for error in tolerated} | ({NO_RECORDS_REJECTED} if keeps_rejected else set())
    if has_fields:
        names |= {SCHEMA_FITS}
    # Where windows lie between offsets, and in a repair, no record can miss its window.
    if rules is not None and rules.mode == "exact" and not rules.repair:
        names |= {NO_STRAGGLERS}
    return tuple(name for name in _DESCRIPTIONS if name in names)


def check_specs(names: Collection[str], key: AssetKey) -> list[AssetCheckSpec]:
    """The checks as Dagster is told of them."""
    return [AssetCheckSpec(name, asset=key, description=_DESCRIPTIONS[name]) for name in names]


@dataclass(frozen=True)
class Findings:
    """What a run found that a check tells.

    Attributes:
        incidents: What would have ended the run, had it not been told to go on.
        rejected_records: Records that could not be decoded; None if that is unknown.
        stragglers: Records that are in no window, because they came too late or have no time; None if that is unknown.
        unknown: Why something is unknown.
        fields: Which fields the records have; None if that is unknown.
    """

    incidents: tuple[Incident, ...]
    rejected_records: int | None
    stragglers: int | None = 0
    unknown: str | None = None
    fields: FieldsSeen | None = None


def check_results(names: Collection[str], key: AssetKey, findings: Findings) -> Iterator[AssetCheckResult]:
    """What a run found, check by check.

    Args:
        names: From `check_names`.
        key: The asset.
        findings: What the run found.
    """
    counted = {
        NO_RECORDS_REJECTED: ("rejected_records", findings.rejected_records),
        NO_STRAGGLERS: ("stragglers", findings.stragglers),
    }
    for name in names:
        if name == SCHEMA_FITS:
            yield _schema_fits(key, findings)
            continue
        if name in counted:
            what, number = counted[name]
            why = findings.unknown or "Spark told nothing of the records that the write read"
            yield AssetCheckResult(
                check_name=name,
                asset_key=key,
                passed=number == 0,
                severity=AssetCheckSeverity.WARN,
                description=f"It is unknown how many there were: {why}." if number is None else None,
                metadata={} if number is None else {what: number},
            )
            continue
        met = [incident for incident in findings.incidents if _check_of(incident.error) == name]
        metadata = {incident.error: MetadataValue.text(incident.message) for incident in met}
        number = lost_offsets(met)
        lost = {"lost_offsets": "unknown" if number is None else number} if name == NO_RECORDS_LOST else {}
        yield AssetCheckResult(
            check_name=name,
            asset_key=key,
            passed=not met,
            severity=AssetCheckSeverity.ERROR,
            metadata={**metadata, **lost},
        )


def failed_checks(names: Collection[str], key: AssetKey, findings: Findings) -> Iterator[AssetCheckResult]:
    """What a run found that failed later: only the checks that fail, since it did not look at everything.

    Args:
        names: From `check_names`.
        key: The asset.
        findings: What the run found before it failed.
    """
    yield from (result for result in check_results(names, key, findings) if not result.passed)


def _schema_fits(key: AssetKey, findings: Findings) -> AssetCheckResult:
    fields = findings.fields
    if fields is None and findings.unknown is not None:
        passed, description = False, f"It is unknown which fields the records have: {findings.unknown}."
    else:
        # An optional field that no record has is nothing wrong, unless some have one of another name.
        passed = fields is None or not fields.is_suspicious
        description = "Nothing was read." if fields is None else f"{fields}."
    told = {} if fields is None else {"fields_never_seen": fields.never, "undeclared_fields": fields.undeclared}
    return AssetCheckResult(
        check_name=SCHEMA_FITS,
        asset_key=key,
        passed=passed,
        severity=AssetCheckSeverity.WARN,
        description=description,
        metadata={name: ", ".join(names) for name, names in told.items() if names},
    )


def _check_of(error: str) -> str | None:
    return next((check for kind, check in CHECKS.items() if kind.__name__ == error), None)
