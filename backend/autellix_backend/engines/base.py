"""The interface of engines, and the errors that they raise.

EngineError
├── EngineNotInstalledError   the engine's package is missing
├── ModelNotFoundError        the model is a path that holds none
├── EngineStartError          the engine died, or was not ready in time
└── EngineUnreachableError    a remote engine does not answer
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from autellix_backend.environment import CACHE_DIR_VARIABLE
from autellix_backend.errors import CommandError
from autellix_backend.install import ENGINE


class EngineError(CommandError):
    """An engine cannot serve; the message for users has the reason and the remedy."""


class EngineNotInstalledError(EngineError):
    """The engine's package cannot be imported in this environment."""

    def __init__(self, package: str) -> None:
        super().__init__(f"engine: {package} is not installed; expected {ENGINE}")


class StateFolderError(EngineError):
    """The folder for models and logs cannot be written."""

    def __init__(self, folder: Path, error: OSError) -> None:
        super().__init__(
            f"engine.state_dir: {folder} cannot be written ({error.strerror}); "
            f"expected a folder that can, in {CACHE_DIR_VARIABLE}"
        )


class ModelNotFoundError(EngineError):
    """The model is a path, and there is no model at it."""

    def __init__(self, model: str, problem: str) -> None:
        super().__init__(
            f"engine.model: {model!r} {problem}; expected a folder with a config.json, "
            "a Hugging Face id such as 'Qwen/Qwen3-0.6B', or 'smollm2' for a small one"
        )


class EngineStartError(EngineError):
    """The engine ended before it was ready, or was not ready in time; carries the end of its log.

    The message names the problem, the last line before it, and the log, which has the traceback.
    """

    exit_code = 1

    def __init__(self, problem: str, log_path: Path, log_tail: str, last_line: str | None = None) -> None:
        lines = [f"engine: {problem}"]
        if last_line is not None:
            lines.append(f"its last line: {last_line}")
        if str(log_path) not in problem:
            lines.append(f"its log is {log_path}")
        super().__init__("\n".join(lines))
        self.log_tail = log_tail


class EngineUnreachableError(EngineError):
    """A remote engine does not answer its health or models path."""

    def __init__(self, url: str, problem: str) -> None:
        self.what = f"engine.urls: {url} {problem}"
        """Which endpoint does not answer, and how."""
        super().__init__(
            # Only the first line is shown of an engine that is lost later.
            f"{self.what}; expected the root of a running OpenAI-compatible server\n"
            "With engine.must_answer = false the gateway starts without it"
        )


class EngineKind(enum.StrEnum):
    """The server whose fields an engine accepts."""

    VLLM = "vllm"
    SGLANG = "sglang"
    OPENAI = "openai"
    """OpenAI's fields only: a hosted API, which rejects unknown ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The result of a probe."""

    problem: str | None = None
    """The problem, as a predicate of the engine; None if it serves."""
    is_silent: bool = False
    """Whether it did not answer in time: it is busy, or it hangs."""


@runtime_checkable
class Engine(Protocol):
    """One OpenAI-compatible server that answers calls."""

    @property
    def name(self) -> str:
        """Its name in receipts and logs, unique within one gateway."""

    @property
    def base_url(self) -> str:
        """Root of its HTTP server (`http://127.0.0.1:8123`, no slash at the end); valid after start()."""

    @property
    def kind(self) -> EngineKind:
        """The kind whose fields its calls may have; known after start()."""

    @property
    def report_endpoints(self) -> Sequence[str]:
        """The ZeroMQ addresses at which its ranks may report calls; known after start()."""

    @property
    def kv_tokens(self) -> int | None:
        """Its KV memory in tokens, if it states that without sending snapshots; known after start()."""

    @property
    def is_owned(self) -> bool:
        """Whether start() creates the server's process, so that it can be killed and restarted."""

    async def start(self) -> None:
        """Return when the engine is ready to answer; a second call while it runs does nothing.

        Raises:
            EngineError: if it cannot be started or is not ready in time. Nothing is left running.
        """

    async def stop(self) -> None:
        """Drain the engine within a bound, then end it. May be called twice; never raises."""

    async def kill(self, reason: str) -> None:
        """Kill the engine and its calls; failure() then returns the reason.

        A server that we do not own keeps running.
        """

    async def probe(self, timeout_s: float) -> Health:
        """Probe the engine; each probed path may take the timeout. Never raises."""

    def is_alive(self) -> bool:
        """Return whether the engine started and has not ended since; cheap, without network I/O."""

    def failure(self) -> str | None:
        """Return in one line why a started engine is gone; None while it lives or after stop()."""
