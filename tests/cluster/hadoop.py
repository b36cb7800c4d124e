"""Hadoop on this machine: HDFS with a name node and a data node, and YARN with a resource manager and a node manager.

The jars are those of Hadoop's client for mini clusters. YARN's processes are those of a real one; HDFS is in one.
"""

from __future__ import annotations

import os
import subprocess
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from dagster_kafka_flip.runtime.jars import retrieve
from dagster_kafka_flip.runtime.java import find_java
from tests.faults.three_brokers import free_ports
from tests.processes import Process, descendants, kill_all, wait_until

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

_JARS = (
    "org.apache.hadoop:hadoop-client-minicluster:3.5.0",
    "org.slf4j:slf4j-reload4j:1.7.36",
    "org.bouncycastle:bcprov-jdk18on:1.78.1",
    "org.bouncycastle:bcpkix-jdk18on:1.78.1",
    "javax.xml.bind:jaxb-api:2.3.1",
    "org.glassfish.jaxb:jaxb-runtime:2.3.1",
    "org.mockito:mockito-core:2.28.2",
    # Of its mini cluster, since 3.5.
    "org.junit.jupiter:junit-jupiter-api:5.13.4",
)
_HOST = "127.0.0.1"
_PATIENCE_SECONDS = 240.0
_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.lang=ALL-UNNAMED")
_LOGGING = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c: %m%n
"""
_HDFS = (
    "org.apache.hadoop.mapreduce.MiniHadoopClusterManager",
    *("-nomr", "-format", "-datanodes", "1", "-writeConfig", "hdfs.xml"),
    *("-D", f"dfs.namenode.rpc-bind-host={_HOST}"),
)
_PACKAGE = "org.apache.hadoop.yarn.server"


class HadoopCluster:
    """Hadoop until the end of the block.

    Args:
        folder: For its settings, data and logs.

    Attributes:
        url: The file system, as `hdfs://host:port`.
        conf_dir: What `HADOOP_CONF_DIR` is to be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.conf_dir = folder / "conf"
        self.conf_dir.mkdir(parents=True)
        (self.conf_dir / "log4j.properties").write_text(_LOGGING, encoding="ascii")
        self._class_path = os.pathsep.join(["conf", *map(str, retrieve(_JARS))])
        names: tuple[str, ...] = (
            "address",
            "scheduler.address",
            "resource-tracker.address",
            "admin.address",
            "webapp.address",
        )
        ports: dict[str, int] = dict(zip(names, free_ports(len(names)), strict=True))
        self._web = f"http://{_HOST}:{ports['webapp.address']}"
        self._write("yarn-site.xml", self._yarn(ports))
        self.url = ""
        self._stack = ExitStack()
        self._launched: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            starting.callback(self._stack.close)
            self._launch("hdfs", *_HDFS)
            self._launch("resources", f"{_PACKAGE}.resourcemanager.ResourceManager")
            self._node = self._launch("node", f"{_PACKAGE}.nodemanager.NodeManager")
            wait_until(self._is_ready, seconds=_PATIENCE_SECONDS)
            self._write("core-site.xml", {"fs.defaultFS": self.url})
            starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def executors(self) -> list[Process]:
        """All of Spark's executors that are running."""
        return [
            each
            for each in descendants(self._node.pid)
            if "YarnCoarseGrainedExecutorBackend" in each.command and "/bin/java" in each.command.split()[0]
        ]

    def _yarn(self, ports: dict[str, int]) -> dict[str, str]:
        resources = {f"yarn.resourcemanager.{name}": f"{_HOST}:{port}" for name, port in ports.items()}
        nodes = ("address", "localizer.address", "collector-service.address", "webapp.address")
        return {
            **resources,
            **{f"yarn.nodemanager.{name}": f"{_HOST}:0" for name in nodes},
            "yarn.resourcemanager.hostname": _HOST,
            "yarn.resourcemanager.scheduler.class": f"{_PACKAGE}.resourcemanager.scheduler.fifo.FifoScheduler",
            "yarn.nodemanager.hostname": _HOST,
            "yarn.nodemanager.local-dirs": str(self._folder / "local"),
            "yarn.nodemanager.log-dirs": str(self._folder / "logs"),
            "yarn.nodemanager.disk-health-checker.enable": "false",
            # What YARN may give away, and not what there is: two applications with two small executors each.
            "yarn.nodemanager.resource.memory-mb": "8192",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.env-whitelist": "JAVA_HOME,PATH",
        }

    def _write(self, name: str, settings: dict[str, str]) -> None:
        root = ET.Element("configuration")
        for key, value in settings.items():
            entry = ET.SubElement(root, "property")
            ET.SubElement(entry, "name").text = key
            ET.SubElement(entry, "value").text = value
        ET.ElementTree(root).write(self.conf_dir / name)

    def _launch(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = find_java().resolve()
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(java), *_OPTIONS, "-cp", self._class_path, *arguments],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "JAVA_HOME": str(java.parents[1])},
            )
        self._stack.callback(kill_all, process)
        self._launched[name] = process
        return process

    def _has_file_system(self) -> bool:
        try:
            entries = ET.parse(self._folder / "hdfs.xml").iter("property")
        except (FileNotFoundError, ET.ParseError):
            return False
        # The rest are settings for tests of Hadoop, of which Spark has not all classes.
        self.url = next(each.findtext("value", "") for each in entries if each.findtext("name") == "fs.defaultFS")
        return True

    def _is_ready(self) -> bool:
        for name, process in self._launched.items():
            if process.poll() is not None:
                pytest.fail(f"{name} ended:\n{(self._folder / f'{name}.log').read_text()[-4000:]}")
        if not self._has_file_system():
            return False
        try:
            with urllib.request.urlopen(f"{self._web}/ws/v1/cluster/nodes?states=RUNNING", timeout=5) as answer:
                return b'"RUNNING"' in answer.read()
        except OSError:
            return False
