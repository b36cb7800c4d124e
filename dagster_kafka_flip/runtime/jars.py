"""Downloads jars and their dependencies from Maven repositories into a local cache.

Uses the Ivy jar in pyspark, so no other tool is needed. Locates pyspark without importing it. Spark's own setting
`spark.jars.packages` resolves jars at every start, and downloads what Spark already has; the development broker needs
jars without Spark.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from dagster_kafka_flip.errors import ConfigurationError, JarDownloadError, SparkSessionError
from dagster_kafka_flip.runtime.java import find_java, run_to_its_end

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Sequence

CACHE_VARIABLE = "DAGSTER_KAFKA_FLIP_CACHE"
"""Environment variable with the cache folder."""

_TIMEOUT_SECONDS = 1200.0
_SHOWN_LINES = 8
_NOISE = (".", "USE VERBOSE ")
# Ivy's messages for a missing module, with its group and version, and for an unreachable repository.
_NOT_FOUND = re.compile(r":: (?P<group>[^#\s]+)#(?P<artifact>[^;\s]+);(?P<version>[^:\s]+): not found")
_NO_ANSWER = "Server access error"
# File in a set's folder with the replaced versions.
_STAND_INS = "stand-ins.json"
_logger = logging.getLogger(__name__)


def default_cache_dir() -> Path:
    """Returns `$DAGSTER_KAFKA_FLIP_CACHE`, or `dagster-kafka-flip` in `$XDG_CACHE_HOME` (by default `~/.cache`)."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dagster-kafka-flip"


def retrieve(
    coordinates: Sequence[str],
    *,
    excludes: Sequence[str] = (),
    older: Sequence[str] = (),
    cache_dir: Path | None = None,
) -> list[Path]:
    """Downloads Maven artifacts and their runtime dependencies into the cache, and returns the paths of the jars.

    Resolves all versions together; the newest requested one wins. Returns a cached set at once, without network and
    without Java. A set is complete or absent, and concurrent processes do not disturb each other.

    Args:
        coordinates: The artifacts, each as `group:artifact:version`.
        excludes: Dependencies to exclude, each as `group:artifact`; the group may be `*`.
        older: Coordinates that may be replaced by an older version: if no repository has the version or one of its
            dependencies, the nearest older patch of the same minor version is used, with a warning at each call.
        cache_dir: The cache folder. Default: `default_cache_dir()`.
    """
    wanted = sorted({_split(text, "group:artifact:version") for text in coordinates})
    unwanted = sorted({_split(text, "group:artifact") for text in excludes})
    ivy = _ivy_jar()
    cache = (cache_dir or default_cache_dir()).expanduser().absolute()
    may_be_older = {_split(text, "group:artifact:version") for text in older}
    identity = json.dumps([wanted, unwanted, sorted(may_be_older), ivy.stem])
    folder = cache / "jars" / hashlib.sha256(identity.encode()).hexdigest()[:16]
    if not folder.is_dir():
        with writing(_names(wanted), cache, folder) as work:
            if work is not None:
                _logger.info("Downloading %s into %s, once", _names(wanted), folder)
                _nearest(wanted, unwanted, older=may_be_older, ivy=ivy, cache=cache, work=work).replace(folder)
    if (folder / _STAND_INS).exists():
        for asked, got in json.loads((folder / _STAND_INS).read_text("utf-8")).items():
            _logger.warning(
                "No repository has %s with all dependencies; using %s instead. Install the Python package (pyspark or "
                "delta-spark) in version %s, or delete %s to search again",
                asked,
                got,
                got.rpartition(":")[2],
                folder,
            )
    return sorted(folder.glob("*.jar"))


def retrieve_unpacked(coordinate: str, *, cache_dir: Path | None = None) -> Path:
    """Downloads a tar.gz archive without dependencies, and returns the folder with its content.

    As `retrieve`: what is in the cache is returned at once, and it is complete or absent.
    """
    wanted = _split(coordinate, "group:artifact:version:classifier")
    cache = (cache_dir or default_cache_dir()).expanduser().absolute()
    folder = cache / "archives" / "-".join(wanted[1:])
    if folder.is_dir():
        return folder
    ivy = _ivy_jar()
    with writing(coordinate, cache, folder) as work:
        if work is None:
            return folder
        _logger.info("Downloading %s into %s, once", coordinate, folder)
        found = _run_ivy([wanted], _archive_module(wanted), "tar.gz", ivy=ivy, cache=cache, work=work)
        content = work / "content"
        try:
            with tarfile.open(next(found.glob("*.tar.gz"))) as archive:
                # Python 3.10 and 3.11 have it from a patch on.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(content)  # noqa: S202 - filtered
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise JarDownloadError(
                f"{coordinate} could not be unpacked: {error}",
                f"Delete {cache / 'ivy' / 'cache' / wanted[0]} and try again",
            ) from error
        content.replace(folder)
    return folder


