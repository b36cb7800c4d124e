"""The example project, all steps: `python -m examples.demo`, or `make demo`.

A real Kafka broker, 336,776 real flights, the assets of `assets/flights.py`, which Dagster materializes three times,
and a final comparison of the topic with the tables, record by record.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from dagster import DagsterInstance
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn
from rich.table import Column, Table

from dagster_kafka_flip import KafkaFlipError, LocalBroker, build_session
from examples.comparison import Comparison, compare_raw, compare_typed, read_topic
from examples.flights_data import TOPIC, Flights, create_topic, load_flights, produce
from examples.progress import busy, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from dagster import ExecuteInProcessResult

_FIRST_DAY, _LAST_DAY = "2013-03-01", "2013-05-31"

_LOG_NAME = "demo.log"
_LOCK_NAME = "demo.lock"
_JVM_SECONDS = 20.0

# In a minute-long run, the second compiler costs a JVM more than it gains: without it the demo is a quarter faster.
_QUICK_JVM = '--driver-java-options "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" pyspark-shell'


class DemoError(Exception):
    """The demo can't run, or the tables differ from the topic."""


class Demo:
    """One run of the demo, in the working directory.

    Args:
        console: The terminal.
        bootstrap_servers: The broker.
    """

    def __init__(self, console: Console, bootstrap_servers: str) -> None:
        self._console = console
        self._bootstrap_servers = bootstrap_servers

    def run(self, limit: int | None) -> str:
        """Runs all steps.

        Args:
            limit: Number of flights. Default: all.

        Returns:
            A summary of the result.

        Raises:
            DemoError: The tables differ from the topic.
        """
        with busy(self._console, "Reading the flights of 2013"):
            first, second = load_flights(limit)
        create_topic(self._bootstrap_servers)
        # One instance for all steps: the third step uses the second one's record of the position.
        with DagsterInstance.ephemeral() as instance:
            self._headline("1. January to June")
            self._produce(first)
            self._materialize(instance)
            self._headline("2. July to December: reads only new records")
            self._produce(second)
            self._materialize(instance)
            self._headline("3. No new records: Spark is not started")
            self._materialize(instance)
            self._headline(f"4. {_FIRST_DAY} to {_LAST_DAY} by day: a backfill in one run")
            days = self._backfill(instance, [*first.departures, *second.departures])
        self._headline("The tables compared with the topic, record by record")
        return f"{self._verdict(len(first) + len(second), self._compare())}; {days}"

    def _produce(self, flights: Flights) -> None:
        with progress(self._console, BarColumn(), MofNCompleteColumn()) as shown:
            task = shown.add_task(f"Writing to the topic {TOPIC}", total=len(flights))
            produce(self._bootstrap_servers, flights, lambda done: shown.update(task, completed=done))

    def _materialize(self, instance: DagsterInstance) -> None:
        # Imported after changing the working directory, because the tables have relative paths.
        from definitions import defs

        with busy(self._console, "Observing the topic, materialising the tables"):
            result = defs.resolve_job_def("land_flights").execute_in_process(instance=instance)
        self._console.print(_step_table(result))

    def _backfill(self, instance: DagsterInstance, departures: Sequence[int]) -> str:
        """Backfills a range of days, and compares the number of flights of each day."""
        from assets.flights import flights_daily
        from definitions import defs

        with busy(self._console, "Writing the days"):
            result = defs.resolve_implicit_global_asset_job_def().execute_in_process(
                instance=instance,
                asset_selection=[flights_daily.key],
                tags={ASSET_PARTITION_RANGE_START_TAG: _FIRST_DAY, ASSET_PARTITION_RANGE_END_TAG: _LAST_DAY},
            )
        landed: dict[str, Any] = {}
        for event in result.get_asset_materialization_events():
            partition = event.materialization
            landed[partition.partition or ""] = partition.metadata["dagster/partition_row_count"].value
        metadata = result.get_asset_materialization_events()[0].materialization.metadata
        expected = _flights_by_day(departures, landed)
        equal = sum(landed[day] == expected[day] for day in landed)
        commits = metadata["run/delta/commits"].value
        self._console.print(
            f" {len(landed)} days, {commits} commit, {sum(landed.values()):,} rows; {equal} days as they are"
        )
        if equal != len(landed):
            raise DemoError(f"{len(landed) - equal} of {len(landed)} days have a different number of flights")
        return f"{equal} of {len(landed)} days as they are"

    def _compare(self) -> dict[str, Comparison]:
        from assets.flights import flights, flights_raw

        with busy(self._console, "Reading the topic with Kafka's own consumer"):
            records = read_topic(self._bootstrap_servers, TOPIC)
        with busy(self._console, "Reading the tables with Spark, comparing"):
            spark = build_session()
            try:
                return {
                    asset.key.to_user_string(): compare(records, spark, asset.metadata_by_key[asset.key]["dagster/uri"])
                    for asset, compare in ((flights_raw, compare_raw), (flights, compare_typed))
                }
            finally:
                spark.stop()

    def _verdict(self, produced: int, comparisons: Mapping[str, Comparison]) -> str:
        table = _table("table", *_right("records", "rows", "lost", "doubled", "foreign", "different"))
        for name, found in comparisons.items():
            counts = (found.records, found.rows, found.lost, found.doubled, found.foreign, found.different)
            table.add_row(name, *(f"{count:,}" for count in counts))
        self._console.print(table)
        typed = comparisons["flights"]
        lost, doubled = (sum(getattr(each, what) for each in comparisons.values()) for what in ("lost", "doubled"))
        summary = f"{typed.records} records, {typed.rows} rows, {lost} lost, {doubled} doubled"
        if typed.records != produced:
            raise DemoError(f"{summary}; {produced} records were produced")
        if not all(each.is_equal for each in comparisons.values()):
            foreign, different = (
                sum(getattr(each, what) for each in comparisons.values()) for what in ("foreign", "different")
            )
            raise DemoError(f"{summary}, {foreign} foreign, {different} different")
        return summary

    def _headline(self, text: str) -> None:
        self._console.print(f"\n[bold]{text}[/bold]")


