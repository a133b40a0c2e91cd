"""How secrets in addresses and arguments are found and hidden."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

HIDDEN = "(hidden)"
HIDDEN_PASSWORD = "***"

_SECRET_ARGUMENT = re.compile(r"--(?:.*[-.])?(?:api-key|token|password|secret)|--api-k\w*")
"""Arguments of engines whose values are secrets; key files and numbers of tokens do not match."""


def without_password(url: str) -> str:
    """Return an address with its password hidden."""
    if "@" not in url and "password" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    user, _, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    netloc = f"{name}{colon}{HIDDEN_PASSWORD if colon else ''}@{host}" if user else host
    values = parse_qsl(parts.query)
    shown = {key: HIDDEN_PASSWORD if key == "password" else value for key, value in values}
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{urlencode(shown, safe='*')}" if shown else "")


def without_credentials(url: str) -> tuple[str, str | None]:
    """Return an HTTP address without user and password, and the `Authorization` header that replaces them."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    name, _, password = user.partition(":")
    credentials = f"{unquote(name)}:{unquote(password)}".encode()
    return parts._replace(netloc=host).geturl(), "Basic " + base64.b64encode(credentials).decode()


def is_http_url(url: str) -> bool:
    """Return whether a text is the address of an HTTP server."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def hidden_arguments(arguments: Sequence[str]) -> list[str]:
    """Return an engine's arguments with secret values hidden."""
    return list(_shown_arguments(arguments))


def _shown_arguments(arguments: Sequence[str]) -> Iterator[str]:
    is_secret = False
    for argument in arguments:
        if not argument.startswith("-"):
            yield HIDDEN if is_secret else argument
            continue
        name, is_joined, _ = argument.partition("=")
        is_secret = _SECRET_ARGUMENT.fullmatch(name.replace("_", "-").lower()) is not None
        yield f"{name}={HIDDEN}" if is_secret and is_joined else argument
