"""Where the process table is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

from autellix_backend.settings.base import check, check_positive

MEMORY_URL = "memory://"
REDIS_SCHEMES = ("redis", "rediss", "unix")
HIDDEN_PASSWORD = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """The process table: in this gateway's memory, or in a Redis or Valkey that several gateways share."""

    url: str = MEMORY_URL
    """`memory://`, or the server as `redis://USER:PASSWORD@HOST:PORT/DB`, `rediss://…` (TLS) or `unix://…`."""
    lease_s: float = 15.0
    """How long a gateway may be silent before its running calls are given up for lost."""
    timeout_ms: int = 100
    """The longest time that a call waits for the server before the gateway goes on with its own copy."""
    key_prefix: str = "autellix"
    """What all keys begin with, in braces; gateways with the same prefix share one table."""

    def __post_init__(self) -> None:
        # The address may hold a password, so messages do not repeat it.
        is_known = self.url == MEMORY_URL or urlsplit(self.url).scheme in REDIS_SCHEMES
        check(
            is_known, "store.url", "is no address of a store", "memory://, redis://…, rediss://… or unix://…"
        )
        check_positive("store", self, "timeout_ms")
        # The lease is renewed once a second.
        check(self.lease_s >= 3, "store.lease_s", f"is {self.lease_s}", "a number of at least 3")
        is_plain = re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", self.key_prefix) is not None
        expected = "1 to 64 letters, digits, or any of _.:-"
        check(is_plain, "store.key_prefix", f"is {self.key_prefix!r}", expected)

    @property
    def is_shared(self) -> bool:
        """Whether several gateways may use the table."""
        return self.url != MEMORY_URL

    @property
    def shown_url(self) -> str:
        """Return the address without its password."""
        parts = urlsplit(self.url)
        user, _, host = parts.netloc.rpartition("@")
        name, colon, _ = user.partition(":")
        netloc = f"{name}{colon}{HIDDEN_PASSWORD if colon else ''}@{host}" if user else host
        values = parse_qsl(parts.query)
        shown = {key: HIDDEN_PASSWORD if key == "password" else value for key, value in values}
        return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{urlencode(shown, safe='*')}" if shown else "")