def _flights_by_day(departures: Iterable[int], days: Iterable[str]) -> Counter[str]:
    """Number of flights of the dataset per day of departure, in UTC."""
    wanted = frozenset(days)
    every = (datetime.fromtimestamp(departure / 1000, tz=timezone.utc).date().isoformat() for departure in departures)
    return Counter(day for day in every if day in wanted)


def _step_table(result: ExecuteInProcessResult) -> Table:
    """Prints the metadata of each asset from a run."""
    table = _table(
        "asset",
        *_right("records\nread", "rows in\ntable", "lag", "time", "Spark's\nstart"),
        "offset reached in topic\npartition 0 1 2 3",
    )
    seconds = {event.step_key: event.step_success_data.duration_ms / 1000 for event in result.get_step_success_events()}
    # A run without new records only observes its asset.
    observed = [each.asset_observation_data.asset_observation for each in result.get_asset_observation_events()]
    landed = [each.materialization for each in result.get_asset_materialization_events()]
    for report in (*observed, *landed):
        values: dict[str, Any] = {key: value.value for key, value in report.metadata.items()}
        name = report.asset_key.to_user_string()
        if "kafka/records_read" not in values:
            table.add_row(name, "", "", "", "", "", _offsets(values["kafka/end_offsets"]))
            continue
        table.add_row(
            name,
            f"{values['kafka/records_read']:,}",
            f"{values['dagster/row_count']:,}",
            f"{values['kafka/lag_after']:,}",
            f"{seconds[name]:.1f} s",
            f"{values['seconds/spark_start']:.1f} s" if values["spark/started"] else "none",
            _offsets(values["kafka/checkpoint"]["state"]["position"]),
        )
    return table


def _offsets(position: Mapping[str, list[int | None]]) -> str:
    return " ".join(str(offset) for offsets in position.values() for offset in offsets)


def _table(*columns: Column | str) -> Table:
    return Table(*columns, box=None, padding=(0, 1), pad_edge=False, header_style="dim")


def _right(*names: str) -> list[Column]:
    return [Column(name, justify="right") for name in names]


