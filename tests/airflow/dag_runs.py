"""Runs a DAG several times in this process, as `airflow dags test` does: one database and one Spark for all.

    python -m tests.airflow.dag_runs DAGS ANSWERS < requests

Each line of the input is a request: a DAG's id, and a date or null. Each line to the descriptor ANSWERS is an
answer: the state of the run, and the assets and extras of all asset events. Not to the output, where processes that
OpenLineage's provider forked write in the middle of a line.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime

from airflow.dag_processing.dagbag import DagBag
from airflow.models.asset import AssetEvent
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from sqlalchemy import select


def main() -> None:
    """Answers requests until there are no more."""
    initdb()
    bag = DagBag(sys.argv[1])
    assert not bag.import_errors, bag.import_errors
    answers = os.fdopen(int(sys.argv[2]), "w")
    for line in sys.stdin:
        name, date = json.loads(line)
        dag = bag.dags[name]
        run = dag.test() if date is None else dag.test(logical_date=datetime.fromisoformat(date))
        with create_session() as session:
            events = [(event.uri, event.extra) for event in session.scalars(select(AssetEvent).order_by(AssetEvent.id))]
        answer = {"state": run.state, "uris": [uri for uri, _ in events], "extras": [extra for _, extra in events]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
