"""Kafka's isolation levels: which records of transactions are read."""

from __future__ import annotations

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"
