"""An asset of this package, for commands that use it without a run."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, DagsterError, DagsterInstance, build_asset_context, build_resources

from dagster_kafka_flip.assets.dagster_internals import (
    LoadableTargetOrigin,
    get_loadable_targets,
    get_origins_from_toml,
    repository_def_from_target_def,
)
from dagster_kafka_flip.assets.delta_kafka_asset import check_prefix, publishing_of
from dagster_kafka_flip.assets.position_record import MOST_MATERIALIZATIONS, read_record, void_record
from dagster_kafka_flip.assets.registry import by_table, check_streams, ingestions_in, ingestions_of
from dagster_kafka_flip.assets.resources import kafka_of, registries_of, spark_of
from dagster_kafka_flip.cli.options import command_session
from dagster_kafka_flip.errors import ConfigurationError, KafkaFlipError
from dagster_kafka_flip.source import next_step
from dagster_kafka_flip.table.known_position import KnownPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from dagster import RepositoryDefinition
    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.assets.delta_kafka_asset import Publishing
    from dagster_kafka_flip.assets.kafka_delta_asset import Ingestion
    from dagster_kafka_flip.assets.position_record import Record
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.target import DeltaTarget

_MISSING_VARIABLE = re.compile(r'environment variable "([^"]+)" which is not set')


@dataclass(frozen=True)
class DefinedAsset:
    """An asset of a project's definitions, and Dagster's command line options for where it is defined.

    What needs a resource raises a ConfigurationError if it can't be created.
    """

    key: AssetKey
    repository: RepositoryDefinition
    located: tuple[str, str]

    @property
    def defined_in(self) -> tuple[str, ...]:
        """The same options for this package's commands, which find a project's module themselves."""
        return self.located if self.located[0] == "-f" else ()

    @contextlib.contextmanager
    def session_of(self, spark: str, master: str | None, remote: str | None) -> Generator[SparkSession, None, None]:
        """A Spark session of the SparkResource, or of a master or server; stops it if it started it."""
        if master or remote:
            with command_session(master, remote) as session:
                yield session
            return
        with self._resource(spark) as made:
            yield spark_of(made, spark)()

    def connection_of(self, kafka: str, cluster: str | None) -> KafkaConnection:
        """Returns a KafkaResource's connection to a cluster."""
        with self._resource(kafka) as made:
            return kafka_of(made, kafka, cluster)

    @contextlib.contextmanager
    def _resource(self, key: str) -> Generator[SimpleNamespace, None, None]:
        """Context manager with what has the resource, as a run's context has it."""
        with contextlib.ExitStack() as stack:
            try:
                # Keeps prints of a user's resources out of the output.
                with contextlib.redirect_stdout(sys.stderr):
                    made = stack.enter_context(build_resources(self._needed(key)))
            except DagsterError as error:
                raise ConfigurationError(self._why_not(key, error)) from None
            yield SimpleNamespace(resources=made)

    def _needed(self, key: str) -> dict[str, Any]:
        """Creates a resource and its dependencies only, because creating others may have side effects."""
        definition = self.repository.assets_defs_by_key[self.key]
        resources = {**self.repository.get_top_level_resources(), **definition.resource_defs}
        needed: dict[str, Any] = {}
        pending = [key]
        while pending:
            name = pending.pop()
            if name not in resources:
                msg = f"the asset {self.key.to_user_string()} has no resource {name!r}; add it to its Definitions"
                raise ConfigurationError(msg)
            if name not in needed:
                needed[name] = resources[name]
                pending += needed[name].required_resource_keys
        return needed

    def _why_not(self, key: str, error: DagsterError) -> str:
        # Dagster's message repeats invalid values, which may be secrets.
        variables = sorted(set(_MISSING_VARIABLE.findall(str(error))))
        if variables:
            return f"the resource {key!r} needs {' and '.join(variables)} in the environment"
        own = _own_error(error)
        why = f" ({type(error).__name__})" if own is None else f": {own}"
        return f"can't create the resource {key!r} of the asset {self.key.to_user_string()}{why}"


@dataclass(frozen=True)
class PublishedAsset(DefinedAsset):
    """An asset that publishes a table."""

    publishing: Publishing


