"""Child processes that serve a model, ended with their parent: `autellix serve`, or vLLM without Autellix."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from autellix_backend.engines import guard
from autellix_backend.engines.replica import free_port, generated_model
from autellix_backend.engines.vllm_command import (
    VLLM_SERVER,
    device_arguments,
    environment_defaults,
    is_cpu_engine,
)
from autellix_backend.errors import CommandError
from autellix_backend.settings import child_environment

READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 60.0
GUARD_MARGIN_S = 5.0
POLL_S = 0.2
LOCAL = "127.0.0.1"
_READY_URL = re.compile(r"(http://[\w.\-]+:\d+)/v1\b")
_TAIL_LINES = 20


class BackendError(CommandError):
    """A backend did not start, or died; carries the end of its log."""

    exit_code = 1


class ServerProcess:
    """One running server, as a context manager that always stops it."""

    ready_path: str

    def __init__(
        self, name: str, command: Sequence[str], log_path: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log_path = log_path
        self.base_url = ""
        """The server's root; valid after `wait_ready`."""
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def launch(self) -> None:
        """Start the child without waiting for it."""
        self._process = guard.start(self._command, STOP_TIMEOUT_S, self.log_path, self._environment)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when the child answers at its address.

        Raises:
            BackendError: if it dies or takes longer.
        """
        assert self._process is not None
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise BackendError(
                    f"backend {self.name} ended with {self._process.returncode}\n{self.log_tail()}"
                )
            url = self._address()
            if url is not None and _answers(url + self.ready_path):
                self.base_url = url
                return
            time.sleep(POLL_S)
        raise BackendError(f"backend {self.name} was not ready after {timeout_s:g} s\n{self.log_tail()}")

    def stop(self) -> None:
        """End the child and wait for it; may be called twice."""
        if self._process is None:
            return
        # Its guard ends it when this pipe closes, as when this process dies.
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S + GUARD_MARGIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

    def model(self) -> str:
        """Ask the backend for the name of its model."""
        with urllib.request.urlopen(self.base_url + "/v1/models", timeout=30) as answer:
            return str(json.load(answer)["data"][0]["id"])

    def log_tail(self) -> str:
        """Return the last lines of the child's log."""
        return "\n".join(self._log().splitlines()[-_TAIL_LINES:])

    def _log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self.log_path.read_text(encoding="utf-8", errors="replace")
        return ""

    def _address(self) -> str | None:
        raise NotImplementedError


class BackendProcess(ServerProcess):
    """`autellix serve`, with settings from a file."""

    ready_path = "/readyz"

    def __init__(
        self, name: str, model: str | None, settings: Mapping[str, Mapping[str, Any]], out_dir: Path
    ) -> None:
        self.settings_path = out_dir / f"backend-{name}.toml"
        self.settings_path.write_text(to_toml(settings), encoding="utf-8")
        command = [sys.executable, "-m", "autellix_backend.cli.main", "serve"]
        command += [*([] if model is None else [model]), "--config", str(self.settings_path)]
        super().__init__(name, command, out_dir / f"backend-{name}.log")

    @property
    def engine_url(self) -> str:
        """Ask the gateway for the address of its first engine."""
        with urllib.request.urlopen(f"{self.base_url}/autellix/v1/engines", timeout=30) as answer:
            return str(json.load(answer)["engines"][0]["base_url"])

    def _address(self) -> str | None:
        found = _READY_URL.search(self._log())
        return found.group(1) if found else None


class PlainBackend(BackendProcess):
    """vLLM without our scheduler, behind a gateway that passes all calls on in the order of their arrival.

    So a call takes the same way as to an engine with our scheduler.
    """

    def __init__(self, name: str, model: str, engine: Mapping[str, Any], out_dir: Path) -> None:
        """Prepare both; the arguments are those of PlainEngine."""
        self._engine = PlainEngine(name, model, engine, out_dir)
        # As `openai`: of a vLLM, the gateway would learn how many calls it should send.
        settings: dict[str, dict[str, Any]] = {
            "gateway": {"port": 0},
            "engine": {"urls": [self._engine.url], "kind": "openai"},
            "scheduler": {"policy": "fcfs", "admission": "none"},
        }
        super().__init__(name, None, settings, out_dir)

    @property
    def engine_url(self) -> str:
        """Return the root of the vLLM server."""
        return self._engine.url

    def launch(self) -> None:
        """Start vLLM; `wait_ready` starts the gateway."""
        self._engine.launch()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait for vLLM, then for the gateway."""
        self._engine.wait_ready(timeout_s)
        super().launch()
        super().wait_ready(timeout_s)

    def stop(self) -> None:
        """End both."""
        super().stop()
        self._engine.stop()


class PlainEngine(ServerProcess):
    """vLLM as its users start it, without our scheduler."""

    ready_path = "/health"

    def __init__(self, name: str, model: str, engine: Mapping[str, Any], out_dir: Path) -> None:
        """Prepare a server on a free port.

        Args:
            name: Its name, which its log has too.
            model: A model as `autellix serve` takes it, those included that a package generates.
            engine: `max_num_seqs` and `extra_args` of the settings of engines.
            out_dir: The folder of the log.
        """
        generated, names = generated_model(model), list[str]()
        if generated is not None:
            folder, served_name = generated.load()(None)
            model, names = str(folder), ["--served-model-name", served_name]
        extra, is_cpu, cores = engine["extra_args"], is_cpu_engine(), len(os.sched_getaffinity(0))
        environment = child_environment(environment_defaults(model, extra, is_cpu=is_cpu, cores=cores))
        port = free_port(LOCAL)
        self.url = f"http://{LOCAL}:{port}"
        command = [*VLLM_SERVER, "--model", model, *names, "--host", LOCAL, "--port", str(port)]
        command += ["--max-num-seqs", str(engine["max_num_seqs"]), "--enable-prompt-tokens-details"]
        command += [*device_arguments(model, extra, environment, is_cpu=is_cpu), *extra]
        super().__init__(name, command, out_dir / f"vllm-{name}.log", environment)

    def _address(self) -> str:
        return self.url


def to_toml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sections of plain values as TOML, in which all values but infinity look as in JSON."""
    lines: list[str] = []
    for section, values in settings.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml_value(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _toml_value(value: object) -> str:
    return "inf" if value == math.inf else json.dumps(value)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
