"""Defines the callback handler for runs and tools."""
# ruff: noqa: ARG002 - LangChain defines the parameters of its handlers

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.callbacks.base import BaseCallbackHandler

from autellix.integration import safely
from autellix_langchain._runs import name_branch, open_runs

if TYPE_CHECKING:
    from uuid import UUID


class AutellixCallback(BaseCallbackHandler):
    """Makes each root run of a chain or graph a program, and records tools with their durations.

    It ignores model calls: the client annotates them. All instances are equal and share their state, so
    installing it twice is harmless.
    """

    run_inline = True
    """Run in the task that starts the run, whose program thread it needs; it never waits."""
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
        metadata = metadata or {}
        safely(open_runs.start, run_id, name, metadata.get("thread_id"))
        if name is not None and name == metadata.get("langgraph_node"):
            safely(name_branch, name)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Close the program that the run has opened."""
        safely(open_runs.end, run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Close the program that the run has opened."""
        safely(open_runs.end, run_id)

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Record the start of the tool."""
        safely(open_runs.start_tool, run_id, name or (serialized or {}).get("name") or "tool")

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the tool and its duration."""
        safely(open_runs.end_tool, run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the tool and its duration, which count although it failed."""
        safely(open_runs.end_tool, run_id)

    def on_interrupt(self, event: Any) -> None:
        """Do nothing: LangGraph calls this where a graph pauses, on every handler."""

    def on_resume(self, event: Any) -> None:
        """Do nothing: LangGraph calls this where a graph continues, on every handler."""


AUTOMATIC = AutellixCallback()
"""The handler of every callback manager."""
