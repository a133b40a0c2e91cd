"""One frozen tree of settings, built at the edge from a file, the environment and the command line.

Later sources win: defaults, TOML file, environment, command line. A field has one dotted name everywhere:
`gateway.port` is `port` under `[gateway]` in the file and AUTELLIX_GATEWAY_PORT in the environment.
This is the only backend module that reads the environment.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autellix_backend.core.config import SchedulerConfig
from autellix_backend.core.policies import LIVE_POLICY_NAMES

ENV_PREFIX = "AUTELLIX_"
CACHE_DIR_VARIABLE = "AUTELLIX_CACHE_DIR"
MAX_PORT = 65535
MIN_SECRET_CHARACTERS = 16


class SettingsError(ValueError):
    """A setting that cannot be used; names the field, where it came from, and what is expected."""

    def __init__(
        self, field_name: str, problem: str, expected: str | None = None, source: str | None = None
    ) -> None:
        origin = f" (from {source})" if source else ""
        tail = f"; expected {expected}" if expected else ""
        super().__init__(f"{field_name}{origin}: {problem}{tail}")
        self.field = field_name
        self.problem = problem
        self.expected = expected


def default_cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder for generated models, logs and sockets: AUTELLIX_CACHE_DIR or ~/.cache/autellix."""
    environ = os.environ if environ is None else environ
    if chosen := environ.get(CACHE_DIR_VARIABLE):
        return Path(chosen).expanduser()
    root = environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "autellix"


