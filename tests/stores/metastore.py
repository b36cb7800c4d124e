"""A Hive metastore as a server, from pyspark's own jars. It lets users do in a schema what its folder lets them do."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pyspark
import pytest

from dagster_kafka_flip.runtime.java import find_java
from tests.faults.three_brokers import free_ports
from tests.processes import QUICK_JVM_OPTIONS, Servers, kill_all, wait_until

_HOST = "127.0.0.1"
_PATIENCE_SECONDS = 240.0
_SECURITY = "org.apache.hadoop.hive.ql.security"


class Metastore(Servers):
    """The server, until the end of the block.

    Args:
        folder: For its settings, database and log.

    Attributes:
        uri: Its address, for `hive.metastore.uris`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        (self._port,) = free_ports(1)
        self.uri = f"thrift://{_HOST}:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None
        root = ET.Element("configuration")
        settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder / 'database'};create=true",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": (folder / "warehouse").as_uri(),
            "hive.metastore.pre.event.listeners": f"{_SECURITY}.authorization.AuthorizationPreEventListener",
            "hive.security.metastore.authorization.manager": (
                f"{_SECURITY}.authorization.StorageBasedAuthorizationProvider"
            ),
            "hive.security.metastore.authenticator.manager": f"{_SECURITY}.HadoopDefaultMetastoreAuthenticator",
            # Otherwise it needs a library that pyspark leaves out.
            "hive.async.log.enabled": "false",
        }
        for name, value in settings.items():
            setting = ET.SubElement(root, "property")
            ET.SubElement(setting, "name").text = name
            ET.SubElement(setting, "value").text = value
        ET.ElementTree(root).write(folder / "hive-site.xml")

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    def heal(self) -> None:
        if self._process is not None:
            return
        log = self._folder / "metastore.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    str(find_java()),
                    *QUICK_JVM_OPTIONS.split(),
                    "-Dhive.root.logger=console",
                    f"-Dderby.stream.error.file={self._folder / 'derby.log'}",
                    *("-cp", f"{self._folder}:{Path(pyspark.__file__).parent / 'jars'}/*"),
                    "org.apache.hadoop.hive.metastore.HiveMetaStore",
                    *("-p", str(self._port)),
                ],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

        def answers() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:
                pytest.fail(f"the metastore ended with {self._process.returncode}:\n{log.read_text()[-4000:]}")
            with socket.socket() as client:
                return client.connect_ex((_HOST, self._port)) == 0

        wait_until(answers, seconds=_PATIENCE_SECONDS)

    def end(self) -> None:
        if self._process is not None:
            kill_all(self._process)
            self._process = None
