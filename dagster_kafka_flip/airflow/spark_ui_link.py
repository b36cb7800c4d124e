"""SparkUiLink: the button "Spark UI" of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


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
