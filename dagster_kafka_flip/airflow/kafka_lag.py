"""KafkaLagSensor: waits until a topic has records that a table does not have yet."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.configuration import conf

from dagster_kafka_flip import errors
from dagster_kafka_flip.airflow.asset_uris import table_asset
from dagster_kafka_flip.airflow.event_extra import LastKnown, last_known
from dagster_kafka_flip.airflow.given import check_absolute, check_conn_id, check_min_lag, is_template, rendered_target
from dagster_kafka_flip.airflow.kafka_flip_hook import KafkaFlipHook
from dagster_kafka_flip.airflow.new_offsets import LagWatch, NewOffsetsTrigger
from dagster_kafka_flip.errors import ConfigurationError, KafkaFlipError
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.source.kafka_source import KafkaSource, given_topics
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow.sdk import Context

    from dagster_kafka_flip.table.known_position import KnownPosition


class KafkaLagSensor(BaseSensorOperator):
    """Waits until a topic has at least `min_lag` offsets after the position in the table's newest event.

    It only asks brokers, and starts no Spark. Without an event of the table, the whole log counts. It also ends if a
    log was deleted, recreated or truncated, or if the events can't be read: the task that lands it finds out.

    Args:
        source: A KafkaSource, or topics. Topics are templated.
        table: The table, with its stream, as for the KafkaToDeltaOperator. A string is templated.
        kafka_conn_id: Id of a connection of type `kafka` or `kafka_flip`. Templated. Default: `kafka_default`.
        min_lag: How many offsets are worth a run. Default: 1.
        deferrable: Whether to wait in the triggerer, which needs no worker. Default: as Airflow's setting
            `[operators] default_deferrable`.
        **options: Airflow's options of every sensor, such as `poke_interval` and `timeout`.

    Raises:
        ConfigurationError: An option is invalid: the DAG can't be imported.
    """

    template_fields: Collection[str] = ("source", "table", "kafka_conn_id")
    ui_color = "#e3eef9"

    def __init__(
        self,
        *,
        source: KafkaSource | str | Sequence[str],
        table: DeltaTarget | str,
        kafka_conn_id: str = KafkaFlipHook.default_conn_name,
        min_lag: int = 1,
        deferrable: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.source = source
        self.table = table
        self.kafka_conn_id = kafka_conn_id
        self.min_lag = min_lag
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
        )
        check_conn_id(kafka_conn_id)
        check_min_lag(min_lag)
        expect("deferrable", self.deferrable, bool, "True")
        if self.deferrable and (self.never_fail or self.silent_fail):
            raise ConfigurationError(
                "never_fail and silent_fail: Airflow ignores them in the triggerer", "Set deferrable=False"
            )
        check_absolute(DeltaTarget.of(table))
        if not any(is_template(topic) for topic in given_topics(source)):
            KafkaSource.of(source)

    def poke(self, context: Context) -> PokeReturnValue:
        """Checks the lag once."""
        found = self._finding(self._known(context))
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def execute(self, context: Context) -> Any:
        """Checks the lag, and waits: here, or in the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        known = self._known(context)
        found = self._finding(known)
        return self._defer(known.position) if found is None else found

    def _finding(self, known: LastKnown) -> dict[str, Any] | None:
        if known.problem is not None:
            # The task that lands the topic finds out.
            found = {"lag": None, "problems": [known.problem]}
        else:
            state = None if known.position is None else known.position.state
            connection = KafkaFlipHook(self.kafka_conn_id).get_conn()
            with contextlib.closing(LagWatch(KafkaSource.of(self.source), connection, state)) as watch:
                found = watch.finding(self.min_lag)
        if found is not None:
            self._log_found(found)
        return found

    def _defer(self, position: KnownPosition | None) -> NoReturn:
        self.defer(
            trigger=NewOffsetsTrigger(
                source=self.source,
                state=None if position is None else position.state.to_json(),
                kafka_conn_id=self.kafka_conn_id,
                min_lag=self.min_lag,
                poll_interval=self.poke_interval,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what the trigger found.

        Raises:
            KafkaFlipError: The trigger could not look.
        """
        del context
        if "error" in event:
            raise getattr(errors, event["error"], KafkaFlipError)(event["message"])
        found = dict(event)
        self._log_found(found)
        return found

    def _known(self, context: Context) -> LastKnown:
        target = rendered_target(self, self.table, context)
        return last_known(table_asset(target), target)

    def _log_found(self, found: Mapping[str, Any]) -> None:
        lag = "an unknown number of" if found["lag"] is None else found["lag"]
        self.log.info("%s offsets to read from %s", lag, KafkaSource.of(self.source))
        for problem in found["problems"]:
            self.log.warning("%s", problem)
