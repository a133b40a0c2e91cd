"""Owns which origins get headers: configured ones, else only this machine and its private network."""

from __future__ import annotations

from autellix import _config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from autellix._config import Origin

NEW = "new"
PENDING = "pending"
REGISTERED = "registered"
UNREACHABLE = "unreachable"
FOREIGN = "foreign"

PRIVATE_NETWORKS = (
    "127.0.0.0/8",
    "0.0.0.0/32",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
)
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 60.0


class Backend:
    """What is known of one origin; `state` is one of the five constants above."""

    __slots__ = (
        "authorization",
        "failures",
        "heartbeat_due_s",
        "heartbeat_s",
        "origin",
        "retry_at_s",
        "root",
        "state",
    )

    def __init__(self, origin: Origin, root: str) -> None:
        self.origin = origin
        self.root = root
        self.authorization: str | None = None
        self.renew()

    def renew(self) -> None:
        """Forget what an earlier session learned."""
        self.state = NEW
        self.failures = 0
        self.retry_at_s = 0.0
        self.heartbeat_s = 0.0
        self.heartbeat_due_s = float("inf")

    def needs_start(self, now_s: float) -> bool:
        """Tell whether a call should cause an attempt to start the session here."""
        return self.state == NEW or (self.state == UNREACHABLE and now_s >= self.retry_at_s)

    def mark_registered(self, heartbeat_s: float, now_s: float) -> None:
        """Record that the session has started here."""
        self.state, self.failures = REGISTERED, 0
        self.heartbeat_s, self.heartbeat_due_s = heartbeat_s, now_s + heartbeat_s

    def mark_unreachable(self, now_s: float) -> None:
        """Record a failed attempt; the next one waits twice as long as this one did."""
        pause_s = min(FIRST_PAUSE_S * 2**self.failures, LONGEST_PAUSE_S)
        self.state, self.failures = UNREACHABLE, self.failures + 1
        self.retry_at_s, self.heartbeat_due_s = now_s + pause_s, float("inf")

    def mark_foreign(self) -> None:
        """Record that this origin is no Autellix backend."""
        self.state, self.heartbeat_due_s = FOREIGN, float("inf")


def is_near(host: str) -> bool:
    """Tell whether a host is this machine, in a private network, or a single label; names no public host."""
    host = host.strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    if "." not in host and ":" not in host:
        # A label that starts with a digit may be an address written as one number (134744072 is 8.8.8.8).
        return host[:1].isalpha()
    return _is_private_address(host)


def _is_private_address(host: str) -> bool:
    import ipaddress

    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in ipaddress.ip_network(network) for network in PRIVATE_NETWORKS)


class Backends:
    """The origins seen so far, and the rule that admits them."""

    def __init__(self) -> None:
        self._configured: dict[Origin, str] = {}
        self._seen: dict[Origin, Backend | None] = {}

    def configure(self, roots: dict[Origin, str]) -> None:
        """Admit these origins only, or near hosts if there are none; forget what was learned of origins."""
        self._configured = roots
        self._seen = {}

    def find(self, scheme: str, host: str, port: int | None, path: str) -> Backend | None:
        """Return the backend at an origin, or None if it gets no headers."""
        origin = (scheme, host, port or _config.PORTS.get(scheme, 0))
        try:
            backend = self._seen[origin]
        except KeyError:
            # setdefault: of two threads that meet an origin first, both get the same record.
            backend = self._seen.setdefault(origin, self._admit(origin, path))
        return None if backend is None or backend.state == FOREIGN else backend

    def _admit(self, origin: Origin, path: str) -> Backend | None:
        if self._configured:
            return Backend(origin, self._configured[origin]) if origin in self._configured else None
        if origin[0] not in _config.PORTS or not is_near(origin[1]):
            return None
        root, found, _ = path.partition("/v1/")
        return Backend(origin, root if found else "")

    def known(self) -> list[Backend]:
        """List the admitted origins."""
        return [backend for backend in list(self._seen.values()) if backend is not None]


backends = Backends()
