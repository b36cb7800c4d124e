"""examples/kubernetes without a cluster: its files are valid, and what Dagster and Spark make of them is, too."""

from __future__ import annotations

import json
import runpy
from typing import Any

import kubernetes.client
import kubernetes_validate
import pytest
import yaml
from dagster._config import process_config, resolve_to_config_type
from dagster_k8s import K8sRunLauncher
from dagster_k8s.job import DagsterK8sJobConfig, UserDefinedDagsterK8sConfig, construct_dagster_k8s_job

from tests.document_tests import ROOT

_FOLDER = ROOT / "examples" / "kubernetes"
# The oldest release that its makers still mend, and the newest one whose schemas are there.
_RELEASES = ("1.33", kubernetes_validate.latest_version())
_SNAKE = {"podSpecConfig": "pod_spec_config", "containerConfig": "container_config"}


def _validate(manifest: dict[str, Any]) -> None:
    for release in _RELEASES:
        kubernetes_validate.validate(manifest, release, strict=True)


def _values() -> dict[str, Any]:
    return yaml.safe_load((_FOLDER / "values.yaml").read_text(encoding="utf-8"))


def _run_config() -> dict[str, Any]:
    """What the chart puts into dagster.yaml: the same, with other names on its first level."""
    given = _values()["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]
    return {_SNAKE[name]: value for name, value in given.items()}


def _manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((_FOLDER / "rbac.yaml").read_text(encoding="utf-8")))


def test_the_manifests_are_valid_and_fit_together():
    manifests = _manifests()
    for manifest in manifests:
        _validate(manifest)
    named = {(each["kind"], each["metadata"]["name"]) for each in manifests}
    binding = next(each for each in manifests if each["kind"] == "RoleBinding")
    assert ("Role", binding["roleRef"]["name"]) in named
    assert all((each["kind"], each["name"]) in named for each in binding["subjects"])
    assert _run_config()["pod_spec_config"]["serviceAccountName"] == binding["subjects"][0]["name"]
    with pytest.raises(kubernetes_validate.ValidationError):
        _validate({**binding, "subject": []})


def test_the_job_that_dagster_makes_of_a_run_is_valid_and_has_what_the_driver_needs():
    settings = {
        "service_account_name": "dagster",
        "instance_config_map": "dagster-instance",
        "dagster_home": "/opt/dagster/dagster_home",
        "run_k8s_config": _run_config(),
    }
    checked = process_config(resolve_to_config_type(K8sRunLauncher.config_type()), settings)
    assert checked.success, checked.errors
    job = construct_dagster_k8s_job(
        DagsterK8sJobConfig(job_image="registry.example.com/flights:1", dagster_home="/opt/dagster/dagster_home"),
        args=["dagster", "api", "execute_run"],
        job_name="dagster-run-1",
        user_defined_k8s_config=UserDefinedDagsterK8sConfig.from_dict(_run_config()),
        component="run_worker",
    )
    made = json.loads(json.dumps(kubernetes.client.ApiClient().sanitize_for_serialization(job)))
    _validate({"apiVersion": "batch/v1", "kind": "Job", **made})
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    defs = runpy.run_path(str(_FOLDER / "definitions.py"))
    config = defs["spark"].config
    environment = {each["name"]: each.get("valueFrom") for each in container["env"]}
    reported = {name: environment[config[name]] for name in ("spark.driver.host", "spark.kubernetes.driver.pod.name")}
    assert {name: each["fieldRef"]["fieldPath"] for name, each in reported.items()} == {
        "spark.driver.host": "status.podIP",
        "spark.kubernetes.driver.pod.name": "metadata.name",
    }
    ports = {str(each["containerPort"]) for each in container["ports"]}
    assert ports == {config["spark.driver.port"], config["spark.driver.blockManager.port"]}
    assert pod["serviceAccountName"] == "dagster-runs"


def test_a_run_whose_pod_is_gone_does_not_keep_its_tables_slot():
    # The chart's own value, 0, never frees it.
    assert _values()["dagsterDaemon"]["runMonitoring"]["freeSlotsAfterRunEndSeconds"] > 0
