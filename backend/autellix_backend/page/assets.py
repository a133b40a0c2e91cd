"""The page's files, from this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page."""

    content: bytes
    media_type: str


@cache
def assets() -> Mapping[str, Asset]:
    """Return the page's files by their names."""
    return MappingProxyType(read_assets(__package__))


def read_assets(package: str) -> dict[str, Asset]:
    """Return the files in a package's folder `static` by their names."""
    return {
        entry.name: Asset(entry.read_bytes(), _TYPES[entry.name.rpartition(".")[2]])
        for entry in files(package).joinpath("static").iterdir()
    }