def hadoop_version() -> str:
    """Hadoop's version in the installed pyspark, for matching artifacts."""
    own = "hadoop-client-api-"
    return next(
        (jar.removeprefix(own).removesuffix(".jar") for jar in jars_of_pyspark() if jar.startswith(own)), "VERSION"
    )


def jars_of_pyspark() -> list[str]:
    """The names of the installed pyspark's jars, sorted."""
    return sorted(jar.name for jar in (_pyspark() / "jars").glob("*.jar"))


def _pyspark() -> Path:
    spec = importlib.util.find_spec("pyspark")
    return Path(next(iter((spec.submodule_search_locations or ()) if spec else ()), "."))


def spark_home() -> Path:
    """The Spark home that pyspark uses."""
    home = os.environ.get("SPARK_HOME")
    return Path(home) if home else _pyspark()


def spark_submit() -> Path:
    """The program that starts a Spark."""
    submit = spark_home() / "bin" / "spark-submit"
    if not submit.is_file():
        msg = f"There is no {submit}: unset SPARK_HOME to use pyspark's own Spark, or set it to a folder of Spark."
        raise SparkSessionError(msg)
    return submit


def _split(text: str, form: str) -> tuple[str, ...]:
    parts = tuple(text.split(":"))
    if len(parts) != form.count(":") + 1 or not all(part and part == part.strip() for part in parts):
        raise ConfigurationError(f"Invalid Maven coordinate {text!r}: write {form}")
    return parts


def _ivy_jar() -> Path:
    ivy = [jar for jar in jars_of_pyspark() if jar.startswith("ivy-")]
    if ivy:
        return _pyspark() / "jars" / ivy[-1]
    raise JarDownloadError(
        "The installed pyspark has no Ivy jar, so jars can't be downloaded: install the full pyspark package (pip "
        "install 'dagster-kafka-flip' does), not one without jars"
    )


