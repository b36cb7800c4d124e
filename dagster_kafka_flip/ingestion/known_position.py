"""A known position as JSON, for the events of an orchestrator."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from dagster_kafka_flip.ingestion.result import KnownPosition
from dagster_kafka_flip.source.serializer import from_document, to_document
from dagster_kafka_flip.source.state import STATE_SERIALIZER


def known_to_json(known: KnownPosition) -> dict[str, Any]:
    """Serializes a position."""
    return {
        "stream": known.stream,
        "table": known.table,
        "state": to_document(STATE_SERIALIZER, known.state),
        "verified_at": known.verified_at.isoformat(),
        "table_version": known.table_version,
        "table_rows": known.table_rows,
        "record_bytes": known.record_bytes,
        "kept_until": None if known.kept_until is None else known.kept_until.isoformat(),
        "dead_letters_pending": known.dead_letters_pending,
        "anchor_version": known.anchor_version,
        "transaction_version": known.transaction_version,
        "known_since": known.known_since,
        "log": known.log,
    }


def known_from_json(value: Any) -> KnownPosition | None:
    """Reads the result of `known_to_json`; None if the value is something else."""
    if not isinstance(value, Mapping):
        return None
    document: Any = value
    try:
        return KnownPosition(
            stream=document["stream"],
            table=document["table"],
            state=from_document(STATE_SERIALIZER, document["state"]),
            verified_at=datetime.fromisoformat(document["verified_at"]),
            table_version=document["table_version"],
            table_rows=document["table_rows"],
            record_bytes=document["record_bytes"],
            kept_until=None if (kept := document["kept_until"]) is None else datetime.fromisoformat(kept),
            dead_letters_pending=document["dead_letters_pending"],
            anchor_version=document["anchor_version"],
            transaction_version=document["transaction_version"],
            known_since=document["known_since"],
            log=document["log"],
        )
    except (KeyError, TypeError, ValueError):
        # A foreign value with the same name. The table has the position.
        return None