@click.command()
@click.option(
    "--records", type=click.IntRange(min=2), help="Take this many flights only, from both halves of the year."
)
@click.option("--keep", is_flag=True, help="Keep the work directory: the tables, the broker's data and the log.")
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path),
    default=Path(".demo"),
    show_default=True,
    help="Work directory. It is emptied first, and removed at the end of a successful demo.",
)
def main(records: int | None, keep: bool, work_dir: Path) -> None:
    """Ingest real flights from a real Kafka broker into Delta Lake, three times, and compare both record by record."""
    # SIGTERM then ends the demo like Ctrl-C, and stops its processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    was_interrupted = _watch_signals()
    os.environ["DAGSTER_DISABLE_TELEMETRY"] = "1"
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", _QUICK_JVM)
    console = Console(highlight=False)
    folder = work_dir.absolute()
    log: Path | None = None
    begin = time.monotonic()
    try:
        with _work_folder(folder, keep=keep), _terminal(folder / _LOG_NAME) as terminal:
            log = folder / _LOG_NAME
            result, is_ok = _run(terminal, folder, records), True
    except BaseException as error:  # noqa: BLE001 - whatever it is, the last line has to say that the demo failed
        is_ok = False
        if was_interrupted():
            result = "interrupted"
        elif isinstance(error, KafkaFlipError | DemoError):
            _tell(console, str(error), log)
            result = type(error).__name__
        else:
            _tell(console, traceback.format_exc(), log)
            result = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
    console.print(f"\nThe demo took {time.monotonic() - begin:.0f} s.")
    click.echo(f"demo: {'OK' if is_ok else 'FAILED'} {result}")
    sys.exit(0 if is_ok else 1)


def _watch_signals() -> Callable[[], bool]:
    """Returns a function that tells whether SIGINT or SIGTERM arrived.

    The exception does not show this: Python, Dagster and Spark replace the handlers, and py4j converts a
    KeyboardInterrupt during a call to Spark into its own error.
    """
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer)

    def came() -> bool:
        try:
            return bool(os.read(reader, 1))
        except BlockingIOError:
            return False

    return came


def _run(terminal: Console, folder: Path, records: int | None) -> str:
    with contextlib.ExitStack() as started:
        started.callback(os.chdir, Path.cwd())
        os.chdir(folder)
        broker = LocalBroker(folder / "kafka")
        with busy(terminal, "Starting Kafka"):
            started.enter_context(broker)
        started.callback(_end_jvm)
        os.environ["KAFKA_BOOTSTRAP_SERVERS"] = broker.bootstrap_servers
        return Demo(terminal, broker.bootstrap_servers).run(records)


def _end_jvm() -> None:
    """Ends Spark's JVM.

    It ends by itself some time after this process, unless it was interrupted during its start: pyspark then loses track
    of it, and it would run forever.
    """
    listed = subprocess.run(["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    children = (line.split(maxsplit=2) for line in listed.splitlines())
    for pid in (int(pid) for pid, parent, *command in children if int(parent) == os.getpid() and _is_spark(command)):
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.kill(pid, number)
            deadline = time.monotonic() + _JVM_SECONDS
            while not (has_ended := _has_ended(pid)) and time.monotonic() < deadline:
                time.sleep(0.05)
            if has_ended:
                break


def _is_spark(command: list[str]) -> bool:
    # At first it is a shell script, which then becomes the JVM.
    return any(name in part for part in command for name in ("bin/spark-submit", "org.apache.spark.deploy.SparkSubmit"))


def _has_ended(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] == child
    except ChildProcessError:
        return True


@contextlib.contextmanager
def _work_folder(folder: Path, *, keep: bool) -> Generator[None]:
    """Creates or empties the folder, locks it against other demos, and removes it after a success."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in folder.iterdir()} - {_LOCK_NAME}
    except OSError as error:
        raise DemoError(f"{folder} can't be used as the work directory: {error}") from error
    if names and _LOG_NAME not in names:
        raise DemoError(f"{folder} is not empty, and its content is not from a demo: choose another work directory")
    lock = FileLock(folder / _LOCK_NAME)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise DemoError(
            f"another demo is running in {folder}: wait for it, or choose another work directory"
        ) from error
    with lock:
        for name in names:
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            else:
                (folder / name).unlink()
        yield
        if not keep:
            shutil.rmtree(folder)


@contextlib.contextmanager
def _terminal(log: Path) -> Generator[Console]:
    """Redirects the output of this process and its children to the log; yields a console for the terminal.

    Redirects file descriptors, because Spark's JVM inherits them.
    """
    with log.open("ab") as file, os.fdopen(os.dup(1), "w") as out, os.fdopen(os.dup(2), "w") as errors:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        try:
            yield Console(file=out, highlight=False)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(out.fileno(), 1)
            os.dup2(errors.fileno(), 2)


def _tell(console: Console, text: str, log: Path | None) -> None:
    console.print(f"\n{text.rstrip()}", style="red", markup=False, soft_wrap=True)
    if log is not None:
        console.print(f"The log of Dagster and Spark is {log}", soft_wrap=True)


if __name__ == "__main__":
    main()
