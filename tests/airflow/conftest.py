"""Airflow as a library: without its settings, its logging and its database, which other tests would get too."""

from __future__ import annotations

import os

# Before the first import of Airflow, wherever that is.
os.environ["_AIRFLOW__AS_LIBRARY"] = "1"