@dataclass(frozen=True)
class LandingAsset(DefinedAsset):
    """An asset that lands topics."""

    ingestion: Ingestion

    @property
    def source(self) -> KafkaSource:
        """The asset's source, without a connection."""
        return self.ingestion.source

    @property
    def target(self) -> DeltaTarget:
        """The asset's table."""
        return self.ingestion.target

    def connection(self) -> KafkaConnection:
        """Returns the KafkaResource's connection to the cluster."""
        return self.connection_of(self.ingestion.kafka, self.source.cluster)

    def session(
        self, master: str | None = None, remote: str | None = None
    ) -> contextlib.AbstractContextManager[SparkSession]:
        """Like `session_of`, with the asset's SparkResource."""
        return self.session_of(self.ingestion.spark, master, remote)

    def with_registries(self) -> Ingestion:
        """Returns the ingestion with the schema registries of its resources."""
        decoder = self.ingestion.decoder
        with contextlib.ExitStack() as stack:
            registries: dict[str, SchemaRegistry] = {}
            for key in decoder.registry_keys:
                registries |= registries_of(stack.enter_context(self._resource(key)), [key])
        return replace(self.ingestion, decoder=decoder.with_registries(registries))

    @contextlib.contextmanager
    def transform(self) -> Generator[Callable[[DataFrame], DataFrame] | None, None, None]:
        """The asset's transform with its resources bound."""
        with contextlib.ExitStack() as stack:
            names = self.ingestion.transform_resources
            made = {name: getattr(stack.enter_context(self._resource(name)).resources, name) for name in names}
            yield self.ingestion.bound_transform(stack.enter_context(build_asset_context(resources=made)))

    @property
    def partitions_per_run(self) -> int | None:
        """Maximum number of partitions per backfill run; None for no limit."""
        policy = self.repository.assets_defs_by_key[self.key].backfill_policy
        return 1 if policy is None else policy.max_partitions_per_run

    @property
    def op_name(self) -> str:
        """The name of the op in a run of only this asset: Dagster renames one if two keys have the same text form."""
        subset = self.repository.get_implicit_global_asset_job_def().get_subset(asset_selection={self.key})
        return subset.asset_layer.get_op_output_handle(self.key).node_handle.name

    def no_position(self) -> ConfigurationError:
        """Returns the error of a command for streams, if the asset has partitions."""
        name = self.key.to_user_string()
        return ConfigurationError(
            f"the asset {name} has partitions: a run writes the selected windows and has no position",
            f"To see what it would read: {next_step.plan_range(name, self.defined_in)}",
        )

    def check_has_position(self) -> None:
        """Refuses an asset that lands windows, unless they repair the table of a stream."""
        partitions = self.ingestion.partitions
        if partitions is not None and not partitions.rules.repair:
            raise self.no_position()

    def record(self) -> DagsterRecord:
        """Returns Dagster's record of the position."""
        if not os.environ.get("DAGSTER_HOME"):
            return DagsterRecord(None, "DAGSTER_HOME is not set, so Dagster's record can't be read")
        try:
            with DagsterInstance.get() as instance:
                record = read_record(instance, self.key)
        except Exception as error:
            raise ConfigurationError(_why_no_instance(error)) from error
        # Replacing a range does not move the position, so an older record is still valid.
        known = record.moved if record.is_void else record.position
        if known is None:
            return DagsterRecord(None, _why_unknown(record))
        if not known.is_of(self.target):
            return DagsterRecord(
                None,
                f"Dagster's record belongs to the stream {known.stream!r} of {known.table}, but the asset has the "
                f"stream {self.target.stream!r} of {self.target.identity}. Check the working directory and the "
                "Dagster instance (DAGSTER_HOME)",
            )
        seen = f"{known.verified_at:%Y-%m-%d %H:%M:%SZ}"
        if record.is_void:
            text = (
                f"Dagster's record, set manually in the table's version {known.table_version} at {seen}, where the "
                "next run reads it"
            )
            return DagsterRecord(known, text)
        text = f"Dagster's record: the table's version {known.table_version}, verified at {seen}"
        return DagsterRecord(known, text, record.run_id)

    def void_record(self, stream: str, version: int, reason: str, state: EnumeratorState) -> str:
        """Invalidates Dagster's record after a move, if it is of the moved stream; returns a message."""
        name = self.key.to_user_string()
        again = "once with verify: true; otherwise its runs may use the old record for up to verify_after (24 hours)."
        if stream != self.target.stream:
            return (
                f"Dagster's record of {name} was not updated, because it is of the stream {self.target.stream!r}. Run "
                f"the asset of the stream {stream!r} {again}"
            )
        moved = KnownPosition(
            stream=stream,
            table=self.target.identity,
            state=state,
            verified_at=datetime.now(tz=timezone.utc),
            table_version=version,
            anchor_version=version,
        )
        try:
            if not os.environ.get("DAGSTER_HOME"):
                why = "DAGSTER_HOME is not set"
            else:
                with DagsterInstance.get() as instance:
                    void_record(instance, self.key, reason, version, moved)
                return f"Dagster's record of {name} is invalidated; the next run reads the table."
        except Exception as error:  # noqa: BLE001 - whatever it is, the position is moved
            why = _why_no_instance(error)
        return f"Dagster's record was not updated, because {why.rstrip('.')}. Run the asset {again}"


@dataclass(frozen=True)
class DagsterRecord:
    """Dagster's record of a position: where it is from, or why there is none; without a run if it was set manually."""

    known: KnownPosition | None
    text: str
    run_id: str | None = None


