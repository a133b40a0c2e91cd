"""The types of settings: which values each accepts, and how it is read from text and shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from autellix_backend.core.names import present_name
from autellix_backend.environment import MIN_SECRET_CHARACTERS
from autellix_backend.settings.secrets import HIDDEN, hidden_arguments, is_http_url, without_password

MAX_PORT = 65535
ANY_CLUSTER = "auto"
AUTO_GIB = "auto"
MEMORY_URL = "memory://"
REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel")
MAX_REPLICAS = 1024
"""The most replicas of one machine, or of one Ray cluster."""
MIN_NUMBER, MAX_NUMBER = 1e-6, 1e15
"""The bounds of numbers. What is computed of them stays finite, and times in messages readable."""


ONE_OF = "one of "
"""Begins what is expected of an enumeration."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a text, whose error says what is expected."""

    expected: str
    holds: Callable[[str], bool]

    def __call__(self, value: str) -> str:
        """Return the text; raises a ValueError if it does not hold."""
        if not self.holds(value):
            raise ValueError(self.expected)
        return value


def check(expected: str, holds: Callable[[str], bool]) -> AfterValidator:
    """Return a check of a text whose error says what is expected."""
    return AfterValidator(Check(expected, holds))


@dataclass(frozen=True, slots=True)
class Choice(Check):
    """The check of an enumeration, which returns the present spelling of a name."""

    names: Sequence[str]

    def __call__(self, value: str) -> str:
        """Return the name; raises a ValueError if there is none."""
        return Check.__call__(self, present_name(value, self.names))


def one_of(names: Sequence[str]) -> AfterValidator:
    """Return the check of an enumeration."""
    return AfterValidator(Choice(f"{ONE_OF}{', '.join(names)}", lambda value: value in names, names))


def matching(pattern: str, expected: str) -> AfterValidator:
    """Return the check of a whole text by a regular expression."""
    return check(expected, lambda text: re.fullmatch(pattern, text) is not None)


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number")
    return value


def _words(value: object) -> object:
    try:
        return tuple(shlex.split(value)) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError("a list of words, quoted as in a shell") from error


def _numbers(value: object) -> object:
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


def _is_engine(url: str) -> bool:
    """Whether a text is an address below which paths can be put."""
    return is_http_url(url) and not {"?", "#"} & set(url)


def _are_different(urls: tuple[str, ...]) -> tuple[str, ...]:
    """Check that no server is named twice: it would get calls for two."""
    if len({url.lower().rstrip("/").removesuffix("/v1") for url in urls}) < len(urls):
        raise ValueError("each address once")
    return urls


def _is_store(url: str) -> bool:
    """Whether a text is the address of a process table; the client library takes a wrong number for 0."""
    parts = urlsplit(url)
    has_database = parts.scheme in ("redis", "rediss")
    is_database = parts.path.strip("/") == "" or re.fullmatch(r"/\d+", parts.path) is not None
    return url == MEMORY_URL or (parts.scheme in REDIS_SCHEMES and (is_database or not has_database))


def _is_size(value: str | float) -> bool:
    """Whether a value, or the text of one, is a number from zero to the largest allowed."""
    try:
        return 0.0 <= float(value) <= MAX_NUMBER
    except ValueError:
        return False


def shown_as(shown: Callable[[str], str]) -> PlainSerializer:
    """Return how a value with a secret is shown."""
    return PlainSerializer(lambda value: None if value is None else shown(value), when_used="json")


NUMBER = BeforeValidator(_no_boolean)
WORDS = BeforeValidator(_words)

PositiveInt = Annotated[int, Field(ge=1, le=int(MAX_NUMBER)), NUMBER]
Replicas = Annotated[int, Field(ge=1, le=MAX_REPLICAS), NUMBER]
PositiveFloat = Annotated[float, Field(ge=MIN_NUMBER, le=MAX_NUMBER, allow_inf_nan=False), NUMBER]
PositiveOrInfinite = Annotated[float, Field(ge=MIN_NUMBER), NUMBER]
NonNegativeInt = Annotated[int, Field(ge=0, le=int(MAX_NUMBER)), NUMBER]
NonNegativeFloat = Annotated[float, Field(ge=0, le=MAX_NUMBER, allow_inf_nan=False), NUMBER]
Port = Annotated[int, Field(ge=0, le=MAX_PORT), NUMBER]
Bounds = Annotated[tuple[PositiveFloat, ...], BeforeValidator(_numbers)]
Folder = Annotated[Path, AfterValidator(Path.expanduser)]
Host = Annotated[str, Field(min_length=1)]
HttpUrl = Annotated[str, check("an http:// or https:// address", is_http_url), shown_as(without_password)]
EngineUrl = Annotated[
    str, check("an http:// or https:// address without ? or #", _is_engine), shown_as(without_password)
]
EngineUrls = Annotated[tuple[EngineUrl, ...], WORDS, AfterValidator(_are_different)]
Names = Annotated[tuple[str, ...], WORDS]
HostName = Annotated[str, matching(r"[a-z0-9._:-]+", "a name in lower case, without a port")]
HostNames = Annotated[tuple[HostName, ...], WORDS]
Origin = Annotated[
    str, matching(r"[a-z][a-z0-9+.-]*://[^/*\s]+", "an origin as browsers send it, scheme://host[:port]")
]
Origins = Annotated[tuple[Origin, ...], WORDS]
Arguments = Annotated[
    tuple[str, ...], WORDS, PlainSerializer(lambda words: hidden_arguments(words), when_used="json")
]
Secret = Annotated[str, Field(min_length=MIN_SECRET_CHARACTERS), shown_as(lambda _: HIDDEN)]
ApiKey = Annotated[str, matching(r"[ -~]+", "printable ASCII characters"), shown_as(lambda _: HIDDEN)]
RayAddress = Annotated[
    str, matching(rf"{ANY_CLUSTER}|[^/\s]+:\d+", f"{ANY_CLUSTER}, or HOST:PORT of the cluster's head")
]
StoreUrl = Annotated[
    str,
    check(
        "memory://, redis://HOST:PORT/NUMBER, rediss://…, unix://… or redis+sentinel://…",
        _is_store,
    ),
    shown_as(without_password),
]
HostGib = Annotated[
    str | float,
    NUMBER,
    check("auto, or a number of zero or more", lambda value: value == AUTO_GIB or _is_size(value)),
    AfterValidator(lambda value: value if value == AUTO_GIB else float(value)),
]
KeyPrefix = Annotated[str, matching(r"[A-Za-z0-9_.:-]{1,64}", "1 to 64 letters, digits, or any of _.:-")]
