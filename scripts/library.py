"""Builds the Java library that the package carries: `make library`.

The jar is committed, so that installing the package needs no JDK. It is the same for the same source: entries are
sorted, have no times, and are not compressed, since versions of zlib differ.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from pathlib import Path

import click

from dagster_kafka_flip.runtime.jars import retrieve, spark_home
from dagster_kafka_flip.runtime.java import find_java
from dagster_kafka_flip.runtime.spark_jars import JAR, VERSION_ENTRY

_ROOT = Path(__file__).resolve().parents[1]
_SOURCE = _ROOT / "java"

# The oldest Java of all supported Sparks. Some of Spark's jars name others that it doesn't have.
_JAVAC = ("--release", "17", "-Xlint:all,-path", "-Werror", "-proc:none", "-g:source,lines")

_FORMATTER = "com.google.googlejavaformat:google-java-format:1.28.0"
# It uses parts of the compiler that are not public.
_COMPILERS = ("api", "code", "file", "parser", "tree", "util")
_FORMATTERS_MAIN = "com.google.googlejavaformat.java.Main"


def sources() -> list[Path]:
    """The library's source files."""
    return sorted(_SOURCE.rglob("*.java"))


def version() -> str:
    """The library's version: a digest of its source."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(f"{path.relative_to(_SOURCE).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def build(target: Path) -> None:
    """Compiles the library against pyspark's jars, and writes its jar."""
    with tempfile.TemporaryDirectory() as folder:
        _run(_jdk("javac"), *_JAVAC, "-cp", f"{spark_home()}/jars/*", "-d", folder, *sources())
        entries = {path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*.class")}
    entries[VERSION_ENTRY] = version().encode()
    # Not in place: a Java that runs may read the jar.
    part = target.with_suffix(".part")
    with zipfile.ZipFile(part, "w") as jar:
        for name, content in sorted(entries.items()):
            # The least time that an archive can have.
            jar.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    part.replace(target)


def format_sources(*, check: bool) -> None:
    """Formats the source as Google's style has it, or fails if it isn't."""
    exports = [f"--add-exports=jdk.compiler/com.sun.tools.javac.{part}=ALL-UNNAMED" for part in _COMPILERS]
    jars = ":".join(map(str, retrieve([_FORMATTER])))
    how = ["--dry-run", "--set-exit-if-changed"] if check else ["--replace"]
    _run(_jdk("java"), *exports, "-cp", jars, _FORMATTERS_MAIN, *how, *sources())


def _jdk(program: str) -> Path:
    """A program of the JDK that has the Java that Spark uses."""
    found = find_java().resolve().with_name(program)
    if not found.exists():
        msg = f"there is no {found}: install a JDK (Debian and Ubuntu: apt-get install openjdk-17-jdk-headless)"
        raise click.ClickException(msg)
    return found


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, check=False)
    if done.returncode:
        msg = f"{Path(command[0]).name} ended with {done.returncode}"
        raise click.ClickException(msg)


@click.command()
@click.option("--format", "how", flag_value="format", help="Format the source, and build nothing.")
@click.option("--check", "how", flag_value="check", help="Check that it is formatted, and build nothing.")
def main(how: str | None) -> None:
    """Builds the library into the package."""
    if how is None:
        build(JAR)
    else:
        format_sources(check=how == "check")


if __name__ == "__main__":
    main()