@contextlib.contextmanager
def writing(names: str, cache: Path, path: Path) -> Generator[Path | None]:
    """A temporary folder next to what is to be made; None if another process has made it meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # One lock for the whole cache: Ivy's own cache, which all sets share, does not support two writers.
        with FileLock(cache / "jars.lock", timeout=_TIMEOUT_SECONDS):
            if path.exists():
                yield None
                return
            for left_over in path.parent.glob("partial-*"):
                shutil.rmtree(left_over, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=path.parent, prefix="partial-") as work:
                yield Path(work)
    except Timeout as error:
        raise JarDownloadError(
            f"{names} could not be written to the cache {cache}: another process has been writing into it for more "
            f"than {_TIMEOUT_SECONDS:.0f} s",
            "Check whether it is stuck, then try again",
        ) from error
    except OSError as error:
        raise JarDownloadError(
            f"{names} could not be written to the cache {cache}: {error}",
            f"Make the folder writable, make room in it, or set another folder in {CACHE_VARIABLE}",
        ) from error


def _nearest(
    wanted: Sequence[tuple[str, ...]],
    unwanted: Sequence[tuple[str, ...]],
    *,
    older: Collection[tuple[str, ...]],
    ivy: Path,
    cache: Path,
    work: Path,
) -> Path:
    """Downloads the artifacts, or older patches, and returns the folder with the jars."""
    tried = {parts: parts for parts in wanted}
    while True:
        try:
            modules = list(tried.values())
            jars = _run_ivy(modules, _module(modules, unwanted), "jar", ivy=ivy, cache=cache, work=work)
        except _NotFoundError as error:
            lower = {
                asked: patch
                for asked, last in tried.items()
                # A missing dependency is recognized by its group and version.
                if asked in older and (last[0], last[2]) in error.missing and (patch := _older_patch(last))
            }
            if not lower:
                raise
            _logger.info("No repository has %s; trying %s", error.summary, _names(lower.values()))
            tried.update(lower)
            continue
        stand_ins = {":".join(asked): ":".join(got) for asked, got in tried.items() if asked != got}
        if stand_ins:
            (jars / _STAND_INS).write_text(json.dumps(stand_ins), "utf-8")
        return jars


def _older_patch(parts: tuple[str, ...]) -> tuple[str, ...] | None:
    group, artifact, version = parts
    minor, _, patch = version.rpartition(".")
    return (group, artifact, f"{minor}.{int(patch) - 1}") if patch.isdigit() and int(patch) else None


class _NotFoundError(JarDownloadError):
    """The repositories answer, but do not have the modules.

    Args:
        message: Message if there is no older version.
        missing: Group and version of each missing module.
        summary: The modules, for a log.
    """

    def __init__(self, *parts: str, missing: Collection[tuple[str, str]], summary: str) -> None:
        super().__init__(*parts)
        self.missing = missing
        self.summary = summary


def _names(coordinates: Iterable[tuple[str, ...]]) -> str:
    return ", ".join(":".join(parts) for parts in coordinates)


def _run_ivy(
    wanted: Sequence[tuple[str, ...]], description: bytes, kind: str, *, ivy: Path, cache: Path, work: Path
) -> Path:
    """Downloads what a module depends on into `work` and returns its folder with the files."""
    names = _names(wanted)
    java = find_java()
    module = work / "ivy.xml"
    module.write_bytes(description)
    jars = work / "jars"
    shutil.rmtree(jars, ignore_errors=True)
    jars.mkdir()
    command = [
        str(java),
        # By default, Ivy waits forever for a silent server.
        "-Dsun.net.client.defaultConnectTimeout=30000",
        "-Dsun.net.client.defaultReadTimeout=120000",
        # Ivy searches here first; with the user's own folder, results could differ between machines.
        f"-Divy.default.ivy.user.dir={cache / 'ivy'}",
        "-jar",
        str(ivy),
        "-cache",
        str(cache / "ivy" / "cache"),
        "-ivy",
        str(module),
        "-confs",
        "default",
        "-retrieve",
        f"{jars}/[organisation]_[artifact]-[revision](-[classifier]).[ext]",
    ]
    try:
        finished = run_to_its_end(command, _TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise JarDownloadError(
            f"{names} were not downloaded within {_TIMEOUT_SECONDS:.0f} s. {_next_step()}"
        ) from error

    missing = [
        ":".join(parts)
        for parts in wanted
        if finished.returncode == 0 and not any(jars.glob(f"{parts[0]}_{parts[1]}-*.{kind}"))
    ]
    if finished.returncode != 0 or missing:
        what = f"{', '.join(missing)} has no {kind}" if missing else f"Ivy ended with {finished.returncode}"
        absent = list(_NOT_FOUND.finditer(finished.stdout))
        if absent and _NO_ANSWER not in finished.stdout:
            summary = _names(found.groups() for found in absent)
            raise _NotFoundError(
                f"{names} could not be downloaded, because the repositories don't have all of them: {summary}",
                "Correct the coordinates. For pyspark and delta-spark, install versions with published jars, or list "
                "local jars in spark.jars",
                missing={(found["group"], found["version"]) for found in absent},
                summary=summary,
            )
        if os.strerror(errno.ENOSPC) in finished.stdout:
            # Ivy's own last lines are a stack trace.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(cache))
        raise JarDownloadError(
            f"{names} could not be downloaded: {what}. Last output of Ivy:\n{_last_words(finished.stdout)}\n"
            f"{_next_step()}"
        )
    return jars


def _module(wanted: Sequence[tuple[str, ...]], unwanted: Sequence[tuple[str, ...]]) -> bytes:
    """Writes a module that depends on all artifacts, because Ivy's command line only accepts one."""
    root, dependencies = _empty_module()
    for group, artifact, version in wanted:
        # For Maven artifacts, `default` is the artifact with its compile and runtime dependencies.
        ET.SubElement(dependencies, "dependency", org=group, name=artifact, rev=version, conf="default->default")
    for group, artifact in unwanted:
        ET.SubElement(dependencies, "exclude", org=group, module=artifact)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def _archive_module(wanted: tuple[str, ...]) -> bytes:
    """Writes a module that depends on one archive, and not on what that depends on."""
    group, artifact, version, classifier = wanted
    root, dependencies = _empty_module()
    root.set("xmlns:m", "http://ant.apache.org/ivy/maven")
    dependency = ET.SubElement(dependencies, "dependency", org=group, name=artifact, rev=version, transitive="false")
    dependency.set("conf", "default->master")
    archive = ET.SubElement(dependency, "artifact", name=artifact, type="tar.gz", ext="tar.gz")
    archive.set("m:classifier", classifier)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def _empty_module() -> tuple[ET.Element, ET.Element]:
    root = ET.Element("ivy-module", version="2.0")
    ET.SubElement(root, "info", organisation="dagster-kafka-flip", module="jars", revision="1")
    ET.SubElement(ET.SubElement(root, "configurations"), "conf", name="default")
    return root, ET.SubElement(root, "dependencies")


def _last_words(output: str) -> str:
    lines: list[str] = []
    for line in output.splitlines():
        text = line.strip().strip(":").strip()
        # Drops Ivy's frames, progress dots and advice on its own options.
        if any(character.isalnum() for character in text) and not text.startswith(_NOISE) and text not in lines:
            lines.append(text)
    return "\n".join(f"  {line}" for line in lines[-_SHOWN_LINES:])


def _next_step() -> str:
    return (
        "Check the coordinates and the network, then try again; downloaded files are kept. Behind a proxy, set "
        'JAVA_TOOL_OPTIONS="-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT". Without a network, copy the cache folder '
        f"of another machine and set its path in {CACHE_VARIABLE}."
    )
