"""The commands in docs/airflow.md are ones of Airflow's."""

from __future__ import annotations

import shlex

import pytest
from airflow.cli import cli_parser

from tests.document_tests import ROOT, commands

AIRFLOW = [line for line in commands(ROOT / "docs" / "airflow.md") if line.startswith("airflow ")]


@pytest.mark.parametrize("line", AIRFLOW)
def test_every_command_of_airflow_parses(line: str):
    assert callable(cli_parser.get_parser().parse_args(shlex.split(line)[1:]).func)
