"""docs/ as a site: it builds strictly, all pages are in it, and all that they name is there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest
from pydantic import BaseModel

import dagster_kafka_flip
from dagster_kafka_flip.cli.app import main
from scripts.configuration_reference import DOCUMENT, reference
from tests.document_tests import ROOT

REPOSITORY = "https://github.com/dagster-kafka-flip/dagster-kafka-flip/"


@dataclass
class Page(HTMLParser):
    """What a page of the site names."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values["id"]} if "id" in values else set()
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in {"script", "img", "iframe"} and "src" in values:
            self.loaded.append(values["src"])
        elif tag == "link" and values.get("rel") in {"stylesheet", "icon", "preconnect", "preload"}:
            self.loaded.append(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> dict[Path, Page]:
    """The pages of the site, by file."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages: dict[Path, Page] = {}
    for file in folder.rglob("*.html"):
        pages[file] = Page()
        pages[file].feed(file.read_text(encoding="utf-8"))
    return pages


def _named(pages: dict[Path, Page], file: str) -> tuple[Path, Page]:
    return next((path, page) for path, page in pages.items() if path.as_posix().endswith(f"/{file}"))


def test_every_page_is_in_the_navigation(site):
    index, front = _named(site, "index.html")
    listed = {link.partition("#")[0] for link in front.links}
    documents = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in ROOT.glob("docs/**/*.md")}
    documents = {page.replace("README.html", "index.html") for page in documents}
    assert len(documents) > 15
    assert documents - listed == set()
    assert {"changelog.html", "contributing.html"} <= listed
    assert {page for page in documents if not (index.parent / page).exists()} == set()


def test_every_link_leads_to_a_page_a_heading_or_a_file_of_the_repository(site):
    wrong: set[str] = set()
    for file, page in site.items():
        if file.name == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if link.startswith(REPOSITORY):
                kind, _, path = link.removeprefix(REPOSITORY).partition("/main/")
                there = (ROOT / unquote(path.partition("#")[0])).exists() if kind in {"blob", "tree"} else False
            elif parts.scheme:
                continue
            else:
                target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
                there = target in site and (not parts.fragment or unquote(parts.fragment) in site[target].ids)
            if not there:
                wrong.add(f"{file.name}: {link}")
    assert wrong == set()


def test_the_site_needs_no_network(site):
    assert {address for page in site.values() for address in page.loaded if urlsplit(address).netloc} == set()


def test_the_configuration_reference_matches_the_code():
    assert DOCUMENT.read_text(encoding="utf-8") == reference(), (
        "run `python -m scripts.configuration_reference` and commit docs/configuration.md"
    )


def test_the_configuration_reference_has_everything_that_is_configured():
    # A format of one's own has the fields that one gives it.
    names = {name for name in dagster_kafka_flip.__all__ if name != "Format"}
    models = {
        name
        for name in names
        if isinstance(what := getattr(dagster_kafka_flip, name), type) and issubclass(what, BaseModel)
    }
    assert {"KafkaSource", "KafkaResource", "IngestRunConfig"} <= models
    assert {name for name in models if f"### `{name}`\n" not in reference()} == set()


def _commands(command: click.Command, name: str = "") -> dict[str, click.Command]:
    if not isinstance(command, click.Group):
        return {name: command}
    return {
        path: found
        for word, inner in command.commands.items()
        for path, found in _commands(inner, f"{name} {word}".strip()).items()
    }


def test_help_explains_every_command_and_every_option():
    commands = _commands(main)
    assert {"plan", "position set", "broker start"} <= commands.keys()
    options = {
        f"{name} {each.name}": each.help
        for name, command in commands.items()
        for each in command.params
        if isinstance(each, click.Option)
    }
    assert len(options) > 50
    assert {name for name, text in options.items() if not text} == set()
    assert {name for name, command in commands.items() if not command.help} == set()
