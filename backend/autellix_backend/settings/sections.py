"""The sections of the settings, and the frozen tree of them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from autellix_backend.core.balance import BALANCER_NAMES
from autellix_backend.core.balance.locality import DEFAULT_THRESHOLD_TOKENS
from autellix_backend.core.config import PREEMPTION_KINDS, SERVICE_KINDS, SchedulerConfig
from autellix_backend.core.policies import LIVE_POLICY_NAMES
from autellix_backend.settings.base import SettingsError, default_cache_dir
from autellix_backend.settings.fields import (
    HTTP_URL,
    NON_NEGATIVE,
    POSITIVE,
    Rule,
    Section,
    Setting,
    between,
    hide,
    one_of,
    setting,
)
from autellix_backend.settings.store import StoreSettings

MAX_PORT = 65535
MIN_SECRET_CHARACTERS = 16
AUTO_KIND = "auto"
ENGINE_KINDS = (AUTO_KIND, "vllm", "sglang", "openai")
SUBAGENT_KINDS = ("thread", "program")
ANY_CLUSTER = "auto"

_HOST = Rule("a host name or address", bool)
_SECRET = Rule(
    f"{MIN_SECRET_CHARACTERS} characters or more", lambda secret: len(secret) >= MIN_SECRET_CHARACTERS
)
_TRACE_PATH = Rule("a name that does not end in .gz", lambda path: path.suffix != ".gz")
_HEADER_VALUE = Rule(
    "printable ASCII characters", lambda key: key != "" and key.isascii() and key.isprintable()
)
# The other headers are the connection's, the body's and the key's.
_OWN_HEADER = Rule(
    "the name of a header that begins with X-",
    lambda name: re.fullmatch(r"[Xx]-[A-Za-z0-9-]+", name) is not None,
)
_FINITE = Rule("a finite number above zero", lambda value: 0 < value < math.inf)
_CLUSTER = Rule(
    f"{ANY_CLUSTER}, or HOST:PORT of the cluster's head",
    lambda address: address == ANY_CLUSTER or re.fullmatch(r"[^/\s]+:\d+", address) is not None,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings(Section):
    """The HTTP server, identity and tenants."""

    section: ClassVar[str] = "gateway"

    host: str = setting("127.0.0.1", "address to listen on", _HOST, option="--host")
    port: int = setting(8000, "port to listen on, 0 for any free one", between(0, MAX_PORT), option="--port")
    heartbeat_s: float = setting(
        10.0, "heartbeat period of clients, s; a session that misses three of them ends", POSITIVE
    )
    program_idle_s: float = setting(
        600.0, "time after which a program without a running call leaves the table, s", POSITIVE
    )
    max_body_bytes: int = setting(
        64 * 2**20, "the largest request body, bytes; a larger one is a 413", POSITIVE
    )
    upstream_timeout_s: float = setting(
        3600.0, "the longest one call may take at the engine, s; then 504", POSITIVE
    )
    recovery_wait_s: float = setting(
        60.0, "how long a call waits for an engine that is down or restarts, s; then 503", NON_NEGATIVE
    )
    report_wait_s: float = setting(
        0.5,
        "how long an answered call waits for the engine's report, s; then its receipt goes out without",
        NON_NEGATIVE,
    )
    shutdown_grace_s: float = setting(
        10.0, "how long running calls may continue after SIGTERM, s", NON_NEGATIVE
    )
    strict_identity: bool = setting(
        False, "whether a call that names a program needs the token of its session"
    )
    token_secret: str | None = setting(
        None,
        "secret that signs session tokens; unset, `autellix serve` generates one and keeps it in "
        "`engine.state_dir`. Never shown",
        _SECRET,
        shown=hide,
    )
    subagents: str = setting(
        "thread",
        "what a sub-agent named by its client is: a `thread` of its root program, or a `program` of its own",
        one_of(SUBAGENT_KINDS),
    )
    content_chain: bool = setting(
        True, "whether a chat without an id joins the program whose transcript it extends"
    )
    record_path: Path | None = setting(
        None,
        "trace file to which each ended program is appended: counts and timings, never text",
        _TRACE_PATH,
        option="--record",
    )
    tenants_file: Path | None = setting(
        None,
        "[TOML file of tenants](../guides/self-hosting.md) with their API keys, weights and limits; unset "
        "turns authentication off",
        option="--tenants",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings(Section):
    """The engines: replicas that we start (`model`), running servers (`urls`), or both; see
    [several engines](../guides/multi-engine.md)."""

    section: ClassVar[str] = "engine"

    model: str | None = setting(
        None,
        "folder or Hugging Face id of the model to serve, `demo` for the generated one; also `MODEL` of "
        "`autellix serve`",
    )
    served_model_name: str | None = setting(
        None, "name that clients use for the model", option="--served-model-name"
    )
    max_num_seqs: int | None = setting(
        None,
        "batch size of the engine in sequences; unset is vLLM's default",
        POSITIVE,
        option="--max-num-seqs",
    )
    kv_host_gib: float | None = setting(
        None,
        "host memory of each replica for [KV blocks](../guides/kv-offload.md), GiB; unset offloads nothing",
        _FINITE,
        option="--kv-host-gib",
    )
    kv_events: bool = setting(
        False,
        "whether replicas publish [the contents of their KV caches](../guides/multi-engine.md#kv-events) "
        "to the balancer; not through Ray",
        option="--kv-events",
        implied="true",
    )
    kv_events_port: int | None = setting(
        None,
        "port at which the vLLM servers at `urls` publish their KV events; unset does not subscribe",
        between(1, MAX_PORT),
        option="--kv-events-port",
    )
    extra_args: tuple[str, ...] = setting(
        (),
        "further arguments for the vLLM server, as `--engine-args='--dtype float32'`; a list in the file",
        option="--engine-args",
    )
    replicas: int = setting(
        1,
        "number of engines of the model to start, each on its own cores or GPUs",
        POSITIVE,
        option="--replicas",
    )
    urls: tuple[str, ...] = setting(
        (),
        "running OpenAI-compatible servers to send calls to; the option may be repeated; a list in the file",
        HTTP_URL,
        option="--engine",
        is_repeated=True,
    )
    kind: str = setting(
        AUTO_KIND,
        "what runs at `urls`, which decides the fields it receives; `auto` asks each server",
        one_of(ENGINE_KINDS),
    )
    must_answer: bool = setting(
        True,
        "whether the start fails if one of `urls` does not answer; `false` starts without it, and sends it "
        "calls once it answers",
    )
    api_key: str | None = setting(
        None,
        "API key that engines receive in place of the client's. Never shown",
        _HEADER_VALUE,
        shown=hide,
    )
    session_header: str | None = setting(
        None,
        "a header that carries the program's id to engines, for "
        "[routers behind the gateway](../guides/cluster.md#llm-d-and-dynamo)",
        _OWN_HEADER,
    )
    startup_timeout_s: float = setting(
        900.0, "how long an engine may take to start, s", POSITIVE, option="--startup-timeout"
    )
    state_dir: Path = setting(
        default_cache_dir,
        "folder of generated models, logs, sockets and the kept secret; also `AUTELLIX_CACHE_DIR`",
    )
    max_restarts: int = setting(
        5,
        "restarts of a dead or hanging replica within ten minutes before it counts as failed; 0 for none",
        NON_NEGATIVE,
    )
    probe_period_s: float = setting(5.0, "time between two health probes, s", POSITIVE)
    stall_timeout_s: float | None = setting(
        None,
        "how long a replica with calls may send no report before it counts as hung, s: more than its longest "
        "step; unset is for ever",
        POSITIVE,
    )
    max_in_flight: int | None = setting(
        None,
        "calls sent at once to an engine without our scheduler; the others wait in the gateway, in the "
        "scheduler's order; unset sends all",
        POSITIVE,
    )
    max_waiting_calls: int = setting(
        10_000,
        "calls that may wait for the first byte of their answer, in the gateway or the engine; one more is "
        "a 503",
        POSITIVE,
    )
    max_waiting_bytes: int = setting(2**30, "total bytes of the bodies of those calls", POSITIVE)

    @property
    def log_dir(self) -> Path:
        """Folder of the engines' logs."""
        return self.state_dir / "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerSettings(Section):
    """The choice among several engines: see [several engines](../guides/multi-engine.md)."""

    section: ClassVar[str] = "balancer"

    name: str = setting(
        "locality-bounded",
        "rule that chooses a call's engine; `locality` is Algorithm 2 of the paper",
        one_of(BALANCER_NAMES),
        option="--balancer",
    )
    threshold_tokens: int = setting(
        DEFAULT_THRESHOLD_TOKENS,
        "prompt tokens from which `locality` keeps a program's calls on one engine",
        NON_NEGATIVE,
    )


