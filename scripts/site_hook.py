"""What MkDocs is told besides `mkdocs.yml`, so that the same documents read well on GitHub and as a site.

The documents at the top of the repository become pages, and links to files that are no pages lead to the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_ROOT = Path(__file__).resolve().parent.parent
_DOCS = "docs"
_DECISIONS = "decisions/README.md"

# Documents of the repository that lie outside of docs/, and the pages that they become.
_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}

_FENCE = re.compile(r"(^ *```.*?^ *```)", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts all decisions behind their list."""
    config.nav = _with_decisions(config.nav, sorted((_ROOT / _DOCS / "decisions").glob("[0-9]*.md")))
    return config


def _with_decisions(entry: Any, records: list[Path]) -> Any:
    if isinstance(entry, dict):
        return {title: _with_decisions(inner, records) for title, inner in entry.items()}
    if isinstance(entry, list):
        behind = [f"decisions/{record.name}" for record in records] if _DECISIONS in entry else []
        return [*(_with_decisions(inner, records) for inner in entry), *behind]
    return entry


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the documents at the top of the repository."""
    for document, page in _PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(_ROOT / document)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links that hold in the repository hold on the site."""
    del files
    uri = page.file.src_uri
    document = next((path for path, made in _PAGES.items() if made == uri), f"{_DOCS}/{uri}")
    return "".join(
        part
        if part.lstrip(" ").startswith("```")
        else _LINK.sub(lambda link: _on_site(link, document, uri, config), part)
        for part in _FENCE.split(markdown)
    )


def _on_site(link: re.Match[str], document: str, uri: str, config: MkDocsConfig) -> str:
    path, anchor = link[1], link[2] or ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(document), path))
    made = _PAGES.get(target) or (target.removeprefix(f"{_DOCS}/") if target.startswith(f"{_DOCS}/") else None)
    if made is not None:
        return f"]({posixpath.relpath(made, posixpath.dirname(uri) or '.')}{anchor})"
    kind = "tree" if (_ROOT / target).is_dir() else "blob"
    return f"]({config.repo_url}/{kind}/main/{target}{anchor})"
