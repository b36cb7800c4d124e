"""Asset checks that come with an asset: what a run was told to go on in spite of fails one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import AssetCheckResult, AssetCheckSeverity, AssetCheckSpec, MetadataValue

from dagster_kafka_flip.tolerance import ALL_TOPICS_THERE, CHECKS, NO_RECORDS_LOST, TABLE_AS_LEFT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from dagster import AssetKey

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.result import IngestResult

NO_RECORDS_REJECTED = "no_records_rejected"

_DESCRIPTIONS = {
    NO_RECORDS_LOST: "The run found every record it had to read: no retention, truncation or other log in between.",
    ALL_TOPICS_THERE: "The run found every topic and topic partition that the source names.",
    TABLE_AS_LEFT: "The run found the table as the stream had left it: not wiped, not replaced, not filled by others.",
    NO_RECORDS_REJECTED: "The run could decode every record.",
}


def check_names(tolerated: Collection[type[KafkaFlipError]], *, keeps_rejected: bool) -> tuple[str, ...]:
    """The checks that can fail, in the order of their descriptions; what is not tolerated ends the run instead.

    Args:
        tolerated: Errors that don't end a run.
        keeps_rejected: Whether records that can't be decoded don't end it either.
    """
    names = {CHECKS[error] for error in tolerated} | ({NO_RECORDS_REJECTED} if keeps_rejected else set())
    return tuple(name for name in _DESCRIPTIONS if name in names)


def check_specs(names: Collection[str], key: AssetKey) -> list[AssetCheckSpec]:
    """The checks as Dagster is told of them."""
    return [AssetCheckSpec(name, asset=key, description=_DESCRIPTIONS[name]) for name in names]


def check_results(names: Collection[str], key: AssetKey, result: IngestResult) -> Iterator[AssetCheckResult]:
    """What a run found.

    Args:
        names: From `check_names`.
        key: The asset.
        result: What the run did.
    """
    for name in names:
        if name == NO_RECORDS_REJECTED:
            rejected = result.rejected_records
            yield AssetCheckResult(
                check_name=name,
                asset_key=key,
                passed=rejected == 0,
                severity=AssetCheckSeverity.WARN,
                metadata={"rejected_records": rejected},
            )
            continue
        met = [incident for incident in result.incidents if _check_of(incident.error) == name]
        metadata = {incident.error: MetadataValue.text(incident.message) for incident in met}
        lost = {"lost_offsets": sum(incident.lost_offsets or 0 for incident in met)} if name == NO_RECORDS_LOST else {}
        yield AssetCheckResult(
            check_name=name,
            asset_key=key,
            passed=not met,
            severity=AssetCheckSeverity.ERROR,
            metadata={**metadata, **lost},
        )


def _check_of(error: str) -> str | None:
    return next((check for kind, check in CHECKS.items() if kind.__name__ == error), None)
