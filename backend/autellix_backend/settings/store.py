"""Where the process table is kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from autellix_backend.settings.fields import POSITIVE, Rule, Section, at_least, setting

MEMORY_URL = "memory://"
REDIS_SCHEMES = ("redis", "rediss", "unix")
HIDDEN_PASSWORD = "***"
MIN_LEASE_S = 3.0
"""A gateway renews its lease once a second."""

_STORE_URL = Rule(
    "memory://, redis://…, rediss://… or unix://…",
    lambda url: url == MEMORY_URL or urlsplit(url).scheme in REDIS_SCHEMES,
)
_KEY_PREFIX = Rule(
    "1 to 64 letters, digits, or any of _.:-",
    lambda prefix: re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", prefix) is not None,
)


def without_password(url: str) -> str:
    """Return a store's address with its password hidden."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    netloc = f"{name}{colon}{HIDDEN_PASSWORD if colon else ''}@{host}" if user else host
    values = parse_qsl(parts.query)
    shown = {key: HIDDEN_PASSWORD if key == "password" else value for key, value in values}
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{urlencode(shown, safe='*')}" if shown else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings(Section):
    """The process table, and [sharing it](../guides/cluster.md) between gateways."""

    section: ClassVar[str] = "store"

    url: str = setting(
        MEMORY_URL,
        "process table: `memory://`, or a Redis or Valkey that gateways share, as "
        "`redis://USER:PASSWORD@HOST:PORT/DB`, `rediss://…` (TLS) or `unix://…`",
        _STORE_URL,
        option="--store",
        shown=without_password,
    )
    lease_s: float = setting(
        15.0,
        "how long a gateway may be silent before the others count its running calls as lost, s",
        at_least(MIN_LEASE_S),
    )
    timeout_ms: int = setting(
        100,
        "the longest a call waits for the store before the gateway continues with its own copy, ms",
        POSITIVE,
    )
    key_prefix: str = setting(
        "autellix",
        "prefix of all keys, in braces; gateways with the same prefix share one table",
        _KEY_PREFIX,
    )

    @property
    def is_shared(self) -> bool:
        """Whether several gateways may use the table."""
        return self.url != MEMORY_URL
