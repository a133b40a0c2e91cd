"""The sections of the settings, and the frozen tree of them.

The docstring of a field is its text on the reference page and in `--help`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args
from urllib.parse import urlsplit

from autellix_backend.core.balance import BALANCER_NAMES, DEFAULT_BALANCER
from autellix_backend.core.balance.locality import DEFAULT_THRESHOLD_TOKENS
from autellix_backend.core.config import ADMISSION_KINDS, PREEMPTION_KINDS, SERVICE_KINDS, SchedulerConfig
from autellix_backend.core.names import LIVE_POLICY_NAMES
from autellix_backend.settings.base import MIN_SECRET_CHARACTERS, SettingsError, default_cache_dir
from autellix_backend.settings.fields import (
    HTTP_URL,
    NON_NEGATIVE,
    POSITIVE,
    Rule,
    Section,
    between,
    matches,
    one_of,
)
from autellix_backend.settings.secrets import HIDDEN, hidden_arguments, without_password

MAX_PORT = 65535
AUTO_KIND = "auto"
EngineKindChoice = Literal["auto", "vllm", "sglang", "openai"]
ENGINE_KINDS: tuple[str, ...] = get_args(EngineKindChoice)
PAGE_CHOICES = ("auto", "on", "off")
SUBAGENT_KINDS = ("thread", "program")
ANY_CLUSTER = "auto"
MEMORY_URL = "memory://"
REDIS_SCHEMES = ("redis", "rediss", "unix")


PositiveInt = Annotated[int, POSITIVE]
PositiveFloat = Annotated[float, POSITIVE]
FiniteFloat = Annotated[float, Rule("a finite number above zero", lambda value: 0 < value < math.inf)]
NonNegativeInt = Annotated[int, NON_NEGATIVE]
NonNegativeFloat = Annotated[float, NON_NEGATIVE]
HttpUrl = Annotated[str, HTTP_URL]
Host = Annotated[str, Rule("a host name or address", bool)]
Secret = Annotated[
    str,
    Rule(
        f"{MIN_SECRET_CHARACTERS} characters or more",
        lambda secret: len(secret) >= MIN_SECRET_CHARACTERS,
        shown=lambda _: HIDDEN,
    ),
]
ApiKey = Annotated[str, matches(r"[ -~]+", "printable ASCII characters", shown=lambda _: HIDDEN)]
# The other headers are the connection's, the body's and the key's.
OwnHeader = Annotated[str, matches(r"[Xx]-[A-Za-z0-9-]+", "the name of a header that begins with X-")]
RayAddress = Annotated[
    str, matches(rf"{ANY_CLUSTER}|[^/\s]+:\d+", f"{ANY_CLUSTER}, or HOST:PORT of the cluster's head")
]
StoreUrl = Annotated[
    str,
    Rule(
        "memory://, redis://…, rediss://… or unix://…",
        lambda url: url == MEMORY_URL or urlsplit(url).scheme in REDIS_SCHEMES,
        shown=without_password,
    ),
]
Arguments = Annotated[
    tuple[str, ...], Rule("a list of words", lambda _: True, shown=hidden_arguments, shows_whole=True)
]
HostName = Annotated[str, matches(r"[a-z0-9._:-]+", "a name in lower case, without a port")]
Origin = Annotated[
    str,
    matches(r"[a-z][a-z0-9+.-]*://[^/*\s]+", "an origin as browsers send it, scheme://host[:port]"),
]
KeyPrefix = Annotated[str, matches(r"[A-Za-z0-9_.:-]{1,64}", "1 to 64 letters, digits, or any of _.:-")]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings(Section):
    """The HTTP server, identity and tenants."""

    section: ClassVar[str] = "gateway"

    host: Host = "127.0.0.1"
    """address to listen on"""
    port: Annotated[int, between(0, MAX_PORT)] = 8000
    """port to listen on, 0 for any free one"""
    hosts: tuple[HostName, ...] = ()
    """further names of the gateway, such as `host.docker.internal`. A gateway on loopback without keys, or
    with such a list, refuses any other `Host` with 403"""
    origins: tuple[Origin, ...] = ()
    """origins of other sites and desktop applications whose pages may call the gateway, such as
    `https://chat.example.com`; pages of any other origin get 403"""
    page: Annotated[str, one_of(PAGE_CHOICES)] = "auto"
    """whether the [live page](../guides/page.md) is at `/autellix/`: `on`, `off`, or `auto`, where only this
    machine reaches it or keys are needed"""
    program_idle_s: PositiveFloat = 600.0
    """time after which a program without a running call leaves the table, s"""
    max_body_bytes: PositiveInt = 64 * 2**20
    """largest request body, bytes; a larger one gets 413"""
    max_incoming_bytes: PositiveInt = 2**29
    """total bytes of bodies that are being received, of one tenant at most half; then 503"""
    max_answer_bytes: PositiveInt = 2**28
    """largest answer of an engine, or last event of a stream, bytes; then 502"""
    upstream_timeout_s: PositiveFloat = 3600.0
    """how long one call may take at the engine, s; then 504"""
    recovery_wait_s: NonNegativeFloat = 60.0
    """how long a call waits for an engine that is down or restarts, s; then 503"""
    report_wait_s: NonNegativeFloat = 0.5
    """how long an answered call waits for the engine's report, s; then its receipt goes out without"""
    shutdown_grace_s: NonNegativeFloat = 10.0
    """how long running calls may continue after SIGTERM, s"""
    strict_identity: bool = False
    """whether a call that names a program needs the token of its session"""
    token_secret: Secret | None = None
    """secret that signs session tokens; unset, `autellix serve` generates one and keeps it in
    `engine.state_dir`. Never shown"""
    subagents: Annotated[str, one_of(SUBAGENT_KINDS)] = "thread"
    """whether a sub-agent that its client names is a `thread` of its root program or its own `program`"""
    tenants_file: Path | None = None
    """[TOML file of tenants](../guides/self-hosting.md) with their API keys, weights and limits; unset
    turns authentication off"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings(Section):
    """The engines: replicas that we start (`model`), running servers (`urls`), or both; see
    [several engines](../guides/multi-engine.md)."""

    section: ClassVar[str] = "engine"

    model: str | None = None
    """folder or Hugging Face id of the model to serve, `demo` for the generated one; also `MODEL` of
    `autellix serve`"""
    served_model_name: str | None = None
    """name that clients use for the model"""
    max_num_seqs: PositiveInt | None = None
    """batch size of the engine in sequences; unset is vLLM's default"""
    kv_host_gib: FiniteFloat | None = None
    """host memory of each replica for [KV blocks](../guides/kv-offload.md), GiB; unset offloads nothing"""
    extra_args: Arguments = ()
    """further arguments for the vLLM server, as `--engine-args='--dtype float32'`; a list in the file"""
    replicas: PositiveInt = 1
    """number of engines of the model to start, each on its own cores or GPUs"""
    urls: tuple[HttpUrl, ...] = ()
    """running OpenAI-compatible servers to send calls to; the option may be repeated; a list in the file"""
    kind: Annotated[str, one_of(ENGINE_KINDS)] = AUTO_KIND
    """what runs at `urls`, which decides the fields it receives; `auto` asks each server"""
    must_answer: bool = True
    """whether the start fails if one of `urls` does not answer; `false` starts without it, and sends it
    calls once it answers"""
    api_key: ApiKey | None = None
    """API key that engines receive in place of the client's. Never shown"""
    report_secret: Secret | None = None
    """secret that this gateway shares with the engines at `urls` that have our scheduler, for [their
    reports](../guides/cluster.md#reports); engines read the same variable. Never shown"""
    session_header: OwnHeader | None = None
    """a header that carries the program's id to engines, for [routers behind the
    gateway](../guides/cluster.md#llm-d-and-dynamo)"""
    startup_timeout_s: PositiveFloat = 900.0
    """how long an engine may take to start, s"""
    state_dir: Path = field(default_factory=default_cache_dir)
    """folder of generated models, logs, sockets and the generated secret; also `AUTELLIX_CACHE_DIR`"""
    max_restarts: NonNegativeInt = 5
    """restarts of a dead or hanging replica within ten minutes before it counts as failed; 0 for none"""
    stall_timeout_s: PositiveFloat | None = None
    """how long a replica with calls may send no report before it counts as hung, s: more than its longest
    step; unset for no limit"""
    max_in_flight: PositiveInt | None = None
    """calls sent at once to an engine without our scheduler; the others wait in the gateway, in the
    scheduler's order; unset sends all"""
    kv_tokens: PositiveInt | None = None
    """KV memory of an engine without our scheduler, tokens: the gateway then [admits
    programs](../scheduling.md) for it; unset reads it from a vLLM server, and admits all elsewhere"""

    @property
    def log_dir(self) -> Path:
        """Folder of the engines' logs."""
        return self.state_dir / "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerSettings(Section):
    """The choice among several engines: see [several engines](../guides/multi-engine.md)."""

    section: ClassVar[str] = "balancer"

    name: Annotated[str, one_of(BALANCER_NAMES)] = DEFAULT_BALANCER
    """rule that chooses a call's engine; `locality` is Algorithm 2 of the paper"""
    threshold_tokens: NonNegativeInt = DEFAULT_THRESHOLD_TOKENS
    """prompt tokens from which `locality` keeps a program's calls on one engine"""


