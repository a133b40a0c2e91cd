"""The page's files, from this package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain
from types import MappingProxyType

INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page."""

    content: bytes
    media_type: str


@cache
def assets() -> Mapping[str, Asset]:
    """Return the page's files by their names, those of other projects as `vendor/NAME`."""
    static = files(__package__).joinpath("static")
    return MappingProxyType(dict(chain(_read(static), _read(static.joinpath("vendor"), "vendor/"))))


def _read(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Asset]]:
    for entry in folder.iterdir():
        if entry.is_file():
            yield prefix + entry.name, Asset(entry.read_bytes(), _TYPES[entry.name.rpartition(".")[2]])
