"""Finds what a JSON Schema refers to: its own parts, and the registry's references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urldefrag, urljoin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class Resource:
    """A schema with its own address, which references in it are relative to.

    Attributes:
        schema: The schema.
        address: Its `$id`, as an absolute address as far as one is known.
    """

    schema: Any
    address: str = ""

    def inside(self, part: Any) -> Resource:
        """The resource of one of its parts, which may have an address of its own."""
        own = _id(part, self.schema)
        if own is None or own.startswith("#") or part is self.schema:
            return self
        return Resource(part, urldefrag(urljoin(self.address, own)).url)

    @classmethod
    def of(cls, schema: Any, name: str = "") -> Resource:
        """The resource of a whole schema, by its name if it has no address."""
        own = _id(schema, schema)
        return cls(schema, name if own is None else urldefrag(urljoin(name, own)).url)


class References:
    """The schemas that a schema may refer to.

    Args:
        schema: The schema.
        named: Other schemas by the names that it refers to them with.
    """

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        self.root = Resource.of(schema)
        """The schema itself."""
        self._addressed: dict[str, Resource] = {}
        others = {name: Resource.of(other, name) for name, other in named.items()}
        for whole in (self.root, *others.values()):
            for part, resource in _parts(whole.schema, whole):
                if part is resource.schema:
                    self._addressed.setdefault(resource.address, resource)
        # The registry's names take precedence over those in the schemas.
        self._addressed.update(others)

    def find(self, reference: Any, resource: Resource, path: str) -> tuple[Any, Resource]:
        """What a reference refers to, and the resource that it is in.

        Raises:
            ValueError: There is no such schema.
        """
        found = self._find(reference, resource) if isinstance(reference, str) else None
        if found is None:
            where = f"{path}: " if path else ""
            msg = (
                f"{where}it refers to {reference!r}, which is neither in the schema nor among the registry's references"
            )
            raise ValueError(msg)
        return found

    def _find(self, reference: str, resource: Resource) -> tuple[Any, Resource] | None:
        name, fragment = urldefrag(reference)
        if name:
            other = self._addressed.get(name) or self._addressed.get(urljoin(resource.address, name))
            if other is None:
                return None
            resource = other
        fragment = unquote(fragment)
        if not fragment:
            return resource.schema, resource
        if fragment.startswith("/"):
            return _pointed(fragment, resource)
        for part, inside in _parts(resource.schema, resource):
            if _anchor(part) == fragment or _id(part, resource.schema) == f"#{fragment}":
                return part, inside
        return None


def _pointed(pointer: str, resource: Resource) -> tuple[Any, Resource] | None:
    part = resource.schema
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict) and key in part:
            part = cast("dict[str, Any]", part)[key]
        elif isinstance(part, list) and key.isdecimal() and int(key) < len(cast("list[Any]", part)):
            part = cast("list[Any]", part)[int(key)]
        else:
            return None
        resource = resource.inside(part)
    return part, resource


def _parts(schema: Any, resource: Resource) -> Iterator[tuple[Any, Resource]]:
    """All objects in a schema, itself included, each with the resource that it is in."""
    left: list[tuple[Any, Resource]] = [(schema, resource)]
    while left:
        part, around = left.pop()
        if isinstance(part, dict):
            inside = around.inside(part)
            yield part, inside
            left.extend((each, inside) for each in cast("dict[str, Any]", part).values())
        elif isinstance(part, list):
            left.extend((each, around) for each in cast("list[Any]", part))


def _id(part: Any, root: Any) -> str | None:
    if not isinstance(part, dict):
        return None
    found = cast("dict[str, Any]", part).get("$id")
    if found is None and isinstance(root, dict):
        # To later drafts it means nothing.
        draft = cast("dict[str, Any]", root).get("$schema")
        found = cast("dict[str, Any]", part).get("id") if isinstance(draft, str) and "draft-04" in draft else None
    return found if isinstance(found, str) else None


def _anchor(part: Any) -> str | None:
    found = part.get("$anchor") or part.get("$dynamicAnchor")
    return found if isinstance(found, str) else None
