"""Commands that write to a table beside the runs of its assets, on stores where only a pool keeps two writers apart."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Generator

runs_stopped_option = click.option(
    "--runs-stopped",
    is_flag=True,
    help="Confirm that no run writes to the table. Required where only a pool's limit keeps two writers apart (S3 with "
    "single_writer): a command takes no slot of the pool.",
)


@contextlib.contextmanager
def only_writer() -> Generator[None]:
    """Refuses a table whose store does not keep two writers apart, unless `--runs-stopped` is its `single_writer`.

    Raises:
        UnsafeStoreError: A run could write at the same time.
    """
    from dagster_kafka_flip.errors import UnsafeStoreError

    try:
        yield
    except UnsafeStoreError as error:
        msg = (
            f"{str(error).partition(' Nothing was written.')[0]} A command takes no slot of the pool that keeps runs "
            "apart. Nothing was written. Stop the runs that write to the table, with the schedules and sensors that "
            "start them, and repeat the command with --runs-stopped"
        )
        raise UnsafeStoreError(msg) from error
