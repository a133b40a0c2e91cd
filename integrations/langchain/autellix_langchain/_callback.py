"""Owns the handler that LangChain tells of runs and tools."""
# ruff: noqa: ARG002 - LangChain says what its handlers are given

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.callbacks.base import BaseCallbackHandler

from autellix.integration import safely
from autellix_langchain._runs import runs

if TYPE_CHECKING:
    from uuid import UUID


class AutellixCallback(BaseCallbackHandler):
    """Makes each root run of a chain or graph a program, and reports tools with their durations.

    It hears of no model call: those are annotated by the client of the model's API. All instances are equal
    and share what they know, so it does no harm where one has been installed already.
    """

    run_inline = True
    """In the task that starts the run, whose line of control it is about; it never waits for anything."""
    ignore_chat_model = True
    ignore_custom_event = True
    ignore_llm = True
    ignore_retriever = True
    ignore_retry = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AutellixCallback)

    def __hash__(self) -> int:
        return hash(AutellixCallback)

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Open a program if this is a root run."""
        name = name or (serialized or {}).get("name")
        safely(runs.start, run_id, name, (metadata or {}).get("thread_id"))

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Close the program that the run has opened."""
        safely(runs.end, run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Close the program that the run has opened."""
        safely(runs.end, run_id)

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Note when the tool starts."""
        safely(runs.start_tool, run_id, name or (serialized or {}).get("name") or "tool")

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the tool and its duration."""
        safely(runs.end_tool, run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the tool and its duration: it has taken its time all the same."""
        safely(runs.end_tool, run_id)


AUTOMATIC = AutellixCallback()
"""What every callback manager gets."""
