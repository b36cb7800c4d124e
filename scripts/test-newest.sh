#!/usr/bin/env bash
# Runs the tests of the core on the newest Spark and Delta that are declared as supported.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-newest
[ -x "$venv/bin/python" ] || "${PYTHON:-.venv/bin/python}" -m venv "$venv"
grep -vE '^(pyspark|delta-spark|py4j|importlib_metadata)==' constraints.txt > "$venv/constraints.txt"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$venv/constraints.txt" \
  -c constraints-airflow.txt -e ".[dev]"
"$venv/bin/python" -m pip list | grep -E '^(pyspark|delta.spark) '
exec "$venv/bin/python" -m pytest -m "spark and not slow and not nightly" "$@"
