"""An asset of this package, for commands that use it without a run."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
import traceback
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from dagster import AssetKey, DagsterError, DagsterInstance, build_asset_context, build_resources

from dagster_kafka_flip.assets.dagster_internals import (
    loadable_targets_from_python_file,
    loadable_targets_from_python_module,
    repository_def_from_target_def,
)
from dagster_kafka_flip.assets.delta_kafka_asset import check_prefix, publishing_of
from dagster_kafka_flip.assets.position_record import MOST_MATERIALIZATIONS, read_record, void_record
from dagster_kafka_flip.assets.registries import registry_of
from dagster_kafka_flip.assets.registry import by_table, check_streams, ingestions_in, ingestions_of
from dagster_kafka_flip.assets.resources import connection_of, session_of
from dagster_kafka_flip.cli.options import command_session
from dagster_kafka_flip.errors import ConfigurationError, KafkaFlipError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source import next_step
from dagster_kafka_flip.table.known_position import KnownPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from dagster import RepositoryDefinition
    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.assets.delta_kafka_asset import Publishing
    from dagster_kafka_flip.assets.kafka_delta_asset import Ingestion
    from dagster_kafka_flip.assets.position_record import Record
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.target import DeltaTarget

_MISSING_VARIABLE = re.compile(r'environment variable "([^"]+)" which is not set')


@dataclass(frozen=True)
class DefinedAsset:
    """An asset of a project's definitions. What needs a resource raises a ConfigurationError if it can't be created.

    Attributes:
        key: The asset's key.
        repository: The repository with the asset's definition.
        defined_in: Command line options for the location of its definition, for commands in messages.
    """

    key: AssetKey
    repository: RepositoryDefinition
    defined_in: tuple[str, str]

    @contextlib.contextmanager
    def session_of(self, spark: str, master: str | None, remote: str | None) -> Generator[SparkSession, None, None]:
        """Context manager with a Spark session; stops the session if it started it.

        Args:
            spark: Key of the SparkResource.
            master: Master URL. Default: the session of the SparkResource.
            remote: Spark Connect server, instead of a master.
        """
        if master or remote:
            with command_session(master, remote) as session:
                yield session
            return
        with self._resource(spark) as made:
            yield session_of(made, spark)()

    def connection_of(self, kafka: str, cluster: str | None) -> KafkaConnection:
        """Returns a KafkaResource's connection to a cluster."""
        with self._resource(kafka) as made:
            return connection_of(made, kafka, cluster)

    @contextlib.contextmanager
    def _resource(self, key: str) -> Generator[Any, None, None]:
        with contextlib.ExitStack() as stack:
            try:
                # Keeps prints of a user's resources out of the output.
                with contextlib.redirect_stdout(sys.stderr):
                    made = stack.enter_context(build_resources(self._needed(key)))
            except DagsterError as error:
                raise ConfigurationError(self._why_not(key, error)) from None
            yield getattr(made, key)

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
            made = {key: stack.enter_context(self._resource(key)) for key in decoder.registry_keys}
            registries = {key: registry_of(resource, key) for key, resource in made.items()}
        return replace(self.ingestion, decoder=decoder.with_registries(registries))

    @contextlib.contextmanager
    def transform(self) -> Generator[Callable[[DataFrame], DataFrame] | None, None, None]:
        """The asset's transform with its resources bound."""
        with contextlib.ExitStack() as stack:
            made = {name: stack.enter_context(self._resource(name)) for name in self.ingestion.transform_resources}
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
        """Checks that the asset lands a stream, or repairs the table of one.

        Raises:
            ConfigurationError: It lands windows.
        """
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
                _tell_of_slots(instance, self.repository.assets_defs_by_key[self.key].op.pool)
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
            text = f"Dagster's record, set manually in the table's version {known.table_version} at {seen}"
            return DagsterRecord(known, text)
        text = f"Dagster's record: the table's version {known.table_version}, verified at {seen}"
        return DagsterRecord(known, text, record.run_id)

    def void_record(
        self, stream: str, version: int, reason: str, state: EnumeratorState, transaction_version: int | None
    ) -> str:
        """Invalidates Dagster's record of the position; returns a message.

        Args:
            stream: The stream that was moved; the record of another one stays.
            version: The table's version with the new position.
            reason: The reason.
            state: The stream's new state.
            transaction_version: The version of the move's transaction.
        """
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
            transaction_version=transaction_version,
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
    """Dagster's record of a position.

    Attributes:
        known: The position; None if there is none.
        text: Its origin, or why there is none.
        run_id: The run that recorded it; None if it was set manually.
    """

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


def _tell_of_slots(instance: DagsterInstance, pool: str | None) -> None:
    """Tells which runs have slots of a pool. One whose process was killed keeps its slot, and others wait for it."""
    storage = instance.event_log_storage
    if pool is None or not storage.supports_global_concurrency_limits:
        return
    found = storage.get_concurrency_info(pool)
    for run_id in sorted({slot.run_id for slot in found.claimed_slots}):
        record = instance.get_run_record_by_id(run_id)
        state, begun = ("deleted", None) if record is None else (record.dagster_run.status.value, record.start_time)
        since = (
            "" if begun is None else f", begun at {datetime.fromtimestamp(begun, tz=timezone.utc):%Y-%m-%d %H:%M:%SZ}"
        )
        click.echo(
            f"The run {run_id} ({state}{since}) has a slot of the pool {pool}, for which "
            f"{counted(found.pending_step_count, 'step')} of other runs wait. If its process is gone, end it in "
            "Dagster's UI: Force termination immediately, then Free concurrency slots.",
            err=True,
        )


def _own_error(error: BaseException | None) -> KafkaFlipError | None:
    """This package's error that caused another one, if any. It repeats no secrets."""
    while error is not None and not isinstance(error, KafkaFlipError):
        error = error.__cause__
    return error


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or ["no message"])[0]


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
    raise ConfigurationError(f"{key} publishes a table, and this command is for assets that land topics; {shown}")


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