def child_environment(defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a child process: ours, with `defaults` for what the user did not set."""
    return {**defaults, **os.environ}


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
    account_wait_s: float = 0.5
    """How long an answered call waits for the engine's accounting before its receipt goes without."""
    shutdown_grace_s: float = 10.0
    """How long running calls may go on after SIGTERM."""
    strict_identity: bool = False
    """Whether a call that names a program needs the token of its session; else it is believed."""
    token_secret: str | None = None
    """What session tokens are signed with; None lets `autellix serve` keep one in `engine.state_dir`."""
    record_path: Path | None = None
    """Where each program is recorded when it ends, as a line of counts and timings; None records nothing."""

    def __post_init__(self) -> None:
        _check(bool(self.host), "gateway.host", "is empty", "a host name or address")
        in_range = 0 <= self.port <= MAX_PORT
        _check(in_range, "gateway.port", f"is {self.port}", f"0 (any free port) to {MAX_PORT}")
        for name in ("heartbeat_s", "program_idle_s", "upstream_timeout_s", "connect_timeout_s"):
            _check_positive("gateway", self, name)
        _check_positive("gateway", self, "max_body_bytes")
        for name in ("account_wait_s", "shutdown_grace_s"):
            _check_positive("gateway", self, name, zero_allowed=True)
        is_plain = self.record_path is None or self.record_path.suffix != ".gz"
        _check(is_plain, "gateway.record_path", f"is {self.record_path}", "a name that does not end in .gz")
        is_long = self.token_secret is None or len(self.token_secret) >= MIN_SECRET_CHARACTERS
        _check(is_long, "gateway.token_secret", "is too short", f"{MIN_SECRET_CHARACTERS} characters or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine behind the gateway: one that we start (`model`), or a running one (`url`)."""

    model: str | None = None
    served_model_name: str | None = None
    max_num_seqs: int | None = None
    """The engine's batch size in sequences; None leaves vLLM's default."""
    extra_args: tuple[str, ...] = ()
    """Further arguments for the vLLM server, as given on its command line."""
    url: str | None = None
    startup_timeout_s: float = 900.0
    shutdown_timeout_s: float = 30.0
    """How long the engine's running calls may go on after it is told to stop."""
    state_dir: Path = field(default_factory=default_cache_dir)

    def __post_init__(self) -> None:
        if self.max_num_seqs is not None:
            _check_positive("engine", self, "max_num_seqs")
        _check_positive("engine", self, "startup_timeout_s")
        _check_positive("engine", self, "shutdown_timeout_s", zero_allowed=True)
        if self.url is not None:
            is_http = self.url.startswith(("http://", "https://"))
            _check(is_http, "engine.url", f"is {self.url!r}", "an http:// or https:// address")

    @property
    def log_dir(self) -> Path:
        """Folder of the engines' logs."""
        return self.state_dir / "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that one backend is built from."""

    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    def __post_init__(self) -> None:
        if self.scheduler.policy not in LIVE_POLICY_NAMES:
            problem = f"{self.scheduler.policy!r} works in the simulator only"
            raise SettingsError("scheduler.policy", problem, f"one of {_listed(LIVE_POLICY_NAMES)}")


SECTIONS: dict[str, type[Any]] = {
    "gateway": GatewaySettings,
    "engine": EngineSettings,
    "scheduler": SchedulerConfig,
}


@dataclass(frozen=True, slots=True)
class Given:
    """A raw value and the place it was given in, for messages."""

    value: object
    source: str


Layer = dict[str, Given]
"""Given values by dotted field name (`gateway.port`)."""


def load_settings(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    command_line: Mapping[str, Given] | None = None,
) -> Settings:
    """Build the tree from all sources; `environ` defaults to the process environment.

    Raises:
        SettingsError: for an unknown field, a value of the wrong type or out of range, or an unreadable file.
    """
    environ = os.environ if environ is None else environ
    layer = layer_from_file(file) if file is not None else {}
    layer |= layer_from_environment(environ)
    layer |= dict(command_line or {})
    return build_settings(layer)


def layer_from_file(path: Path) -> Layer:
    """Read a TOML file with the tables [gateway], [engine] and [scheduler]."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("--config", f"cannot read {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError("--config", f"{path} is not TOML: {error}") from error
    layer: Layer = {}
    for section, table in document.items():
        if section not in SECTIONS or not isinstance(table, dict):
            raise SettingsError(section, "is no table of settings", _listed(SECTIONS), str(path))
        layer |= {f"{section}.{key}": Given(value, str(path)) for key, value in table.items()}
    return layer


def layer_from_environment(environ: Mapping[str, str]) -> Layer:
    """Read AUTELLIX_GATEWAY_*, AUTELLIX_ENGINE_*, AUTELLIX_SCHEDULER_* and AUTELLIX_CACHE_DIR."""
    layer: Layer = {}
    if cache_dir := environ.get(CACHE_DIR_VARIABLE):
        layer["engine.state_dir"] = Given(cache_dir, CACHE_DIR_VARIABLE)
    for variable, text in environ.items():
        for section in SECTIONS:
            prefix = f"{ENV_PREFIX}{section.upper()}_"
            if variable.startswith(prefix):
                layer[f"{section}.{variable.removeprefix(prefix).lower()}"] = Given(text, variable)
    return layer


def build_settings(layer: Mapping[str, Given]) -> Settings:
    """Build the tree from one merged layer."""
    values: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    for name, given in layer.items():
        section, _, key = name.partition(".")
        hint = _field_types(SECTIONS[section]).get(key)
        if hint is None:
            known = _listed(_field_types(SECTIONS[section]))
            raise SettingsError(name, "is unknown", f"one of {known}", given.source)
        values[section][key] = _convert(name, given, hint)
    return Settings(**{section: _construct(section, values[section], layer) for section in SECTIONS})


def settings_to_mapping(settings: Settings) -> dict[str, dict[str, object]]:
    """Return the tree as plain JSON values, for `GET config` and logs."""
    gateway = dataclasses.asdict(settings.gateway)
    if settings.gateway.record_path is not None:
        gateway["record_path"] = str(settings.gateway.record_path)
    if settings.gateway.token_secret is not None:
        gateway["token_secret"] = "(hidden)"
    engine = dataclasses.asdict(settings.engine)
    engine |= {"state_dir": str(settings.engine.state_dir), "extra_args": list(settings.engine.extra_args)}
    return {"gateway": gateway, "engine": engine, "scheduler": dict(settings.scheduler.to_mapping())}


def _construct(section: str, values: dict[str, object], layer: Mapping[str, Given]) -> Any:
    try:
        return SECTIONS[section](**values)
    except SettingsError as error:
        given = layer.get(error.field)
        raise SettingsError(
            error.field, error.problem, error.expected, given.source if given else None
        ) from error
    except ValueError as error:
        # The core's configuration raises plain ValueErrors; their first word is the field.
        key, _, problem = str(error).partition(" ")
        name = f"{section}.{key}"
        raise SettingsError(name, problem, source=layer[name].source if name in layer else None) from error


def _field_types(section: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(section)
    return {item.name: hints[item.name] for item in dataclasses.fields(section)}


def _convert(name: str, given: Given, hint: Any) -> object:
    """Turn text (environment, command line) or a TOML value into the field's type."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if given.value is None and types.NoneType in options:
        return None
    target = next(option for option in options if option is not types.NoneType)
    try:
        return _converter(target)(given.value)
    except (ValueError, TypeError, KeyError):
        raise SettingsError(name, f"is {given.value!r}", _describe(target), given.source) from None


def _converter(target: Any) -> Callable[[Any], object]:
    if typing.get_origin(target) is tuple:
        item = typing.get_args(target)[0]
        return _words if item is str else lambda value: tuple(_to_float(part) for part in _parts(value))
    return {int: _to_int, float: _to_float, bool: _to_bool, Path: _to_path, str: _to_str}[target]


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, str):
        return [part for part in value.replace(",", " ").split(" ") if part]
    if isinstance(value, list | tuple):
        return value
    raise TypeError


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(shlex.split(value))
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return tuple(value)
    raise TypeError


def _to_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    return int(value)


def _to_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    number = float(value)
    if math.isnan(number):
        raise ValueError
    return number


def _to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[str(value).lower()]


def _to_path(value: object) -> Path:
    return Path(_to_str(value)).expanduser()


def _to_str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _describe(target: Any) -> str:
    if typing.get_origin(target) is tuple:
        of_words = typing.get_args(target)[0] is str
        return "a list of words" if of_words else "a list of numbers such as 0.1,0.4,1.6"
    names = {int: "a whole number", float: "a number", bool: "true or false", Path: "a path", str: "text"}
    return names[target]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _check(holds: bool, name: str, problem: str, expected: str) -> None:
    if not holds:
        raise SettingsError(name, problem, expected)


def _check_positive(section: str, owner: object, name: str, *, zero_allowed: bool = False) -> None:
    value = getattr(owner, name)
    holds = value >= 0 if zero_allowed else value > 0
    bound = "zero or more" if zero_allowed else "more than zero"
    _check(holds, f"{section}.{name}", f"is {value}", f"a number {bound}")