def _why_no_instance(error: Exception) -> str:
    """Says why Dagster's instance can't be used: its folder, its settings, or its database."""
    kind = "" if isinstance(error, DagsterError) else f"{type(error).__name__}: "
    # Of an error in dagster.yaml, whose message has more than a line.
    place = getattr(error, "problem_mark", None)
    where = "" if place is None else f" ({str(place).strip()})"
    return f"the Dagster instance of DAGSTER_HOME can't be opened: {kind}{first_line(error)}{where}"


def _why_unknown(record: Record) -> str:
    if record.is_void:
        return "the position was moved since the last run, and Dagster's record does not have the new one"
    if record.materialization is None:
        return "Dagster has no position of this asset"
    return f"none of the last {MOST_MATERIALIZATIONS:,} materializations has a position"


def _own_error(error: BaseException | None) -> KafkaFlipError | None:
    """This package's error that caused another one, if any. It repeats no secrets."""
    while error is not None and not isinstance(error, KafkaFlipError):
        error = error.__cause__
    return error


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or ["no message"])[0]


_DEFAULT_FILE = Path("definitions.py")
_PROJECT_FILE = Path("pyproject.toml")


def find_asset(key: str, python_file: Path | None = None) -> LandingAsset:
    """Loads the project in the working directory, or a file, and finds an asset that lands topics."""
    found = find_either(key, python_file)
    if isinstance(found, LandingAsset):
        return found
    shown = f"`{next_step.show_position(key, found.defined_in)}` shows what it has published"
    raise ConfigurationError(f"{key} publishes a table, and this command is for assets that land topics; {shown}")


def find_either(name: str, python_file: Path | None = None) -> LandingAsset | PublishedAsset:
    """Like `find_asset`, for an asset that lands topics or publishes a table."""
    where, located, repositories = _load(python_file)
    # Of two repositories with the same key, the last one counts.
    every = {
        key: (definition, repository)
        for repository in repositories
        for key, definition in repository.assets_defs_by_key.items()
    }
    key = AssetKey.from_user_string(name)
    if key in every:
        definition, repository = every[key]
        if (ingestion := ingestions_of(definition).get(key)) is not None:
            check_streams(by_table({key: ingestion}), by_table(ingestions_in(repository)))
            return LandingAsset(key, repository, located, ingestion)
        if (publishing := publishing_of(definition)) is not None:
            check_prefix(key, publishing, repository.assets_defs_by_key)
            return PublishedAsset(key, repository, located, publishing)
        what = f"{name} in {where} was not created by kafka_delta_asset, delta_kafka_asset or their builders"
    else:
        what = f"{where} has no asset {name}"
    own = ", ".join(
        sorted(
            key.to_user_string()
            for key, (definition, _) in every.items()
            if key in ingestions_of(definition) or publishing_of(definition) is not None
        )
    )
    raise ConfigurationError(f"{what}; assets of this package: {own or 'none'}")


def _load(python_file: Path | None) -> tuple[str, tuple[str, str], list[RepositoryDefinition]]:
    """Loads what `dg` loads in this folder, or a file: where from, by which of Dagster's options, and what."""
    origins = [LoadableTargetOrigin(python_file=str(python_file or _DEFAULT_FILE), working_directory=str(Path.cwd()))]
    if python_file is None and _PROJECT_FILE.exists():
        projects = [origin.loadable_target_origin for origin in get_origins_from_toml(str(_PROJECT_FILE))]
        origins = projects or origins
    first = origins[0]
    if first.module_name is not None:
        located = ("-m", first.module_name)
    elif first.autoload_defs_module_name is not None:
        located = ("--autoload-defs-module-name", first.autoload_defs_module_name)
    else:
        located = ("-f", first.python_file or "")
        if not Path(located[1]).exists():
            raise ConfigurationError(
                f"there is no {_DEFAULT_FILE} in {Path.cwd()}, and no project in {_PROJECT_FILE}; use -f to set where "
                "the asset is defined"
            )
    where = located[1] if located[0] == "-f" else f"the module {located[1]}"
    try:
        # Keeps prints of a project's modules out of the output.
        with contextlib.redirect_stdout(sys.stderr):
            loaded = [
                repository_def_from_target_def(target.target_definition)
                for origin in origins
                for target in get_loadable_targets(
                    python_file=origin.python_file,
                    module_name=origin.module_name,
                    package_name=None,
                    autoload_defs_module_name=origin.autoload_defs_module_name,
                    working_directory=origin.working_directory,
                    attribute=None,
                    resolve_lazy_defs=True,
                )
            ]
    except KafkaFlipError:
        raise
    except SystemExit as error:
        msg = f"the definitions in {where} can't be loaded: they exit the process (exit code {error.code})"
        raise ConfigurationError(msg) from None
    except Exception as error:
        # Dagster wraps failed imports in advice for its own command.
        cause = error.__cause__ or error
        raise ConfigurationError(
            f"the definitions in {where} can't be loaded: {type(cause).__name__}: {first_line(cause)}",
            f"To see the line: dagster definitions validate {' '.join(located)}",
        ) from error
    return where, located, [repository for repository in loaded if repository is not None]
