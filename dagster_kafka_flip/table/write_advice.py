"""Says what to do about failed writes whose cause is the rows, or the machines that run Spark's tasks."""

from __future__ import annotations

import re

from dagster_kafka_flip.errors import error_text
from dagster_kafka_flip.table.spark_error import breaks_rule, is_sparks_own, lacks_memory, lacks_module
from dagster_kafka_flip.table.store_errors import with_advice

_NO_PROGRAM = re.compile(r'\bCannot run program "([^"\n]+)"')
_NO_FOLDER = re.compile(
    r"Mkdirs failed to create (?P<path>[^\n]*?)(?= \(exists=|\n|$)"
    r"|maximum path component name limit of (?P<name>[^\n]*?) in directory "
)
_LONGEST_NAME = 255
_BY_CONDITION = {
    "[DELTA_CANNOT_MODIFY_APPEND_ONLY]": (
        "Tables with a key, and those written in windows, replace rows: set delta.appendOnly of this table to false, "
        "also in the properties of its DeltaTarget"
    ),
    "[PYTHON_VERSION_MISMATCH]": (
        "Name a Python of the driver's minor version, which each machine that runs tasks has, with PYSPARK_PYTHON in "
        "the environment of Spark's driver"
    ),
}


def explained(failure: BaseException) -> str:
    """The line that explains why a write failed, and what to do.

    Args:
        failure: Spark's error.
    """
    if (no_folder := _without_folder(error_text(failure))) is not None:
        return no_folder
    return ". ".join(filter(None, (with_advice(failure).rstrip("."), _advice(failure))))


def _advice(failure: BaseException) -> str | None:
    if breaks_rule(failure):
        return (
            "A row breaks this rule of the table (a tombstone has null in each column of its value, and an empty "
            "string is null in a partition column). Drop or change such rows in the transform, or drop the rule from "
            "the table"
        )
    if lacks_module(failure):
        return (
            "The Python of Spark's tasks lacks this module, which a transform's function needs: send it along with "
            "spark.submit.pyFiles, or install it on each machine that runs tasks, for the Python that PYSPARK_PYTHON "
            "names"
        )
    if is_sparks_own(failure) and (program := _NO_PROGRAM.search(error_text(failure))) is not None:
        return (
            f"Spark's tasks can't start the Python that a format or a function needs: {program[1]}. Install it on each "
            "machine that runs tasks, or name another one with PYSPARK_PYTHON in the environment of Spark's driver"
        )
    if lacks_memory(failure):
        return (
            "Where Spark's tasks run there is too little memory: give an executor more (spark.executor.memory on a "
            "cluster, otherwise spark.driver.memory; for Python functions spark.executor.memoryOverhead), or make the "
            "batches smaller (max_records_per_batch), and run again"
        )
    return next((advice for condition, advice in _BY_CONDITION.items() if condition in error_text(failure)), None)


def _without_folder(text: str) -> str | None:
    """Says which partition column has a value that names no folder, without the value: it can be a record's."""
    found = _NO_FOLDER.search(text)
    for folder in () if found is None else (found["path"] or found["name"]).split("/"):
        column, is_partition, _ = folder.partition("=")
        size = len(folder.encode("utf-8", "replace"))
        if is_partition and ("\0" in folder or size > _LONGEST_NAME):
            what = "has the character U+0000" if "\0" in folder else f"is too long (the name needs {size:,} bytes)"
            return (
                f"Delta names a folder after each value of the partition column {column}, with at most {_LONGEST_NAME} "
                f"bytes and without U+0000, and a value {what}. Change or shorten such values in the transform, or "
                "partition a new table by another column"
            )
    return None
