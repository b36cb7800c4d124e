"""Runs a DAG without events, and again with many of one time, in a real Airflow.

    python -m tests.airflow.many_events DAGS EVENTS

The asset `published` gets an event with a sink's progress after the first run, and then as many newer events of one
time as asked for.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone

from airflow.dag_processing.dagbag import DagBag
from airflow.models.asset import AssetEvent, AssetModel
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from sqlalchemy import select

from dagster_kafka_flip.sink.result import SINK, SINK_PROGRESS


def main() -> None:
    """Runs the DAG `ask` twice."""
    initdb()
    bag = DagBag(sys.argv[1])
    assert not bag.import_errors, bag.import_errors
    dag = bag.dags["ask"]
    assert dag.test().state == "success"
    now = datetime.now(tz=timezone.utc)
    progress = {SINK: "orders-out", SINK_PROGRESS: {"0": {"version": 7, "rows": 0}}}
    with create_session() as session:
        asset = session.scalars(select(AssetModel).where(AssetModel.name == "published")).one()
        session.add(AssetEvent(asset_id=asset.id, extra=progress, timestamp=now - timedelta(hours=1)))
        session.add_all(AssetEvent(asset_id=asset.id, extra={}, timestamp=now) for _ in range(int(sys.argv[2])))
    assert dag.test().state == "success"


if __name__ == "__main__":
    main()
