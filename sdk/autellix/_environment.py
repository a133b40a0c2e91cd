"""Reads the client's settings from the environment, and parses addresses of backends."""

from __future__ import annotations

import os
import sys

from autellix._faults import log_debug, log_warning
from autellix_wire.ids import InvalidIdError, check_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

BASE_URL_VARIABLE = "AUTELLIX_BASE_URL"
DISABLED_VARIABLE = "AUTELLIX_DISABLED"
RAW_HTTP_VARIABLE = "AUTELLIX_RAW_HTTP"
PROGRAM_ID_VARIABLE = "AUTELLIX_PROGRAM_ID"
PROGRAM_NAME_VARIABLE = "AUTELLIX_PROGRAM_NAME"

Origin = tuple[str, str, int]
Address = tuple[Origin, str]
"""An origin, and a root path there."""
PORTS = {"http": 80, "https": 443}


def is_set(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on")


def script_name() -> str | None:
    """Return the name of the module or file that this process runs, such as `react.py`; None in a console."""
    module = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "__main__")
    if module != "__main__":
        # Run by `python -m`.
        return str(module).removesuffix(".__main__")
    script = (getattr(sys, "argv", None) or [""])[0]
    return None if script in ("", "-", "-c", "-m") else os.path.basename(script)  # noqa: PTH119 - pathlib is slow to load


def program_of_process() -> tuple[str | None, str | None]:
    """Return the name and id of the program that this process belongs to; a malformed id is ignored."""
    name = os.environ.get(PROGRAM_NAME_VARIABLE, "").strip() or None
    program_id = os.environ.get(PROGRAM_ID_VARIABLE)
    if program_id is not None:
        try:
            program_id = check_id(program_id, PROGRAM_ID_VARIABLE)
        except InvalidIdError as error:
            log_debug("%s is ignored", error)
            program_id = None
    return name, program_id


def parse_base_url(url: str) -> Address:
    """Split a backend's address into its origin and its root path, without the `/v1` of OpenAI clients.

    Raises:
        TypeError: if it is not text.
        ValueError: if it is not an http or https address with a host.
    """
    from urllib.parse import urlsplit

    if not isinstance(url, str):
        raise TypeError(f"base_url is a {type(url).__name__}; expected text")
    parts = urlsplit(url.strip())
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"base_url: {url!r} is not an address such as http://127.0.0.1:8000")
    origin = (parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme])
    return origin, parts.path.rstrip("/").removesuffix("/v1")


def parse_base_urls(base_urls: str | Iterable[str]) -> list[Address]:
    """Parse addresses, comma separated or one by one."""
    urls = base_urls.split(",") if isinstance(base_urls, str) else base_urls
    return [parse_base_url(url) for url in urls if str.strip(url)]


def configured_backends() -> list[Address]:
    """Parse `AUTELLIX_BASE_URL`; a malformed address is ignored with a warning: an import must not raise."""
    found: list[Address] = []
    for url in os.environ.get(BASE_URL_VARIABLE, "").split(","):
        try:
            found += parse_base_urls(url)
        except ValueError as error:
            log_warning("%s: %s; it is ignored", BASE_URL_VARIABLE, error)
    return found