class SchedulerSettings:
    """The order of calls in the engine, and in the gateway for engines without our scheduler."""

    # The values are those of core.config.SchedulerConfig, which checks its own rules. Its other fields are
    # constants to operators: `token_s` only scales `bounds`; `quanta`, `period_steps` and `demotes` vary
    # Algorithm 1 for studies; any `kv_share` from 0.6 to 1 serves about as well.
    policy: Annotated[str, one_of(LIVE_POLICY_NAMES)]
    """[scheduling](../scheduling.md) policy: how a program's past orders its next call"""
    bounds: tuple[float, ...]
    """upper bounds of attained service of all levels but the last, s; positive and rising"""
    beta: PositiveFloat
    """starvation threshold: a call is promoted once wait/service reaches it; `inf` is never"""
    admission: Annotated[str, one_of(ADMISSION_KINDS)]
    """which [programs may run](../scheduling.md) at all: those whose contexts fit into KV memory together
    (`working_set`), or all (`none`); `auto` is the former with policy `boost`"""
    idle_s: FiniteFloat
    """the longest time for which an active program without a call keeps its share of KV memory, s"""
    boost: NonNegativeFloat
    """strength of policy `boost`, as a share of the mean response time of programs: higher favours short
    programs; 0 is order of arrival"""
    preemption: Annotated[str, one_of(PREEMPTION_KINDS)]
    """when a running call yields its slot to one of a higher priority: `priced` where that gains
    [more than it costs](../scheduling.md#what-a-preemption-costs), `always` as in the paper, or
    `never`"""
    service: Annotated[str, one_of(SERVICE_KINDS)]
    """what is charged: `measured` executor time, or weighted `tokens`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits(Section):
    """Limits of each tenant, and of all calls where authentication is off: see
    [limits](../guides/self-hosting.md#limits). Unset is no limit."""

    section: ClassVar[str] = "limits"

    max_programs: PositiveInt | None = None
    """programs in the table at once"""
    max_sessions: PositiveInt | None = 10_000
    """sessions that run at once, at this gateway"""
    max_calls: PositiveInt | None = None
    """calls between arrival and settlement"""
    max_call_bytes: PositiveInt | None = None
    """total bytes of the bodies of those calls, from the first byte on"""
    requests_per_minute: PositiveFloat | None = None
    """requests per minute; the bucket holds one minute's worth"""
    tokens_per_minute: PositiveFloat | None = None
    """prompt and output tokens per minute, charged when a call is settled"""
    program_calls: PositiveInt | None = None
    """calls of one program"""
    program_tokens: PositiveInt | None = None
    """prompt and output tokens of one program"""
    program_service_s: PositiveFloat | None = None
    """service that one program may attain, s"""
    day_tokens: PositiveInt | None = None
    """prompt and output tokens per day (UTC)"""
    day_service_s: PositiveFloat | None = None
    """service per day (UTC), s"""
    max_messages: PositiveInt | None = None
    """messages in one request"""
    max_output_tokens: PositiveInt | None = None
    """output tokens of one request, over all its answers; the default of one that asks for none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSettings(Section):
    """Records of calls beside the [metrics](metrics.md): ids, counts and times, never content."""

    section: ClassVar[str] = "observe"

    call_log: Path | None = None
    """file to which one JSON line per settled call is appended; `-` is standard error"""
    otlp_endpoint: HttpUrl | None = None
    """OpenTelemetry collector that receives spans of programs and calls, and GenAI metrics, over HTTP; unset
    follows `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` and
    `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`"""
    program_names: tuple[str, ...] = ()
    """names of programs that have [metrics](metrics.md#programs) of their own; others count as `other`"""
    history_programs: NonNegativeInt = 1000
    """ended programs that `ps --all`, `why` and the API still know, with their calls, for a day; 0 keeps
    none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings(Section):
    """The process table, and [sharing it](../guides/cluster.md) between gateways."""

    section: ClassVar[str] = "store"

    url: StoreUrl = MEMORY_URL
    """process table: `memory://`, or a Redis or Valkey that gateways share, as
    `redis://USER:PASSWORD@HOST:PORT/DB`, `rediss://…` (TLS) or `unix://…`"""
    timeout_ms: PositiveInt = 1000
    """how long a call may wait for the store before the gateway continues with its own copy, ms"""
    key_prefix: KeyPrefix = "autellix"
    """prefix of all keys, in braces; gateways with the same prefix share one table"""

    @property
    def is_shared(self) -> bool:
        """Whether several gateways may use the table."""
        return self.url != MEMORY_URL


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings(Section):
    """Replicas on the nodes of a [Ray cluster](../guides/cluster.md#ray)."""

    section: ClassVar[str] = "ray"

    address: RayAddress | None = None
    """`auto` for the cluster of this machine, which `--ray` alone means, or `HOST:PORT` of a cluster's
    head; unset uses no Ray"""
    cpus: NonNegativeFloat = 1.0
    """CPUs of a node for each engine, which computes in as many threads without a GPU"""
    gpus: NonNegativeFloat | None = None
    """GPUs of a node for each engine; unset is its parallel sizes, and none for the CPU build of vLLM"""


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
