"""The invariants of the table in Redis."""

from __future__ import annotations

from redis import Redis

SINGLE_KEYS = {
    "epoch",
    "gateways",
    "gone",
    "programs",
    "active",
    "idle",
    "sessions",
    "ends",
    "numbers",
    "owners",
    "closing",
    "clock",
}


def check_table(url: str, tag: str) -> None:
    """Assert that the keys of a table tell one story, while nothing changes it."""
    with Redis.from_url(url, decode_responses=True, protocol=2) as client:
        _Check(client, tag).run()


class _Check:
    def __init__(self, client: Redis, tag: str) -> None:
        self._client = client
        self._tag = tag

    def run(self) -> None:
        programs = self._members("programs")
        active, idle = self._members("active"), self._members("idle")
        assert programs == active | idle, (programs, active, idle)
        assert not active & idle, active & idle
        held: dict[str, set[str]] = {}
        for kind, names in self._named().items():
            if kind in ("p", "r", "h", "e", "ps"):
                assert names <= programs, (kind, names - programs)
            if kind == "g":
                gone = {str(member) for member in self._client.smembers(f"{self._tag}:gone")}
                assert names <= self._members("gateways") | gone, names
                for gateway in names:
                    for key, program in self._fields(f"g:{gateway}").items():
                        held.setdefault(program, set()).add(key)
            if kind == "sp":
                for session in names:
                    for program in self._members(f"sp:{session}"):
                        assert session in self._members(f"ps:{program}"), (session, program)
        for program in programs:
            self._check_program(program, is_active=program in active, held=held.pop(program, set()))
        assert not held, held

    def _check_program(self, program: str, *, is_active: bool, held: set[str]) -> None:
        values, running = self._fields(f"p:{program}"), self._fields(f"r:{program}").keys()
        assert running == held, (program, running, held)
        assert bool(running) is is_active, program
        assert running or "ended" not in values, program
        assert float(values.get("service_s", 0)) >= 0, values
        assert float(values.get("wait_s", 0)) >= 0, values
        for session in self._members(f"ps:{program}"):
            assert program in self._members(f"sp:{session}"), (session, program)

    def _members(self, name: str) -> set[str]:
        return {str(member) for member in self._client.zrange(f"{self._tag}:{name}", 0, -1)}

    def _fields(self, name: str) -> dict[str, str]:
        fields = self._client.hgetall(f"{self._tag}:{name}")
        return {str(field): str(value) for field, value in fields.items()}

    def _named(self) -> dict[str, set[str]]:
        """Return the names of the keys that there are many of, by kind."""
        named: dict[str, set[str]] = {}
        for key in self._client.scan_iter(match=f"{self._tag}:*", count=1000):
            kind, _, name = key.removeprefix(f"{self._tag}:").partition(":")
            assert name or kind in SINGLE_KEYS, key
            named.setdefault(kind, set()).add(name)
        return named
