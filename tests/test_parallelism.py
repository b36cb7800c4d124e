"""How many tasks a session runs at once, from its settings alone; nothing is started."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_kafka_flip.runtime.session import parallelism


@pytest.mark.parametrize(
    ("settings", "tasks"),
    [
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[2,4]"}, 2),
        ({"spark.master": "local[2, 4]"}, 2),
        ({"spark.master": "local[*]"}, os.cpu_count()),
        ({"spark.master": "spark://m:7077"}, 8),
        ({"spark.master": "spark://m:7077", "spark.cores.max": "6", "spark.executor.cores": "4"}, 6),
        ({"spark.master": "spark://m:7077", "spark.cores.max": "6", "spark.executor.instances": "2"}, 2),
        ({"spark.master": "yarn", "spark.executor.instances": "3", "spark.executor.cores": "4"}, 12),
        ({"spark.master": "yarn", "spark.dynamicAllocation.maxExecutors": "5"}, 5),
        ({"spark.master": "spark://m:7077", "spark.cores.max": "6", "spark.default.parallelism": "20"}, 20),
    ],
)
def test_a_session_runs_as_many_tasks_as_its_settings_give_it_cores(settings: dict[str, str], tasks: int):
    session: Any = SimpleNamespace(conf=settings)
    assert parallelism(session) == tasks
