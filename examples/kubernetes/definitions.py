"""A stream whose run is a pod of Kubernetes, in which Spark's driver starts executors as pods of their own."""

from __future__ import annotations

from dagster import Definitions, EnvVar, in_process_executor

from dagster_kafka_flip import KafkaResource, KafkaSource, SparkResource, build_kafka_delta_asset

flights = build_kafka_delta_asset(
    name="flights",
    source=KafkaSource.builder().set_topics("flights").build(),
    table="abfss://lake@account.dfs.core.windows.net/flights",
)

spark = SparkResource(
    master="k8s://https://kubernetes.default.svc",
    packages=["org.apache.hadoop:hadoop-azure:3.5.0"],
    config={
        "spark.submit.deployMode": "client",
        "spark.kubernetes.namespace": "dagster",
        # The same Spark as the driver's pyspark. The driver sends the jars; no Python is needed.
        "spark.kubernetes.container.image": "apache/spark:4.2.0",
        # Of the run's pod, by its environment (values.yaml): where executors find the driver, and whose end is theirs.
        "spark.driver.host": EnvVar("POD_IP"),
        "spark.driver.bindAddress": EnvVar("POD_IP"),
        "spark.kubernetes.driver.pod.name": EnvVar("POD_NAME"),
        "spark.driver.port": "7078",
        "spark.driver.blockManager.port": "7079",
        "spark.driver.memory": "2g",
        # Executors ask Kubernetes for nothing, so theirs has no rights (rbac.yaml).
        "spark.kubernetes.authenticate.executor.serviceAccountName": "spark-executors",
        "spark.executor.instances": "2",
        "spark.executor.cores": "4",
        "spark.executor.memory": "6g",
        # How long a run waits for the first of its executors before it goes on without.
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.hadoop.fs.azure.account.key.account.dfs.core.windows.net": EnvVar("LAKE_KEY"),
    },
)

defs = Definitions(
    assets=[flights],
    # One driver, and one set of executors, for all assets of a run.
    executor=in_process_executor,
    resources={"kafka": KafkaResource(bootstrap_servers=EnvVar("KAFKA_BOOTSTRAP_SERVERS")), "spark": spark},
)
