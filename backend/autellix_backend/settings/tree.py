"""The frozen tree of settings, and what each of its values may be."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import LIVE_POLICY_NAMES
from autellix_backend.settings.balancer import BalancerSettings
from autellix_backend.settings.base import (
    SettingsError,
    check,
    check_positive,
    check_url,
    default_cache_dir,
    listed,
)
from autellix_backend.settings.limits import TenantLimits
from autellix_backend.settings.ray import RaySettings
from autellix_backend.settings.store import StoreSettings

MAX_PORT = 65535
MIN_SECRET_CHARACTERS = 16
AUTO_KIND = "auto"
ENGINE_KINDS = (AUTO_KIND, "vllm", "sglang", "openai")
SUBAGENT_KINDS = ("thread", "program")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The HTTP server in front of the engines."""

    host: str = "127.0.0.1"
    port: int = 8000
    heartbeat_s: float = 10.0
    """A client's heartbeat period; a session silent for three of them ends."""
    program_idle_s: float = 600.0
    """A program without a running call leaves the table after this time."""
    max_body_bytes: int = 64 * 2**20
    upstream_timeout_s: float = 3600.0
    """The longest time one call may take at the engine."""
    connect_timeout_s: float = 5.0
    report_wait_s: float = 0.5
    """How long an answered call waits for the engine's accounting before its receipt goes without."""
    recovery_wait_s: float = 60.0
    """How long a call waits for the return of an engine that is down or being restarted."""
    shutdown_grace_s: float = 10.0
    """How long running calls may go on after SIGTERM."""
    strict_identity: bool = False
    """Whether a call that names a program needs the token of its session; else it is believed."""
    token_secret: str | None = None
    """What session tokens are signed with; None lets `autellix serve` keep one in `engine.state_dir`."""
    subagents: str = "thread"
    """What a sub-agent is that its client names: a thread of its root program, or a program of its own."""
    content_chain: bool = True
    """Whether chats without an id are recognised by the transcript that they extend."""
    record_path: Path | None = None
    """Where each program is recorded when it ends, as a line of counts and timings; None records nothing."""
    tenants_file: Path | None = None
    """Who may come in: tenants with their keys, weights and limits; None leaves the door open to all."""

    def __post_init__(self) -> None:
        check(bool(self.host), "gateway.host", "is empty", "a host name or address")
        in_range = 0 <= self.port <= MAX_PORT
        check(in_range, "gateway.port", f"is {self.port}", f"0 (any free port) to {MAX_PORT}")
        for name in ("heartbeat_s", "program_idle_s", "upstream_timeout_s", "connect_timeout_s"):
            check_positive("gateway", self, name)
        check_positive("gateway", self, "max_body_bytes")
        for name in ("report_wait_s", "recovery_wait_s", "shutdown_grace_s"):
            check_positive("gateway", self, name, zero_allowed=True)
        is_known = self.subagents in SUBAGENT_KINDS
        check(is_known, "gateway.subagents", f"is {self.subagents!r}", "thread or program")
        is_plain = self.record_path is None or self.record_path.suffix != ".gz"
        check(is_plain, "gateway.record_path", f"is {self.record_path}", "a name that does not end in .gz")
        is_long = self.token_secret is None or len(self.token_secret) >= MIN_SECRET_CHARACTERS
        check(is_long, "gateway.token_secret", "is too short", f"{MIN_SECRET_CHARACTERS} characters or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engines behind the gateway: replicas that we start (`model`), running ones (`url`, `urls`)."""

    model: str | None = None
    served_model_name: str | None = None
    max_num_seqs: int | None = None
    """The engine's batch size in sequences; None leaves vLLM's default."""
    extra_args: tuple[str, ...] = ()
    """Further arguments for the vLLM server, as given on its command line."""
    kv_host_gib: float | None = None
    """Host memory (GiB) of each engine of ours for KV blocks of calls that do not run; None: none."""
    kv_events: bool = False
    """Whether engines of ours publish what their KV caches hold, for the balancer to go by."""
    kv_events_port: int | None = None
    """The port at which running vLLM engines publish that, on the hosts of their addresses."""
    replicas: int = 1
    """How many engines of the model are started, each with its share of the cores or GPUs."""
    url: str | None = None
    """A running engine in place of one of ours."""
    urls: tuple[str, ...] = ()
    """Running engines, beside those that we start if there is a model."""
    kind: str = AUTO_KIND
    """What sort of server is at `url`, which decides whose fields it gets; `auto` asks it when it starts."""
    must_answer: bool = True
    """Whether the start fails where a running engine does not answer; else it gets calls once it does."""
    api_key: str | None = None
    """What the gateway shows to the engine in place of its client's key."""
    session_header: str | None = None
    """A header in which engines are told the program too, for routers behind the gateway that go by one."""
    startup_timeout_s: float = 900.0
    shutdown_timeout_s: float = 30.0
    """How long the engine's running calls may go on after it is told to stop."""
    state_dir: Path = field(default_factory=default_cache_dir)
    restart: bool = True
    """Whether an engine of ours that died or hangs is started again."""
    max_restarts: int = 5
    """How many restarts within `restart_window_s` are tried before the engine counts as failed."""
    restart_window_s: float = 600.0
    restart_delay_s: float = 1.0
    """The wait before the second restart within the window; it doubles with each further one."""
    probe_period_s: float = 5.0
    probe_timeout_s: float = 10.0
    max_failed_probes: int = 3
    """How many health probes in a row may fail before the engine counts as hung."""
    stall_timeout_s: float | None = None
    """How long an engine of ours may have calls and tell nothing of them before it counts as hung: more than
    its longest step, and than its server needs before a request reaches the scheduler. None: for ever."""
    max_in_flight: int | None = None
    """How many calls an engine without our scheduler is sent at once; the others wait in the gateway, in the
    scheduler's order. None sends all at once; an engine with our scheduler always gets all."""
    max_waiting_calls: int = 10_000
    """How many calls may wait for the first byte of their answer, at the gateway or the engine."""
    max_waiting_bytes: int = 2**30
    """How large the bodies of those calls may be together."""
    breaker_failures: int = 3
    """After how many failures in a row to connect no call is sent for `breaker_cooldown_s`."""
    breaker_cooldown_s: float = 2.0

    def __post_init__(self) -> None:
        if self.max_num_seqs is not None:
            check_positive("engine", self, "max_num_seqs")
        for name in ("startup_timeout_s", "restart_window_s", "probe_period_s", "probe_timeout_s"):
            check_positive("engine", self, name)
        check_positive("engine", self, "replicas")
        if self.kv_host_gib is not None:
            check_positive("engine", self, "kv_host_gib")
            is_finite = self.kv_host_gib < math.inf
            check(is_finite, "engine.kv_host_gib", f"is {self.kv_host_gib}", "a finite number of GiB")
        if self.kv_events_port is not None:
            in_range = 0 < self.kv_events_port <= MAX_PORT
            problem = f"is {self.kv_events_port}"
            check(in_range, "engine.kv_events_port", problem, f"a port from 1 to {MAX_PORT}")
        for name in ("max_failed_probes", "max_waiting_calls", "max_waiting_bytes", "breaker_failures"):
            check_positive("engine", self, name)
        for name in ("max_in_flight", "stall_timeout_s"):
            if getattr(self, name) is not None:
                check_positive("engine", self, name)
        for name in ("shutdown_timeout_s", "max_restarts", "restart_delay_s", "breaker_cooldown_s"):
            check_positive("engine", self, name, zero_allowed=True)
        is_known = self.kind in ENGINE_KINDS
        check(is_known, "engine.kind", f"is {self.kind!r}", f"one of {listed(ENGINE_KINDS)}")
        for name, urls in (("url", () if self.url is None else (self.url,)), ("urls", self.urls)):
            for url in urls:
                check_url(f"engine.{name}", url)
        is_header = self.api_key is None or (self.api_key.isascii() and self.api_key.isprintable())
        check(
            is_header and self.api_key != "", "engine.api_key", "cannot be sent", "printable ASCII characters"
        )

        # The other headers are the connection's, the body's and the key's.
        is_free = self.session_header is None or re.fullmatch(r"[Xx]-[A-Za-z0-9-]+", self.session_header)
        problem = f"is {self.session_header!r}"
        check(bool(is_free), "engine.session_header", problem, "the name of a header that begins with X-")

    @property
    def log_dir(self) -> Path:
        """Folder of the engines' logs."""
        return self.state_dir / "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSettings:
    """What is told of calls beside metrics: ids, counts and times, never content."""

    call_log: Path | None = None
    """Where one JSON line per settled call is appended; `-` is standard error, None logs none."""
    otlp_endpoint: str | None = None
    """Address of the OpenTelemetry collector that gets one span per call over HTTP; None sends none."""

    def __post_init__(self) -> None:
        if self.otlp_endpoint is not None:
            is_http = self.otlp_endpoint.startswith(("http://", "https://"))
            expected = "an http:// or https:// address"
            check(is_http, "observe.otlp_endpoint", f"is {self.otlp_endpoint!r}", expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that one backend is built from."""

    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    limits: TenantLimits = field(default_factory=TenantLimits)
    observe: ObserveSettings = field(default_factory=ObserveSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    balancer: BalancerSettings = field(default_factory=BalancerSettings)
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        if self.scheduler.policy not in LIVE_POLICY_NAMES:
            problem = f"{self.scheduler.policy!r} works in the simulator only"
            raise SettingsError("scheduler.policy", problem, f"one of {listed(LIVE_POLICY_NAMES)}")
