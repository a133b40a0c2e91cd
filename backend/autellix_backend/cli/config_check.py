"""Checks for what `autellix serve` would refuse or silently ignore; nothing is started."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial

from autellix_backend.cli.server import resolve
from autellix_backend.engines.host_memory import with_host_memory
from autellix_backend.engines.replica import default_model, generated_model
from autellix_backend.engines.vllm_command import check_arguments, check_engine_installed, check_model
from autellix_backend.errors import CommandError
from autellix_backend.gateway.http.guard import is_loopback
from autellix_backend.gateway.tenancy.file import load_tenants
from autellix_backend.observe import otlp
from autellix_backend.observe.call_log import check_writable
from autellix_backend.settings import EngineSettings, GatewaySettings, Settings, SettingsError
from autellix_backend.stores.factory import make_store

NO_SHARED_SECRET = (
    "gateway.token_secret is not set: other gateways of this table need the same, "
    "or each refuses the sessions of the others"
)
OF_REPLICAS = ("max_num_seqs", "served_model_name", "extra_args", "replicas")
WHY_REPLICAS = "it is for engines that `serve` starts, and engine.urls names running ones"
OF_SERVERS = ("max_in_flight", "kv_tokens", "kind", "must_answer")
WHY_SERVERS = "it is for running servers (engine.urls), and there is none"
PLACEHOLDER = "change-me"
"""The placeholder for each secret in the example files of `deploy/`."""


def problems_of(settings: Settings) -> Iterator[str]:
    """Return a sentence for each thing that `serve` would refuse with these settings."""
    checks: tuple[Callable[[], object], ...] = (
        partial(load_tenants, settings),
        partial(resolve, settings.gateway),
        *start_checks(settings),
        partial(_check_store, settings),
        partial(_check_engine, settings),
    )
    for check in checks:
        try:
            check()
        except CommandError as error:
            yield str(error)


def start_checks(settings: Settings) -> tuple[Callable[[], None], ...]:
    """Return the checks of who may call, and of what the gateway writes and sends.

    Each raises a SettingsError for its problem.
    """
    return (
        partial(_check_keys, settings.gateway),
        partial(check_writable, settings.observe.call_log),
        partial(otlp.check_installed, settings.observe.otlp_endpoint, os.environ),
    )


def notes_on(settings: Settings) -> Iterator[str]:
    """Return a sentence for each thing that may be intended, but that the operator should know."""
    if settings.engine.model is None and not settings.engine.urls:
        yield (
            f"no model and no engine is named: `autellix serve` serves {default_model()}"
            if default_model()
            else "no model and no engine is named: give one as `autellix serve MODEL` or `--engine URL`"
        )
    yield from ignored(settings)
    if settings.gateway.port and _is_taken(settings.gateway):
        yield f"something listens on {settings.gateway.host}:{settings.gateway.port}, perhaps this gateway"
    if settings.store.is_shared and settings.gateway.token_secret is None:
        yield NO_SHARED_SECRET
    secrets = {
        "engine.api_key": settings.engine.api_key,
        "engine.report_secret": settings.engine.report_secret,
        "gateway.token_secret": settings.gateway.token_secret,
        "store.url": settings.store.url,
    }
    for name, value in secrets.items():
        if value is not None and PLACEHOLDER in value:
            yield f"{name} is the example's, which is public: make one with `openssl rand -hex 32`"


def ignored(settings: Settings) -> Iterator[str]:
    """Return a sentence for each setting of engines that is set and has no effect on any of them."""
    engine, default = settings.engine, EngineSettings()
    for names, has_effect, why in (
        (OF_REPLICAS, engine.model is not None or not engine.urls, WHY_REPLICAS),
        (OF_SERVERS, bool(engine.urls) or engine.model is None, WHY_SERVERS),
    ):
        for name in names:
            if not has_effect and getattr(engine, name) != getattr(default, name):
                hint = (
                    "; engine.max_in_flight bounds the calls in flight there"
                    if name == "max_num_seqs"
                    else ""
                )
                yield f"engine.{name} has no effect: {why}{hint}"


def _is_taken(gateway: GatewaySettings) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((gateway.host, gateway.port), timeout=1):
        return True
    return False


def _check_keys(gateway: GatewaySettings) -> None:
    if gateway.tenants_file is None and not gateway.open and not is_loopback(gateway.host):
        problem = f"is {gateway.host!r}, which other machines may reach, and no key is asked"
        expected = (
            "keys (gateway.tenants_file, `--tenants FILE`), or gateway.open = true "
            "(AUTELLIX_GATEWAY_OPEN) where everyone may do everything"
        )
        raise SettingsError("gateway.host", problem, expected)


def _check_store(settings: Settings) -> None:
    """Check that the store's packages are installed; nothing is opened."""
    make_store(settings, session_ttl_s=1.0, clock=float, on_fallback=lambda: None)


def _check_engine(settings: Settings) -> None:
    engine = with_host_memory(settings).engine
    # Without any engine `serve` starts one of the default model.
    if engine.model is not None or not engine.urls:
        check_arguments(engine.extra_args, offloads_kv=engine.kv_host_gib is not None)
    if engine.model is None or settings.ray.address is not None:
        # Ray's machines have their own packages and models.
        return
    check_engine_installed()
    if generated_model(engine.model) is None:
        check_model(engine.model)
