# The public names, each once: for type checkers and editors, and for __init__.py, which imports them on first use.

from dagster_kafka_flip.airflow.asset_uris import table_asset as table_asset
from dagster_kafka_flip.airflow.asset_uris import topic_asset as topic_asset
from dagster_kafka_flip.airflow.delta_to_kafka import DeltaToKafkaOperator as DeltaToKafkaOperator
from dagster_kafka_flip.airflow.kafka_flip_hook import KafkaFlipHook as KafkaFlipHook
from dagster_kafka_flip.airflow.kafka_lag import KafkaLagSensor as KafkaLagSensor
from dagster_kafka_flip.airflow.kafka_to_delta import KafkaToDeltaOperator as KafkaToDeltaOperator
from dagster_kafka_flip.airflow.new_offsets import NewOffsetsTrigger as NewOffsetsTrigger
from dagster_kafka_flip.runtime.spark_settings import SparkSettings as SparkSettings

__all__: list[str]  # noqa: PYI035 - made of these names
