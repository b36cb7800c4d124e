"""Finds an asset of this package in a project's definitions."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import AssetKey

from dagster_kafka_flip.assets.dagster_internals import (
    loadable_targets_from_python_file,
    loadable_targets_from_python_module,
    repository_def_from_target_def,
)
from dagster_kafka_flip.assets.delta_kafka_asset import check_prefix, publishing_of
from dagster_kafka_flip.assets.registry import by_table, check_streams, ingestions_in, ingestions_of
from dagster_kafka_flip.cli.asset import LandingAsset, PublishedAsset, first_line
from dagster_kafka_flip.errors import ConfigurationError, KafkaFlipError
from dagster_kafka_flip.source import next_step

if TYPE_CHECKING:
    from dagster import RepositoryDefinition

_DEFAULT_FILE = Path("definitions.py")
_PACKAGE = Path(__file__).parents[1]


def find_asset(key: str, *, module_name: str | None = None, python_file: Path | None = None) -> LandingAsset:
    """Loads definitions and finds an asset that lands topics.

    Args:
        key: The asset's key, its parts separated by slashes.
        module_name: Module with the definitions.
        python_file: File with the definitions. Default of the two: `definitions.py` in the working directory.
    """
    definitions = _Definitions(module_name, python_file)
    found = definitions.find(key)
    if isinstance(found, LandingAsset):
        return found
    if found is None:
        raise ConfigurationError(definitions.no_landing(key))
    shown = f"`{next_step.show_position(key, found.defined_in, publishes=True)}` shows what it has published"
    msg = f"{key} publishes a table, and this command is for assets that land topics; {shown}"
    raise ConfigurationError(msg)


def find_published(key: str, *, module_name: str | None = None, python_file: Path | None = None) -> PublishedAsset:
    """Like `find_asset`, for an asset that publishes a table."""
    definitions = _Definitions(module_name, python_file)
    found = definitions.find(key)
    if isinstance(found, PublishedAsset):
        return found
    if found is None:
        there = definitions.publishing or "no asset there publishes a table"
        msg = f"{definitions.where} has no asset {key} of delta_kafka_asset; {there}"
    else:
        shown = f"`{next_step.show_position(key, found.defined_in)}` shows its position"
        msg = f"{key} lands topics, and this command is for assets that publish a table; {shown}"
    raise ConfigurationError(msg)


def find_either(
    key: str, *, module_name: str | None = None, python_file: Path | None = None
) -> LandingAsset | PublishedAsset:
    """Like `find_asset`, for an asset that lands topics or publishes a table."""
    definitions = _Definitions(module_name, python_file)
    found = definitions.find(key)
    if found is None:
        raise ConfigurationError("; ".join(filter(None, (definitions.no_landing(key), definitions.publishing))))
    return found


class _Definitions:
    """The assets of a project. Of two repositories with the same key, the last one counts."""

    def __init__(self, module_name: str | None, python_file: Path | None) -> None:
        self.where, repositories = _load(module_name, python_file)
        self._defined_in = ("-m", module_name) if module_name is not None else ("-f", str(python_file or _DEFAULT_FILE))
        self._found = {
            key: (definition, repository)
            for repository in repositories
            for key, definition in repository.assets_defs_by_key.items()
        }

    def find(self, name: str) -> LandingAsset | PublishedAsset | None:
        """The asset with a key, if it is of this package."""
        key = AssetKey.from_user_string(name)
        if key not in self._found:
            return None
        definition, repository = self._found[key]
        if (ingestion := ingestions_of(definition).get(key)) is not None:
            check_streams(by_table({key: ingestion}), by_table(ingestions_in(repository)))
            return LandingAsset(key, repository, self._defined_in, ingestion)
        if (publishing := publishing_of(definition)) is not None:
            check_prefix(publishing, repository.assets_defs_by_key)
            return PublishedAsset(key, repository, self._defined_in, publishing)
        return None

    def no_landing(self, name: str) -> str:
        """Returns the message that an asset lands no topics, and which assets do."""
        names = [key.to_user_string() for key, (made, _) in self._found.items() if key in ingestions_of(made)]
        what = (
            f"{name} in {self.where} was not created by kafka_delta_asset or build_kafka_delta_asset"
            if AssetKey.from_user_string(name) in self._found
            else f"{self.where} has no asset {name}"
        )
        there = f"Kafka Delta assets: {', '.join(sorted(names))}" if names else "there are no Kafka Delta assets"
        return f"{what}; {there}"

    @property
    def publishing(self) -> str:
        """Says which assets publish a table; empty if there are none."""
        names = [key.to_user_string() for key, (made, _) in self._found.items() if publishing_of(made) is not None]
        return f"assets that publish a table: {', '.join(sorted(names))}" if names else ""


def _load(module_name: str | None, python_file: Path | None) -> tuple[str, list[RepositoryDefinition]]:
    if module_name is None and python_file is None:
        python_file = _DEFAULT_FILE
        if not python_file.exists():
            msg = f"there is no {_DEFAULT_FILE} in {Path.cwd()}; use -f or -m to set where the asset is defined"
            raise ConfigurationError(msg)
    where = f"the module {module_name}" if python_file is None else str(python_file)
    folder = str(Path.cwd())
    try:
        # Keeps prints of a project's modules out of the output.
        with contextlib.redirect_stdout(sys.stderr):
            if python_file is not None:
                targets = loadable_targets_from_python_file(str(python_file), folder)
            else:
                targets = loadable_targets_from_python_module(module_name or "", folder)
            found = [repository_def_from_target_def(target.target_definition) for target in targets]
    except KafkaFlipError:
        raise
    except SystemExit as error:
        msg = f"the definitions in {where} can't be loaded: they exit the process (exit code {error.code})"
        raise ConfigurationError(msg) from None
    except Exception as error:
        # Dagster wraps failed imports in advice for its own command.
        cause = error.__cause__ or error
        msg = (
            f"the definitions in {where} can't be loaded: {type(cause).__name__}: {first_line(cause)}{_line_of(cause)}"
        )
        raise ConfigurationError(msg) from error
    return where, [repository for repository in found if repository is not None]


def _line_of(error: BaseException) -> str:
    """The location in the project's code that raised an error; empty if the traceback has only other code."""
    if isinstance(error, SyntaxError):
        # A SyntaxError already contains it.
        return ""
    others = [_PACKAGE, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))]
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(Path(frame.filename).is_relative_to(other) for other in others)
        and not frame.filename.startswith("<")
        and "site-packages" not in frame.filename
    ]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
