"""Command-line options that stand for settings: one table, defaults read from the settings themselves."""

from __future__ import annotations

import argparse
from pathlib import Path

from autellix_backend.core.balance import BALANCER_NAMES
from autellix_backend.core.config import PREEMPTION_KINDS
from autellix_backend.core.policies import LIVE_POLICY_NAMES
from autellix_backend.settings import ANY_CLUSTER, Given, Layer, Settings, build_settings, merged_layer

PREFIX = "setting:"

OPTIONS = {
    "--host": ("gateway.host", "address to listen on"),
    "--port": ("gateway.port", "port to listen on, 0 for any free one"),
    "--record": ("gateway.record_path", "append each ended program to this trace file: counts, never text"),
    "--tenants": ("gateway.tenants_file", "let in only the tenants of this TOML file, by their API keys"),
    "--call-log": ("observe.call_log", "append one JSON line per call to this file, - for standard error"),
    "--otlp-endpoint": ("observe.otlp_endpoint", "send one span per call to this OpenTelemetry collector"),
    "--store": ("store.url", "process table: memory://, or the redis://… that several gateways share"),
    "--policy": ("scheduler.policy", f"scheduling policy: {', '.join(LIVE_POLICY_NAMES)}"),
    "--bounds": ("scheduler.bounds", "upper bounds of the queue levels, in seconds of attained service"),
    "--quanta": ("scheduler.quanta", "time quantum of each level in seconds; by default the level's width"),
    "--beta": ("scheduler.beta", "starvation threshold: promote a call once wait/service reaches it"),
    "--period-steps": ("scheduler.period_steps", "decide once every so many engine steps"),
    "--preemption": (
        "scheduler.preemption",
        f"when a running call makes room: {', '.join(PREEMPTION_KINDS)}",
    ),
    "--max-num-seqs": ("engine.max_num_seqs", "batch size of the engine in sequences"),
    "--kv-host-gib": ("engine.kv_host_gib", "host memory in GiB for KV blocks of each engine, see its guide"),
    "--kv-events": ("engine.kv_events", "let the balancer go by what the engines' caches hold"),
    "--kv-events-port": ("engine.kv_events_port", "port at which running vLLM engines publish that"),
    "--served-model-name": ("engine.served_model_name", "name that clients use for the model"),
    "--replicas": (
        "engine.replicas",
        "how many engines of the model to start, on cores or GPUs of their own",
    ),
    "--ray": ("ray.address", "place the engines over a Ray cluster: auto, or HOST:PORT of its head"),
    "--engine": ("engine.urls", "send calls to this running server too; may be given several times"),
    "--balancer": ("balancer.name", f"which engine gets a call: {', '.join(BALANCER_NAMES)}"),
    "--engine-url": ("engine.url", "use this running OpenAI-compatible server instead of starting one"),
    "--engine-args": ("engine.extra_args", "further vLLM arguments, as --engine-args='--dtype float32'"),
    "--startup-timeout": ("engine.startup_timeout_s", "how many seconds the engine may take to start"),
}
"""Dotted field and help by option."""
REPEATED = frozenset({"--engine"})
IMPLIED = {"--ray": ANY_CLUSTER, "--kv-events": "true"}
"""What an option means that is given without a value."""


def add_setting_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Declare `--config` and the named options, all when none is named."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file of settings")
    defaults = Settings()
    for name in names or OPTIONS:
        field_name, text = OPTIONS[name]
        default = _shown(_read(defaults, field_name))
        parser.add_argument(
            name,
            dest=PREFIX + field_name,
            action="append" if name in REPEATED else "store",
            nargs="?" if name in IMPLIED else None,
            const=IMPLIED.get(name),
            metavar=name[2:].upper().replace("-", "_"),
            help=f"{text}{default}".replace("%", "%%"),
        )


def settings_from_args(args: argparse.Namespace, extra: dict[str, Given] | None = None) -> Settings:
    """Build the settings from file, environment and the options that were given, in rising rank.

    Raises:
        SettingsError: naming the field and the option, variable or file it came from.
    """
    return build_settings(layer_from_args(args, extra))


def layer_from_args(args: argparse.Namespace, extra: dict[str, Given] | None = None) -> Layer:
    """Return what file, environment and options give, with its sources; raises as settings_from_args()."""
    options = {field_name: option for option, (field_name, _) in OPTIONS.items()}
    given = {
        key.removeprefix(PREFIX): Given(value, options[key.removeprefix(PREFIX)])
        for key, value in vars(args).items()
        if key.startswith(PREFIX) and value is not None
    }
    return merged_layer(file=args.config, command_line=given | (extra or {}))


def _read(settings: Settings, field_name: str) -> object:
    section, _, key = field_name.partition(".")
    return getattr(getattr(settings, section), key)


def _shown(value: object) -> str:
    if value is None or value == ():
        return ""
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f" (default {text})"
