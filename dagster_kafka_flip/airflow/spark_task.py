"""SparkTask: a task that starts Spark if it needs it, shows its UI, and stops its jobs when it is killed.

Also what each operator reads of its context, and adds to the events of its assets.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs
from airflow.sdk import BaseHook, BaseOperator, BaseOperatorLink

from dagster_kafka_flip.airflow.lineage import Lineage
from dagster_kafka_flip.airflow.spark_settings import spark_settings_of
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.spark_settings import SparkSettings
from dagster_kafka_flip.runtime.spark_status import ui_address
from dagster_kafka_flip.settings.arguments import expect

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Asset, Context
    from airflow.sdk.types import TaskInstanceKey
    from pyspark.sql import SparkSession

OnIdle = Literal["succeed", "skip"]


@attrs.define()
class SparkUiLink(BaseOperatorLink):
    """Link to the UI of the task's Spark application, if it has one.

    The address is there as soon as Spark runs, and leads nowhere once a session of the task's own has ended.
    """

    @property
    def name(self) -> str:
        """The button's text."""
        return "Spark UI"

    @property
    def xcom_key(self) -> str:
        """The task's XCom with the address."""
        return "spark_ui"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address; empty if there is none."""
        del ti_key
        return getattr(operator, "spark_ui", None) or ""


class SparkTask(BaseOperator):
    """Base class of the operators of this package; they document its options."""

    operator_extra_links = (SparkUiLink(),)

    def __init__(
        self, *, spark: SparkSettings | str | None = None, on_idle: OnIdle = "succeed", **options: Any
    ) -> None:
        super().__init__(**options)
        self.spark = SparkSettings() if spark is None else spark
        self.on_idle = on_idle
        self.spark_ui: str | None = None
        self._works = False
        self._varies = False
        self._lineage = Lineage()
        expect("spark", self.spark, (SparkSettings, str), 'SparkSettings(master="local[4]"), or "spark_default"')
        if not self.spark:
            raise ConfigurationError('spark is empty; write the id of a connection, such as spark="spark_default"')
        if on_idle not in (choices := get_args(OnIdle)):
            raise ConfigurationError(f"on_idle: {on_idle!r} is not {' or '.join(choices)}")

    def _add_assets(self, *, inlets: Iterable[Asset], outlets: Iterable[Asset]) -> None:
        """Adds the task's own assets to the user's; one that the user names too, as for a mapped task, counts once."""
        self.inlets = [*self.inlets, *(asset for asset in inlets if asset not in self.inlets)]
        self.outlets = [*self.outlets, *(asset for asset in outlets if asset not in self.outlets)]

    def _assets_of(self, context: Context, own: Asset, is_others: Callable[[Asset], bool]) -> list[Asset]:
        """The run's own asset, if it is an outlet; gives up the outlets of other instances and runs.

        A mapped task has the assets of all its instances as outlets, and one with a template those of all its runs. Of
        each outlet Airflow adds an event, as if each had been written.
        """
        if self._varies or is_mapped(context):
            self.outlets = [asset for asset in self.outlets if asset == own or not is_others(asset)]
        return [own] if own in self.outlets else []

    @contextlib.contextmanager
    def _session(self, context: Context) -> Generator[Callable[[], SparkSession]]:
        """Provides a function that returns the Spark session, and starts it on the first call."""
        settings = self.spark
        if isinstance(settings, str):
            settings = spark_settings_of(BaseHook.get_connection(settings))
        with (
            self._interruptible(),
            settings.session(lambda session: self._publish_ui_address(context, session)) as spark,
        ):
            yield spark

    def _publish_ui_address(self, context: Context, session: SparkSession) -> None:
        """Publishes the address of Spark's UI while Spark runs."""
        self.spark_ui = ui_address(session)
        if self.spark_ui is not None:
            part(context, "ti").xcom_push(key=SparkUiLink().xcom_key, value=self.spark_ui)

    @contextlib.contextmanager
    def _interruptible(self) -> Generator[None]:
        """While the task works, `on_kill` and SIGINT interrupt the main thread, which stops Spark's jobs."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # Airflow's task process has the system's own handler, which ends the process at once. An interrupt that Python
        # would lose is repeated as this signal.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self._works = True
        try:
            yield
        finally:
            self._works = False
            signal.signal(signal.SIGINT, before)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """The topic and the table, for OpenLineage's provider if it is installed."""
        del task_instance
        return self._lineage.facets()

    def on_kill(self) -> None:
        """Ends the task, for a user, a timeout, or the worker's shutdown: Spark's jobs stop on the interrupt's way."""
        if self._works:
            raise KeyboardInterrupt("Airflow ended the task")


_BY_HAND = frozenset({"manual", "asset_materialization"})


def part(context: Context, name: Literal["dag_run", "outlet_events", "ti"]) -> Any:
    """Returns a part of the context that each task has; its type says that it may be missing."""
    return context.get(name)


def run_name(context: Context) -> str:
    """Returns a name of the task's run, for the commit's document."""
    task = part(context, "ti")
    return f"{task.dag_id}/{task.run_id}/{task.task_id}"


def is_by_hand(context: Context) -> bool:
    """Whether somebody started the run, also from an asset's page, or the task runs again: failed, or cleared."""
    return (part(context, "ti").try_number or 1) > 1 or part(context, "dag_run").run_type in _BY_HAND


def is_mapped(context: Context) -> bool:
    """Whether the task is one of several instances in its run, by `expand`."""
    return part(context, "ti").map_index not in (None, -1)


def add_to_events(context: Context, assets: Iterable[Asset], extra: Mapping[str, Any]) -> None:
    """Adds a run's results to the events of its assets."""
    for asset in assets:
        part(context, "outlet_events")[asset].extra.update(extra)
