"""The client's configuration, from the environment and `configure`; the only reader of the environment."""

from __future__ import annotations

import os

from autellix._safely import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

BASE_URL_VARIABLE = "AUTELLIX_BASE_URL"
DISABLED_VARIABLE = "AUTELLIX_DISABLED"
RAW_HTTP_VARIABLE = "AUTELLIX_RAW_HTTP"
PROGRAM_ID_VARIABLE = "AUTELLIX_PROGRAM_ID"
PROGRAM_NAME_VARIABLE = "AUTELLIX_PROGRAM_NAME"
YES = frozenset({"1", "true", "yes", "on"})

Origin = tuple[str, str, int]
PORTS = {"http": 80, "https": 443}


def is_disabled() -> bool:
    """Tell whether the environment switches the client off."""
    return os.environ.get(DISABLED_VARIABLE, "").strip().lower() in YES


def wants_raw_http() -> bool:
    """Tell whether the environment asks for bare HTTP clients to be annotated as well."""
    return os.environ.get(RAW_HTTP_VARIABLE, "").strip().lower() in YES


def program_of_environment() -> tuple[str | None, str | None]:
    """Read the name and the id of the program that this process is part of; a malformed id counts as none."""
    from autellix_wire import InvalidIdError, check_id

    name = os.environ.get(PROGRAM_NAME_VARIABLE, "").strip() or None
    program_id = os.environ.get(PROGRAM_ID_VARIABLE)
    if program_id is not None:
        try:
            program_id = check_id(program_id, PROGRAM_ID_VARIABLE)
        except InvalidIdError as error:
            note("%s is ignored", error)
            program_id = None
    return name, program_id


def parse_base_url(url: str) -> tuple[Origin, str]:
    """Split a backend's address into its origin and its root path, without the `/v1` of OpenAI clients.

    Raises:
        ValueError: if it is not an http or https address with a host.
    """
    from urllib.parse import urlsplit

    parts = urlsplit(url.strip())
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"base_url: {url!r} is not an address such as http://127.0.0.1:8000")
    origin = (parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme])
    return origin, parts.path.rstrip("/").removesuffix("/v1")


def backends_of(base_urls: str | Iterable[str]) -> dict[Origin, str]:
    """Read addresses, one text with commas or several texts, into root paths by origin.

    Raises:
        ValueError: if one of them is malformed.
    """
    urls = base_urls.split(",") if isinstance(base_urls, str) else base_urls
    return dict(parse_base_url(url) for url in urls if url.strip())


def backends_of_environment() -> dict[Origin, str]:
    """Read the addresses of `AUTELLIX_BASE_URL`; a malformed value counts as none: imports never raise."""
    try:
        return backends_of(os.environ.get(BASE_URL_VARIABLE, ""))
    except ValueError as error:
        note("%s is ignored: %s", BASE_URL_VARIABLE, error)
        return {}