SCHEDULER_SETTINGS = {
    "policy": Setting(
        text="[scheduling](../scheduling.md) policy: how a program's past orders its next call",
        rule=one_of(LIVE_POLICY_NAMES),
        option="--policy",
    ),
    "bounds": Setting(
        text="upper bounds of attained service of all levels but the last, s; positive and rising",
        option="--bounds",
    ),
    "quanta": Setting(
        text="time quantum of each level, s: one positive number per level; unset is the level's width",
        option="--quanta",
    ),
    "beta": Setting(
        text="starvation threshold: a call is promoted once wait/service reaches it; `inf` is never",
        rule=POSITIVE,
        option="--beta",
    ),
    "period_steps": Setting(
        text="engine steps between two decisions", rule=POSITIVE, option="--period-steps"
    ),
    "preemption": Setting(
        text="when a running call yields its slot to one of a higher priority: `priced` where that gains "
        "[more than it costs](../scheduling.md#what-a-preemption-costs), `always` as in the paper, or "
        "`never`",
        rule=one_of(PREEMPTION_KINDS),
        option="--preemption",
    ),
    "service": Setting(
        text="what is charged: `measured` executor time, or weighted `tokens`", rule=one_of(SERVICE_KINDS)
    ),
}
"""The settings of core.config.SchedulerConfig, which checks its own rules. Its other fields are constants to
operators: `token_s` only scales `bounds`, and `demotes` turns a part of Algorithm 1 off for studies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits(Section):
    """Limits of each tenant, and of all calls where authentication is off: see
    [limits](../guides/self-hosting.md#limits). Unset is no limit."""

    section: ClassVar[str] = "limits"

    max_programs: int | None = setting(None, "programs in the table at once", POSITIVE)
    max_calls: int | None = setting(None, "calls between arrival and settlement", POSITIVE)
    max_call_bytes: int | None = setting(None, "total bytes of the bodies of those calls", POSITIVE)
    requests_per_minute: float | None = setting(
        None, "requests per minute; the bucket holds one minute's worth", POSITIVE
    )
    tokens_per_minute: float | None = setting(
        None, "prompt and output tokens per minute, charged when a call is settled", POSITIVE
    )
    program_calls: int | None = setting(None, "calls of one program", POSITIVE)
    program_tokens: int | None = setting(None, "prompt and output tokens of one program", POSITIVE)
    program_service_s: float | None = setting(None, "service that one program may attain, s", POSITIVE)
    day_tokens: int | None = setting(None, "prompt and output tokens per day (UTC)", POSITIVE)
    day_service_s: float | None = setting(None, "service per day (UTC), s", POSITIVE)
    max_messages: int | None = setting(None, "messages in one request", POSITIVE)
    max_output_tokens: int | None = setting(
        None, "output tokens that one request may ask for; the default of one that asks for none", POSITIVE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSettings(Section):
    """Records of calls beside the [metrics](metrics.md): ids, counts and times, never content."""

    section: ClassVar[str] = "observe"

    call_log: Path | None = setting(
        None,
        "file to which one JSON line per settled call is appended; `-` is standard error",
        option="--call-log",
    )
    otlp_endpoint: str | None = setting(
        None,
        "OpenTelemetry collector that receives one span per call over HTTP",
        HTTP_URL,
        option="--otlp-endpoint",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings(Section):
    """Replicas on the nodes of a [Ray cluster](../guides/cluster.md#ray)."""

    section: ClassVar[str] = "ray"

    address: str | None = setting(
        None,
        "`auto` for the cluster of this machine, which `--ray` alone means, or `HOST:PORT` of a cluster's "
        "head; unset uses no Ray",
        _CLUSTER,
        option="--ray",
        implied=ANY_CLUSTER,
    )
    cpus: float = setting(
        1.0, "CPUs of a node for each engine, which computes in as many threads without a GPU", NON_NEGATIVE
    )
    gpus: float | None = setting(
        None,
        "GPUs of a node for each engine; unset is its parallel sizes, and none for the CPU build of vLLM",
        NON_NEGATIVE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that one backend is built from."""

    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    balancer: BalancerSettings = field(default_factory=BalancerSettings)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    limits: TenantLimits = field(default_factory=TenantLimits)
    observe: ObserveSettings = field(default_factory=ObserveSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        if self.scheduler.policy not in LIVE_POLICY_NAMES:
            problem = f"{self.scheduler.policy!r} works in the simulator only"
            raise SettingsError("scheduler.policy", problem, one_of(LIVE_POLICY_NAMES).expected)
