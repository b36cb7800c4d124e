"""Options that several commands have."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


@contextlib.contextmanager
def written(option: str | None = None) -> Generator[None, None, None]:
    """Tells a value that can't be as a slip in the command line, whose exit code is another than that of an error.

    Args:
        option: The option that is read. Default: several, which the message tells apart.

    Raises:
        click.UsageError: What is read in it can't be.
    """
    from dagster_kafka_flip.errors import ConfigurationError

    try:
        yield
    except ConfigurationError as error:
        if option is None:
            raise click.UsageError(str(error)) from error
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from error


def json_option(command: Callable[..., None]) -> Callable[..., None]:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one line of JSON, for scripts.")(command)


def data_dir_option(default: str, variable: str, about: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`--data-dir`, of a server.

    Args:
        default: The folder, if none is named.
        variable: The environment variable that may name it.
        about: The help.
    """
    return click.option(
        "--data-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(default),
        show_default=True,
        envvar=variable,
        show_envvar=True,
        help=about,
    )


def limit_rows_option(command: Callable[..., None]) -> Callable[..., None]:
    """`--limit-rows`."""
    return click.option(
        "--limit-rows",
        type=click.IntRange(min=0),
        default=50,
        show_default=True,
        help="Topic partitions to show at most; --json has all.",
    )(command)


def spark_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--spark-master` and `--spark-remote`."""
    for option in (
        click.option(
            "--spark-remote", callback=_checked_address, help="Spark Connect server, such as sc://host:15002, instead."
        ),
        click.option(
            "--spark-master",
            callback=_checked_address,
            help="Master URL. Default: the asset's SparkResource, or local[*].",
        ),
    ):
        command = option(command)
    return command


def _checked_address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuses what Spark could not start with, before anything waits for it."""
    if value is None:
        return None
    from dagster_kafka_flip.errors import ConfigurationError
    from dagster_kafka_flip.runtime.session_address import check_session_address

    is_master = parameter.name == "spark_master"
    try:
        check_session_address("", value if is_master else None, None if is_master else value)
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from None
    if context.params.get("spark_remote" if is_master else "spark_master") is not None:
        msg = "--spark-master and --spark-remote do not go together; a Spark Connect server has its own master"
        raise click.UsageError(msg)
    return value


def check_can_ask(*, yes: bool) -> None:
    """Refuses a command that has to ask where nobody can answer, before it does anything.

    Args:
        yes: Whether it need not ask.

    Raises:
        click.UsageError: There is nobody to ask.
    """
    if not yes and not is_terminal():
        msg = "there is nobody to ask, because this is no terminal: add --yes, or --dry-run to see the plan alone"
        raise click.UsageError(msg)


def is_terminal() -> bool:
    """Whether somebody can answer."""
    return sys.stdin.isatty()


def asset_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--asset`, and where it is defined, as the `dagster` command asks for it."""
    for option in (
        click.option(
            "-f",
            "--python-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="File with the asset's definitions. Default: definitions.py in the working directory.",
        ),
        click.option("-m", "--module-name", help="Module with the asset's definitions, instead."),
        click.option("--asset", help="Key of an asset of this package, such as lake/flights."),
    ):
        command = option(command)
    return command


def given_options(context: click.Context, names: frozenset[str]) -> list[str]:
    """Those of some parameters that were written on the command line, as they are written there."""
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    ]


def check_definitions_have_asset(context: click.Context, asset: str | None) -> None:
    """Refuses definitions that nothing is asked of, or that are named twice.

    Raises:
        click.UsageError: One of the two.
    """
    given = given_options(context, frozenset({"module_name", "python_file"}))
    if asset is None and given:
        msg = f"{given[0]} says where an asset is defined; say which one with --asset"
        raise click.UsageError(msg)
    if len(given) > 1:
        msg = "the asset is defined in a file (-f) or in a module (-m), not in both"
        raise click.UsageError(msg)


def required_asset(context: click.Context, asset: str | None, wanted: str) -> str:
    """The asset of a command that is of no use without one.

    Args:
        context: Of the command.
        asset: What `--asset` says.
        wanted: What is to be said with it.

    Raises:
        click.UsageError: There is none, or its definitions are named twice.
    """
    check_definitions_have_asset(context, asset)
    if asset is None:
        msg = f"say {wanted} with --asset"
        raise click.UsageError(msg)
    return asset
