"""Installs the wheel into an empty environment, unpinned, and follows docs/getting-started.md: `make test-install`.

Packages and jars come as pip and the repositories have them today. Kafka and the web server take the ports that the
page names, so these have to be free.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import click
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tests.document_tests import ROOT, blocks, commands

_PAGE = ROOT / "docs" / "getting-started.md"
_FILE = "getting started, produce.py"
_PIP = "pip install dagster-kafka-flip "
_WEB_SERVER = "dg dev"
_INTO_THE_PROJECT = "cd shop"
_PATIENCE_SECONDS = 120
_SAID = ("only showing top 5 rows",)


@click.command()
@click.option("--python", default=sys.executable, help="Makes the environment.", show_default=True)
def main(python: str) -> None:
    """Installs the wheel and follows the page."""
    with tempfile.TemporaryDirectory(prefix="dagster-kafka-flip-install-") as temporary:
        folder = Path(temporary)
        _run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)], folder)
        (wheel,) = folder.glob("*.whl")
        _run([python, "-m", "venv", "venv"], folder)
        project = folder / "shop"
        (written,) = (block.code for block in blocks(_PAGE) if block.marker == _FILE)
        (folder / "produce.py").write_text(written, encoding="utf-8")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}",
            # Its own jars and broker, so that nothing of an earlier installation helps.
            "DAGSTER_KAFKA_FLIP_CACHE": str(folder / "cache"),
        }
        steps = [line.replace(_PIP, f"pip install {wheel} ") for line in commands(_PAGE)]
        steps.insert(steps.index(_INTO_THE_PROJECT) + 1, "mv ../produce.py .")
        shell = "\n".join(["set -eux", *(line for line in steps if line != _WEB_SERVER), "pip list"])
        try:
            started = time.monotonic()
            output = _run(["bash", "-c", shell], folder, environment)
            missing = [words for words in _SAID if words not in output]
            if missing:
                raise click.ClickException(f"the steps did not print {', '.join(missing)}")
            _look_at_web_server(project, environment)
            click.echo(f"the page's steps took {time.monotonic() - started:.0f} s, packages and jars included")
        finally:
            stop = folder / "venv" / "bin" / "dagster-kafka-flip"
            if stop.exists():
                subprocess.run([stop, "broker", "stop"], cwd=project, env=environment, check=False)


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Runs a command, prints what it prints, and returns it."""
    output: list[str] = []
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        for line in running.stdout or ():
            click.echo(line, nl=False)
            output.append(line)
    if running.returncode:
        raise click.ClickException(f"{command[0]} ended with {running.returncode}")
    return "".join(output)


def _look_at_web_server(folder: Path, environment: dict[str, str]) -> None:
    running = subprocess.Popen(_WEB_SERVER.split(), cwd=folder, env=environment)
    try:
        for attempt in Retrying(
            retry=retry_if_exception_type(OSError), wait=wait_fixed(1), stop=stop_after_delay(_PATIENCE_SECONDS)
        ):
            with attempt, urllib.request.urlopen("http://127.0.0.1:3000/server_info", timeout=5) as answer:
                click.echo(answer.read().decode())
    finally:
        running.terminate()
        running.wait(60)


if __name__ == "__main__":
    main()
