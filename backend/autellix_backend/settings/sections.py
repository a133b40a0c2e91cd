"""The sections of the settings, and the frozen tree of them.

The docstring of a field is its text on the reference page and in `--help`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from autellix_backend.core.balance import BALANCER_NAMES, DEFAULT_BALANCER
from autellix_backend.core.balance.locality import DEFAULT_THRESHOLD_TOKENS
from autellix_backend.core.config import (
    ADMISSION_KINDS,
    MAX_PERIOD_STEPS,
    PREEMPTION_KINDS,
    SchedulerConfig,
)
from autellix_backend.core.names import LIVE_POLICY_NAMES
from autellix_backend.environment import default_cache_dir
from autellix_backend.settings.section import section
from autellix_backend.settings.types import (
    MEMORY_URL,
    NUMBER,
    ApiKey,
    Arguments,
    Bounds,
    EngineUrls,
    Folder,
    Host,
    HostGib,
    HostNames,
    HttpUrl,
    KeyPrefix,
    Names,
    NonNegativeFloat,
    NonNegativeInt,
    Origins,
    Port,
    PositiveFloat,
    PositiveInt,
    PositiveOrInfinite,
    RayAddress,
    Replicas,
    Secret,
    StoreUrl,
    one_of,
)

AUTO_KIND = "auto"
EngineKindChoice = Literal["auto", "vllm", "sglang", "openai"]
ENGINE_KINDS: tuple[str, ...] = get_args(EngineKindChoice)
PAGE_CHOICES = ("auto", "on", "off")
LOG_FORMATS = ("text", "json")

_DEFAULTS = SchedulerConfig()


@section("gateway")
class GatewaySettings:
    """The HTTP server, identity and tenants."""

    host: Host = "127.0.0.1"
    """address to listen on"""
    port: Port = 8000
    """port to listen on, 0 for any free one"""
    hosts: HostNames = ()
    """further names of the gateway, such as `host.docker.internal`. A gateway on loopback without keys, or
    with such a list, refuses any other `Host` with 403"""
    open: bool = False
    """whether clients on other machines need no key, so that everyone who reaches the address may make calls
    and see all programs; otherwise a gateway beyond loopback needs `gateway.tenants_file`"""
    origins: Origins = ()
    """origins of other sites and desktop applications whose pages may call the gateway, such as
    `https://chat.example.com`; pages of any other origin get 403"""
    console: bool = True
    """whether there is a [console](../reference/http-api.md#without-the-console): lists of programs, `why`,
    history, overview, events, replay and the live page"""
    page: Annotated[str, one_of(PAGE_CHOICES)] = "auto"
    """whether the [live page](../guides/observability.md#the-live-page) is at `/autellix/`: `on`, `off`, or
    `auto`, where only this machine reaches it or keys are needed"""
    program_idle_s: PositiveFloat = 600.0
    """time after which a program without a running call leaves the table, s"""
    recovery_wait_s: NonNegativeFloat = 60.0
    """how long a call waits for an engine that is down or restarts, s; then 503"""
    shutdown_grace_s: NonNegativeFloat = 300.0
    """how long running calls may continue after SIGTERM, s: an agent's call may take minutes"""
    prefix_diagnosis: bool = True
    """whether calls that find less of their program's context in the prefix cache than there was are
    [explained](../guides/observability.md#broken-prefixes)"""
    strict_identity: bool = False
    """whether a call that names a program needs the token of its session"""
    token_secret: Secret | None = None
    """secret that signs session tokens; unset, `autellix serve` generates one and keeps it in
    `AUTELLIX_CACHE_DIR`"""
    tenants_file: Folder | None = None
    """[TOML file of tenants](../guides/self-hosting.md) with their API keys, weights and limits; unset
    turns authentication off"""
    max_body_bytes: PositiveInt = 64 * 2**20
    """largest request body, bytes; a larger one gets 413"""
    max_answer_bytes: PositiveInt = 2**26
    """largest answer of an engine, or last event of a stream, bytes; then 502"""
    upstream_timeout_s: PositiveFloat = 3600.0
    """how long one call may take at the engine, s; then 504"""
    report_wait_s: NonNegativeFloat = 2.0
    """how long an answered call waits for the engine's report, s; then its receipt goes out without"""


@section("engine")
class EngineSettings:
    """The engines: replicas that we start (`model`), running servers (`urls`), or both; see
    [several engines](../guides/multi-engine.md)."""

    model: str | None = None
    """folder or Hugging Face id of the model to serve, `smollm2` for a small one for CPUs; also `MODEL` of
    `autellix serve`"""
    served_model_name: str | None = None
    """name that clients use for the model"""
    max_num_seqs: PositiveInt | None = None
    """batch size of the engine in sequences; unset is vLLM's default"""
    kv_host_gib: HostGib | None = None
    """host memory of each replica for [KV blocks](../guides/sizing.md#host-memory-for-the-kv-cache), GiB:
    `auto` shares half of what is free at the start; unset, as 0, offloads nothing"""
    extra_args: Arguments = ()
    """further arguments for the vLLM server, as `--engine-args='--dtype float32'` (in the file: a list)"""
    replicas: Replicas = 1
    """number of engines of the model to start, each on its own cores or GPUs"""
    urls: EngineUrls = ()
    """running OpenAI-compatible servers; the option may be repeated (in the file: a list)"""
    kind: Annotated[str, one_of(ENGINE_KINDS)] = AUTO_KIND
    """what runs at `urls`, which decides the fields it receives; `auto` asks each server"""
    must_answer: bool = True
    """whether the start fails if one of `urls` does not answer; if `false`, it gets calls once it answers"""
    api_key: ApiKey | None = None
    """API key that engines receive in place of the client's"""
    report_secret: Secret | None = None
    """secret shared with the engines at `urls` for [their reports](../guides/cluster.md#reports); engines
    read the same variable"""
    max_in_flight: PositiveInt | None = None
    """calls in flight at an engine without our scheduler; the others wait in the gateway; unset learns the
    number from a vLLM server's metrics, and sends all to any other"""
    kv_tokens: PositiveInt | None = None
    """KV memory of an engine without our scheduler, tokens: the gateway then [admits
    programs](../scheduling.md) for it; unset reads it from a vLLM server, and admits all elsewhere"""
    startup_timeout_s: PositiveFloat = 3600.0
    """how long an engine may take to start, s"""
    state_dir: Folder | None = None
    """folder of generated models, logs, sockets and the generated secret; unset is `AUTELLIX_CACHE_DIR`, by
    default `~/.cache/autellix`"""
    max_restarts: NonNegativeInt = 5
    """restarts of a dead or hanging replica within ten minutes before it counts as failed; 0 for none"""
    stall_timeout_s: PositiveFloat | None = 600.0
    """how long a replica with calls may send no report before it counts as hung, s: far more than its
    longest step"""

    @property
    def cache_dir(self) -> Path:
        """Folder of what is generated."""
        return self.state_dir or default_cache_dir()

    @property
    def log_dir(self) -> Path:
        """Folder of the engines' logs."""
        return self.cache_dir / "logs"


@section("balancer")
class BalancerSettings:
    """The choice among several engines: see [several engines](../guides/multi-engine.md)."""

    name: Annotated[str, one_of(BALANCER_NAMES)] = DEFAULT_BALANCER
    """rule that chooses a call's engine; `locality` is Algorithm 2 of the paper"""
    threshold_tokens: NonNegativeInt = DEFAULT_THRESHOLD_TOKENS
    """prompt tokens from which `locality` keeps a program's calls on one engine"""


@section("scheduler")
class SchedulerSettings:
    """The order of calls in the engine, and in the gateway for engines without our scheduler."""

    # The other fields of SchedulerConfig are constants to operators: `token_s` only scales `bounds`;
    # `quanta`, `demotes`, `service` and `kv_share` are for studies.
    policy: Annotated[str, one_of(LIVE_POLICY_NAMES)] = _DEFAULTS.policy
    """[scheduling](../scheduling.md) policy: how a program's past orders its next call"""
    bounds: Bounds = _DEFAULTS.bounds
    """upper bounds of attained service of all levels but the last, s; positive and rising"""
    beta: PositiveOrInfinite = _DEFAULTS.beta
    """starvation threshold: a call is promoted once wait/service reaches it; `inf` turns it off"""
    admission: Annotated[str, one_of(ADMISSION_KINDS)] = _DEFAULTS.admission
    """which [programs may run](../scheduling.md): those whose contexts fit into KV memory together
    (`working_set`), or all (`none`); `auto` is the former with policy `boost`"""
    idle_s: PositiveFloat = _DEFAULTS.idle_s
    """how long an active program without a call keeps its share of KV memory at most, s"""
    boost: NonNegativeFloat = _DEFAULTS.boost
    """strength of policy `boost`, as a share of the mean response time of programs: higher favours short
    programs; 0 is order of arrival"""
    preemption: Annotated[str, one_of(PREEMPTION_KINDS)] = _DEFAULTS.preemption
    """when a running call yields its slot to a better one: `priced` where that gains [more than it
    costs](../scheduling.md#what-a-preemption-costs), `always` as in the paper, or `never`"""
    period_steps: Annotated[int, Field(ge=1, le=MAX_PERIOD_STEPS), NUMBER] = _DEFAULTS.period_steps
    """engine steps between two decisions, for engines with our scheduler: the paper's [multi-step
    scheduling](../scheduling.md#decisions-every-n-steps)"""

    def __post_init__(self) -> None:
        self.config()

    def config(self) -> SchedulerConfig:
        """Return the scheduler's configuration.

        Raises:
            ValueError: if it breaks a rule over several fields; the first word names the field.
        """
        return SchedulerConfig(**asdict(self))


@section("limits")
class TenantLimits:
    """Limits of each tenant, and of all calls where authentication is off: see
    [limits](../guides/self-hosting.md#limits). Unset is no limit."""

    max_calls: PositiveInt | None = None
    """calls between arrival and settlement"""
    max_call_bytes: PositiveInt | None = None
    """total bytes of the bodies of those calls, from the first byte on"""
    requests_per_minute: PositiveFloat | None = None
    """requests per minute; the bucket holds one minute's worth"""
    tokens_per_minute: PositiveFloat | None = None
    """prompt and output tokens per minute, charged when a call is settled"""
    program_tokens: PositiveInt | None = None
    """prompt and output tokens of one program"""
    day_tokens: PositiveInt | None = None
    """prompt and output tokens per day (UTC)"""
    max_output_tokens: PositiveInt | None = None
    """output tokens of one request, over all its answers; the default of one that asks for none"""


@section("observe")
class ObserveSettings:
    """Records of calls beside the [metrics](metrics.md): ids, counts and times, never content."""

    call_log: Folder | None = None
    """file to which one JSON line per settled call is appended; `-` is standard error"""
    record_dir: Folder | None = None
    """folder in which each replica that we start [records its scheduler's
    events](../guides/failures.md#send-us-a-minute), to replay them elsewhere"""
    log_format: Annotated[str, one_of(LOG_FORMATS)] = "text"
    """form of [the gateway's log](../guides/observability.md#the-gateways-log) on standard error: `text`, or
    one `json` object in each line"""
    otlp_endpoint: HttpUrl | None = None
    """OpenTelemetry collector that receives spans of programs and calls, and GenAI metrics, over HTTP; unset
    follows OpenTelemetry's variables, such as `OTEL_EXPORTER_OTLP_ENDPOINT`"""
    program_names: Names = ()
    """names of programs with separate [metrics](metrics.md#programs); others count as `other`"""


@section("store")
class StoreSettings:
    """The process table, and [sharing it](../guides/cluster.md) between gateways."""

    url: StoreUrl = MEMORY_URL
    """process table: `memory://`, or a Redis that gateways share, as
    `redis://USER:PASSWORD@HOST:PORT/DB`, `rediss://…` (TLS), `unix://…`, or
    `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE` for the master that Sentinels name"""
    key_prefix: KeyPrefix = "autellix"
    """prefix of all keys, in braces; gateways with the same prefix share one table"""
    timeout_ms: PositiveInt = 1000
    """how long a call may wait for the store before the gateway continues without it, ms"""

    @property
    def is_shared(self) -> bool:
        """Whether several gateways may use the table."""
        return self.url != MEMORY_URL


@section("ray")
class RaySettings:
    """Replicas on the nodes of a [Ray cluster](../guides/cluster.md#ray)."""

    address: RayAddress | None = None
    """`auto`, as `--ray` alone, uses this machine's cluster, `HOST:PORT` the cluster with that head; unset
    uses no Ray"""
    cpus: NonNegativeFloat = 1.0
    """CPUs of a node for each engine, which computes in as many threads without a GPU"""


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
