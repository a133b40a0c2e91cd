"""Creates the store that the settings describe."""

from __future__ import annotations

from collections.abc import Callable

from autellix_backend.core.policies import make_policy
from autellix_backend.install import pip_install
from autellix_backend.settings import Settings, SettingsError
from autellix_backend.stores.base import ProgramStore
from autellix_backend.stores.memory import MemoryStore
from autellix_backend.stores.table_clock import TableClock

LEASE_S = 15.0
"""How long a gateway may be silent before the others count its running calls as lost. It renews its lease
once a second, and must keep it over a moment without CPU time."""
REDIS_URL = (
    "redis://USER:PASSWORD@HOST:PORT/DB, rediss://… (TLS), unix://… or redis+sentinel://HOST:PORT,…/SERVICE, "
    "with the password percent-encoded"
)


def make_store(
    settings: Settings,
    *,
    session_ttl_s: float,
    clock: Callable[[], float],
    on_fallback: Callable[[], None],
) -> ProgramStore:
    """Create a store that receives times of `clock`; nothing is opened yet.

    `on_fallback` is called for each operation that memory answers in place of Redis.

    Raises:
        SettingsError: if the client of Redis is not installed, or cannot read its address.
    """
    policy = make_policy(settings.scheduler.policy)
    store, program_idle_s = settings.store, settings.gateway.program_idle_s
    memory = MemoryStore(policy, program_idle_s=program_idle_s, session_ttl_s=session_ttl_s)
    if not store.is_shared:
        return memory
    try:
        from autellix_backend.stores.fallback import FallbackStore
        from autellix_backend.stores.redis import RedisStore
        from autellix_backend.stores.redis_scripts import RedisScripts
    except ModuleNotFoundError as error:
        raise SettingsError(
            "store.url", f"needs a package that is missing ({error.name})", pip_install("redis")
        ) from error
    try:
        scripts = RedisScripts(store.url, key_prefix=store.key_prefix, timeout_s=store.timeout_ms / 1000)
    except ValueError as error:
        raise SettingsError("store.url", str(error), REDIS_URL) from error
    shared = RedisStore(
        policy,
        scripts,
        program_idle_s=program_idle_s,
        session_ttl_s=session_ttl_s,
        lease_s=LEASE_S,
        clock=TableClock(clock),
    )
    return FallbackStore(shared, memory, on_fallback=on_fallback)
