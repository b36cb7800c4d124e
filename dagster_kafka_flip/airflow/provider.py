"""Describes this package to Airflow's providers manager: its connection type, operators and links."""

from __future__ import annotations

from typing import Any

_HERE = "dagster_kafka_flip.airflow"


def provider_info() -> dict[str, Any]:
    """The entry point `apache_airflow_provider`. It imports neither Airflow nor pyspark."""
    integration = "Kafka and Delta Lake"
    return {
        "package-name": "dagster-kafka-flip",
        "name": "dagster-kafka-flip",
        "description": "Lands Kafka topics in Delta Lake tables, and publishes tables to topics, exactly once.",
        "integrations": [
            {
                "integration-name": integration,
                "external-doc-url": "https://github.com/dagster-kafka-flip/dagster-kafka-flip/tree/main/docs",
                "tags": ["apache"],
            }
        ],
        "operators": [
            {"integration-name": integration, "python-modules": [f"{_HERE}.kafka_to_delta", f"{_HERE}.delta_to_kafka"]}
        ],
        "sensors": [{"integration-name": integration, "python-modules": [f"{_HERE}.kafka_lag"]}],
        "triggers": [{"integration-name": integration, "python-modules": [f"{_HERE}.new_offsets"]}],
        "hooks": [{"integration-name": integration, "python-modules": [f"{_HERE}.kafka_flip_hook"]}],
        "extra-links": [f"{_HERE}.spark_task.SparkUiLink"],
        "connection-types": [
            {
                "connection-type": "kafka_flip",
                "hook-class-name": f"{_HERE}.kafka_flip_hook.KafkaFlipHook",
                "hook-name": "Kafka (dagster-kafka-flip)",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "port", "extra"],
                    "relabeling": {"host": "Bootstrap servers", "login": "SASL username", "password": "SASL password"},
                    "placeholders": {"host": "broker-1:9092,broker-2:9092"},
                },
                "conn-fields": {
                    "security_protocol": _choice(
                        "Security protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], "Default: PLAINTEXT."
                    ),
                    "sasl_mechanism": _choice(
                        "SASL mechanism",
                        ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"],
                        "Required with a SASL protocol.",
                    ),
                    "ssl_ca_location": _text(
                        "CA certificates", "PEM file. Default: the CAs of the system and the JVM."
                    ),
                    "ssl_certificate_location": _text("Client certificate", "PEM file, for mutual TLS."),
                    "ssl_key_location": _text("Client key", "PEM file, for mutual TLS."),
                    "ssl_key_password": _text("Client key's password", "", secret=True),
                    "properties": _text(
                        "Properties", "JSON object: settings of both clients, by Java's names", secret=True
                    ),
                    "librdkafka_properties": _text(
                        "librdkafka's properties", "JSON object: settings of the client that plans.", secret=True
                    ),
                    "java_properties": _text(
                        "Java's properties", "JSON object: settings of Spark's client.", secret=True
                    ),
                },
            }
        ],
    }


def _text(label: str, description: str, *, secret: bool = False) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": ["string", "null"]}
    if secret:
        schema["format"] = "password"
    return {"label": label, "description": description, "schema": schema}


def _choice(label: str, choices: list[str], description: str) -> dict[str, Any]:
    return {
        "label": label,
        "description": description,
        "schema": {"type": ["string", "null"], "enum": [*choices, None]},
    }
