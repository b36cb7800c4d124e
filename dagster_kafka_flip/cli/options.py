"""Options that several commands share, and the session and the guard that some of them are for."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pyspark.sql import SparkSession

    Option: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]


@contextlib.contextmanager
def written(option: str | None = None) -> Generator[None, None, None]:
    """Reports an invalid value of an option (None: the message names it) as a usage error, with its own exit code."""
    from dagster_kafka_flip.errors import ConfigurationError

    try:
        yield
    except ConfigurationError as error:
        if option is None:
            raise click.UsageError(str(error)) from error
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from error


json_option = click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, for scripts.")

limit_rows_option = click.option(
    "--limit-rows",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Maximum number of topic partitions to show; --json has all.",
)


def option_group(*options: Option) -> Option:
    """Adds several options as one decorator; a command's help has them in this order."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _checked_address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Rejects an invalid Spark address before anything waits for it."""
    if value is None:
        return None
    from dagster_kafka_flip.errors import ConfigurationError
    from dagster_kafka_flip.runtime.session_settings import check_session_address

    is_master = parameter.name == "spark_master"
    try:
        check_session_address(value if is_master else None, None if is_master else value)
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from None
    if context.params.get("spark_remote" if is_master else "spark_master") is not None:
        msg = "--spark-master and --spark-remote can't be combined; a Spark Connect server has its own master"
        raise click.UsageError(msg)
    return value


spark_options = option_group(
    click.option(
        "--spark-master", callback=_checked_address, help="Master URL. Default: the asset's SparkResource, or local[*]."
    ),
    click.option(
        "--spark-remote",
        callback=_checked_address,
        help="Spark Connect server, such as sc://host:15002, instead of a local session.",
    ),
)


def check_can_ask(*, yes: bool, has_dry_run: bool = True) -> None:
    """Rejects a command that needs confirmation and can't ask for it, before it does anything."""
    if yes:
        return
    if not is_terminal():
        msg = "not a terminal: pass --yes to confirm"
        if has_dry_run:
            msg += ", or --dry-run to see only the plan"
        raise click.UsageError(msg)


def is_terminal() -> bool:
    """Whether there is a terminal."""
    return sys.stdin.isatty()


asset_options = option_group(
    click.option("--asset", help="Key of a Kafka Delta asset, such as lake/flights."),
    click.option(
        "-f",
        "--python-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File with the asset's definitions. Default: the project of pyproject.toml in the working directory, as "
        "for dg; without one, definitions.py.",
    ),
)


def given_options(context: click.Context, names: frozenset[str]) -> list[str]:
    """The given parameters that were set on the command line, as written there."""
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    ]


def check_definitions_have_asset(asset: str | None, python_file: Path | None) -> None:
    """Rejects a file with definitions without `--asset`."""
    if asset is None and python_file is not None:
        raise click.UsageError("-f sets where an asset is defined; select the asset with --asset")


def check_not_of_asset(context: click.Context, asset: str | None, names: frozenset[str]) -> None:
    """Rejects parameters that an asset already sets."""
    given = given_options(context, names)
    if asset is not None and given:
        raise click.UsageError(f"{', '.join(given)}: already set by the asset; remove it, or remove --asset")


def check_asset_or_table(context: click.Context, names: frozenset[str]) -> None:
    """Rejects a command without a table, and parameters that an asset already sets."""
    asset = context.params["asset"]
    check_definitions_have_asset(asset, context.params["python_file"])
    if asset is None and context.params["table"] is None:
        raise click.UsageError("set --table, or select an asset with --asset")
    check_not_of_asset(context, asset, names)


runs_stopped_option = click.option(
    "--runs-stopped",
    is_flag=True,
    help="Confirm that no run writes to the table. Required where only a pool's limit keeps two writers apart (S3 with "
    "single_writer): a command takes no slot of the pool.",
)


@contextlib.contextmanager
def only_writer() -> Generator[None]:
    """Refuses a table whose store does not keep two writers apart, unless `--runs-stopped` is its `single_writer`."""
    from dagster_kafka_flip.errors import UnsafeStoreError

    try:
        yield
    except UnsafeStoreError as error:
        error.finding += ". A command takes no slot of the pool that keeps runs apart"
        error.advice = (
            "Stop the runs that write to the table, with the schedules and sensors that start them, and repeat the "
            "command with --runs-stopped"
        )
        raise


def command_session(master: str | None, remote: str | None) -> contextlib.AbstractContextManager[SparkSession]:
    """The process's active session, or a new one that is stopped afterwards."""
    from dagster_kafka_flip.runtime.session import connect_address, temporary_session

    # A server refuses the setting below, which only a session of its own can have.
    remote = connect_address(master, remote)
    return temporary_session(master, remote, {} if remote else {"spark.ui.enabled": "false"})
