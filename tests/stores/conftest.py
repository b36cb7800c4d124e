"""One S3 server, and two processes whose Sparks write to it."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.network import Network
from tests.faults.ordered_process import PATIENCE_SECONDS, OrderedProcess
from tests.stores.jars import s3_jars
from tests.stores.metastore import Metastore
from tests.stores.s3 import ACCESS_KEY, REGION, SECRET_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUCKET = "lake"
FAR = "far"
"""A bucket whose requests go through a network of its own."""


class S3(OrderedProcess):
    """`tests.stores.s3`, with two empty buckets.

    Args:
        folder: For its log.

    Attributes:
        endpoint: Its address.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "s3.log", "tests.stores.s3")
        reported = self._answers.get(timeout=PATIENCE_SECONDS)
        assert reported is not None, self._log.read_text(errors="replace")
        self.endpoint: str = reported["endpoint"]
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )
        for bucket in (BUCKET, FAR):
            client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})

    @property
    def requests(self) -> int:
        """How many it has had."""
        return self._told({})["requests"]

    def be_busy(self, is_busy: bool) -> None:
        """Has it answer each request, from now on, that it has too much to do; or as before."""
        self._told({"is_busy": is_busy})

    def _told(self, order: dict[str, Any]) -> dict[str, Any]:
        self._write(order)
        reported = self._answers.get(timeout=PATIENCE_SECONDS)
        assert reported is not None, self._log.read_text(errors="replace")
        return reported

    def end(self) -> None:
        """Ends it in any case."""
        _end(self)


def _end(process: OrderedProcess) -> None:
    started = process.process
    if started.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            started.stdin.close()
    started.wait(PATIENCE_SECONDS)


class Lander(OrderedProcess):
    """`tests.stores.lander` in a process of its own.

    Args:
        folder: For its logs; its Dagster home is there too.
        bootstrap_servers: The broker.
        settings: Of its Spark.
        user: Its user's name for Hadoop and Hive. Default: that of the process.
    """

    def __init__(self, folder: Path, bootstrap_servers: str, settings: dict[str, str], user: str | None = None) -> None:
        folder.mkdir()
        self.folder = folder
        self.command = ""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DAGSTER_HOME", str(folder))
            patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            if user is not None:
                patch.setenv("HADOOP_USER_NAME", user)
            patch.setenv("JAVA_TOOL_OPTIONS", f"-Dderby.stream.error.file={folder / 'derby.log'}")
            # Behind Spark's own jars, so that the archive of its classes fits.
            patch.setenv("SPARK_DIST_CLASSPATH", os.pathsep.join(s3_jars()))
            super().__init__(
                folder / "output.log", "tests.stores.lander", bootstrap_servers, str(folder), json.dumps(settings)
            )

    def wait_until_ready(self) -> None:
        """Waits for its Spark."""
        reported = self.answer()
        assert reported is not None, self._log.read_text(errors="replace")[-4000:]
        self.command = reported["command"]

    def order(self, do: str, **order: Any) -> None:
        """Tells it what to do."""
        self._write({"do": do, **order})

    def answer(self) -> dict[str, Any] | None:
        """What that came to; None if the process ended and did not say."""
        return self._answers.get(timeout=PATIENCE_SECONDS)

    def do(self, do: str, **order: Any) -> dict[str, Any]:
        """Tells it what to do, and waits."""
        self.order(do, **order)
        reported = self.answer()
        assert reported is not None, self._log.read_text(errors="replace")[-4000:]
        return reported

    def end(self) -> None:
        """Ends it in any case."""
        _end(self)
        # Its JVM has inherited standard output.
        self._reader.join(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """The server; tests/landed.py reads from it too."""
    with S3(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        patch.setenv("AWS_ALLOW_HTTP", "true")
        patch.setenv("AWS_REGION", REGION)
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        yield server


@pytest.fixture(scope="module")
def far(s3: S3) -> Iterator[Network]:
    """What is between the landers and the server where the bucket is FAR."""
    with Network(int(s3.endpoint.rpartition(":")[2])) as network:
        yield network


@pytest.fixture(scope="module")
def landers(
    s3: S3, far: Network, broker: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Lander, Lander]]:
    """Two of them, each with a JVM; the first has a Hive metastore in a folder."""
    folder = tmp_path_factory.mktemp("landers")
    settings = {
        "spark.hadoop.fs.s3a.endpoint": s3.endpoint,
        # Buckets of which something is set wrong.
        "spark.hadoop.fs.s3a.bucket.wrong-secret.secret.key": "wrong",
        "spark.hadoop.fs.s3a.bucket.wrong-key.access.key": "wrong",
        "spark.hadoop.fs.s3a.bucket.wrong-region.endpoint.region": "us-west-2",
        "spark.hadoop.fs.s3a.bucket.elsewhere.endpoint": "http://127.0.0.1:1",
        f"spark.hadoop.fs.s3a.bucket.{FAR}.endpoint": f"http://127.0.0.1:{far.port}",
        **{
            f"spark.hadoop.fs.s3a.bucket.{bucket}.{limit}": "1"
            for bucket in ("elsewhere", FAR)
            for limit in ("attempts.maximum", "retry.limit")
        },
    }
    catalog = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder / 'metastore'};create=true",
    }
    with (
        Lander(folder / "first", broker, settings | catalog) as first,
        Lander(folder / "second", broker, settings) as second,
    ):
        first.wait_until_ready()
        second.wait_until_ready()
        yield first, second


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastore]:
    """A Hive metastore that several processes use."""
    with Metastore(tmp_path_factory.mktemp("hive") / "metastore") as server:
        yield server


@pytest.fixture(scope="module")
def owner_and_guest(
    metastore: Metastore, broker: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Lander, Lander]]:
    """Two that share the metastore: one as the user of this process, who owns all folders, and one as another user."""
    folder = tmp_path_factory.mktemp("shared")
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.hive.metastore.uris": metastore.uri,
        "spark.hadoop.hive.metastore.connect.retries": "1",
        "spark.hadoop.hive.metastore.failure.retries": "1",
    }
    with (
        Lander(folder / "owner", broker, settings) as owner,
        Lander(folder / "guest", broker, settings, user="guest") as guest,
    ):
        owner.wait_until_ready()
        guest.wait_until_ready()
        yield owner, guest


@pytest.fixture
def first(landers: tuple[Lander, Lander]) -> Lander:
    """One of the two, where one is enough."""
    return landers[0]
