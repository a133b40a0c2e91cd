"""Switches the client on and off: what `import autellix` changes in the process, and how it is reverted."""

from __future__ import annotations

import atexit
import os
import threading
from functools import partial

from autellix import _environment
from autellix._faults import log_debug, safely
from autellix._instrument.patches import ImportHook, Patches
from autellix._programs import running
from autellix._programs.registry import programs
from autellix._propagation import propagation
from autellix._scopes.scopes import quote_name
from autellix._sessions.backends import backends
from autellix._sessions.keeper import keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

ROOT_RUNS = {
    "ag2.agent": "Agent._turn_scope",
    "agent_framework._agents": "Agent.run",
    "agent_framework._workflows._functional": "FunctionalWorkflow.run",
    "agent_framework._workflows._workflow": "Workflow.run",
    "agents.run": "AgentRunner.run:starting_agent AgentRunner.run_streamed:starting_agent",
    "agno.agent.agent": "Agent.run Agent.arun",
    "agno.team.team": "Team.run Team.arun",
    "agno.workflow.workflow": "Workflow.run Workflow.arun",
    "crewai.agent.core": "Agent.kickoff Agent.akickoff",
    "crewai.crew": "Crew.kickoff Crew.akickoff",
    "crewai.flow.runtime": "Flow.kickoff_async",
    "dspy.primitives.module": "Module.__call__ Module.acall",
    "google.adk.runners": "Runner.run_async Runner.run_live",
    "haystack.components.agents.agent": "Agent.run Agent.run_async",
    "haystack.core.pipeline.pipeline": "Pipeline.run Pipeline.run_async_generator",
    "pydantic_ai.agent": "Agent.iter",
    "semantic_kernel.agents.chat_completion.chat_completion_agent": (
        "ChatCompletionAgent.get_response ChatCompletionAgent.invoke ChatCompletionAgent.invoke_stream"
    ),
    "smolagents.agents": "MultiStepAgent.run",
    "strands.agent.agent": "Agent.stream_async",
    "strands.multiagent.graph": "Graph.stream_async",
    "strands.multiagent.swarm": "Swarm.stream_async",
    "workflows.workflow": "Workflow.run",
}
"""The methods of each module through which every run passes, with the argument that has the name, if any.

The innermost such method is patched: a wrapper further out would hide the caller's frame, from which some
frameworks take an agent's name.
"""
INSTRUMENTORS = {
    "anthropic._base_client": "autellix._instrument.openai:instrument_client",
    "anthropic._streaming": "autellix._instrument.openai:instrument_streams",
    "aiohttp.web_protocol": "autellix._instrument.web_servers:instrument_requests",
    "anyio._backends._asyncio": "autellix._instrument.spawns:instrument_anyio",
    "asgiref.current_thread_executor": "autellix._instrument.spawns:instrument_asgiref",
    "asyncio": "autellix._instrument.spawns:instrument_eager_tasks",
    "asyncio.base_events": "autellix._instrument.spawns:instrument_asyncio",
    "crewai.flow.flow": "autellix._instrument.joins:instrument_flows",
    "celery.signals": "autellix._instrument.jobs:instrument_celery",
    "concurrent.futures._base": "autellix._instrument.spawns:instrument_futures",
    "concurrent.futures.process": "autellix._instrument.processes:instrument_process_pool",
    "concurrent.futures.thread": "autellix._instrument.spawns:instrument_pool",
    "distributed.client": "autellix._instrument.jobs:instrument_dask",
    "django.core.handlers.asgi": "autellix._instrument.web_servers:instrument_requests",
    "django.core.handlers.wsgi": "autellix._instrument.web_servers:instrument_requests",
    "dramatiq.actor": "autellix._instrument.jobs:instrument_dramatiq",
    "dspy._vendor.lm15.transports": "autellix._instrument.other_clients:instrument_dspy",
    "flask.app": "autellix._instrument.web_servers:instrument_requests",
    "gevent": "autellix._instrument.greenlets:instrument_gevent",
    "gevent.pool": "autellix._instrument.greenlets:instrument_gevent_pool",
    "gradio.queueing": "autellix._instrument.web_servers:instrument_requests",
    "greenlet": "autellix._instrument.greenlets:instrument_greenlets",
    "httpx._client": "autellix._instrument.httpx:instrument_redirects",
    "httpx2._client": "autellix._instrument.httpx:instrument_redirects",
    "joblib.externals.loky.process_executor": "autellix._instrument.processes:instrument_process_pool",
    "litellm.llms.custom_httpx.http_handler": "autellix._instrument.other_clients:instrument_litellm",
    "loky.process_executor": "autellix._instrument.processes:instrument_process_pool",
    "multiprocessing.pool": "autellix._instrument.processes:instrument_multiprocessing_pool",
    "multiprocessing.process": "autellix._instrument.processes:instrument_processes",
    "openai._base_client": "autellix._instrument.openai:instrument_client",
    "openai._streaming": "autellix._instrument.openai:instrument_streams",
    "starlette.applications": "autellix._instrument.web_servers:instrument_requests",
    "streamlit.runtime.scriptrunner.script_runner": "autellix._instrument.web_servers:instrument_requests",
    "threading": "autellix._instrument.spawns:instrument_threading",
    "trio._core._run": "autellix._instrument.spawns:instrument_trio",
    "trio._core._thread_cache": "autellix._instrument.spawns:instrument_trio_threads",
    "uvloop": "autellix._instrument.spawns:instrument_uvloop",
    "vllm.v1.engine.async_llm": "autellix._instrument.vllm:instrument_engine",
    "vllm.v1.engine.llm_engine": "autellix._instrument.vllm:instrument_engine",
    "autogen_agentchat.agents": "autellix_autogen._teams:instrument_agents",
    "autogen_agentchat.teams": "autellix_autogen._teams:instrument_teams",
    "autogen_core": "autellix_autogen._runtime:instrument_core",
    "autogen_ext.models.openai": "autellix_autogen._runtime:instrument_model_client",
    "langchain_core.callbacks.base": "autellix_langchain._patches:instrument_callbacks",
    "langchain_core.runnables.base": "autellix_langchain._patches:instrument_runnables",
    "langchain_core.runnables.fallbacks": "autellix_langchain._patches:instrument_fallbacks",
    "langchain_openai.chat_models.base": "autellix_langchain._patches:instrument_model",
    "langgraph._internal._future": "autellix_langchain._patches:instrument_eager_tasks",
    "langgraph.pregel.main": "autellix_langchain._patches:instrument_graphs",
    "langgraph.pregel._runner": "autellix_langchain._patches:instrument_steps",
    "langgraph.store.base.batch": "autellix_langchain._patches:instrument_stores",
    **dict.fromkeys(ROOT_RUNS, "autellix._instrument.root_runs:instrument_root_runs"),
}
"""The function that patches each module, as `module:function(patches, module)`; imported with the module."""
RAW_HTTP = dict.fromkeys(("httpx._client", "httpx2._client"), "autellix._instrument.httpx:instrument_httpx")


class _Switch:
    """The patches of this process.

    Only `instrument` and `uninstrument` take the lock; a signal handler that calls one may have interrupted
    the other, so it is re-entrant.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.has_raw_http = False
        self.has_fork_hooks = False
        self.patches = Patches()
        self.hook = ImportHook()


_switch = _Switch()


def instrument(*, raw_http: bool = False) -> None:
    """Link threads, tasks and processes to their programs and annotate clients; repeating it is harmless.

    With `AUTELLIX_DISABLED=1` in the environment this does nothing.

    Args:
        raw_http: also annotate calls that the program makes to a backend with a bare `httpx` client.
    """
    with _switch.lock:
        if _environment.is_set(_environment.DISABLED_VARIABLE):
            return
        if not propagation.is_on:
            propagation.is_on = True
            _switch.has_raw_http = False
            _patch_when_imported(INSTRUMENTORS)
            atexit.register(keeper.end_at_exit)
            _register_fork_hooks()
        if (raw_http or _environment.is_set(_environment.RAW_HTTP_VARIABLE)) and not _switch.has_raw_http:
            _switch.has_raw_http = True
            _patch_when_imported(RAW_HTTP)


def uninstrument() -> None:
    """Restore every original and end the sessions in the background; repeating it is harmless."""
    with _switch.lock:
        if not propagation.is_on:
            return
        propagation.is_on = False
        _switch.hook.remove()
        _switch.patches.revert()
        atexit.unregister(keeper.end_at_exit)
        keeper.leave_all()


def missing_methods() -> list[str]:
    """List the methods that the client would patch, and that the loaded versions of libraries lack."""
    return list(_switch.patches.missing)


def configure(base_url: str | Iterable[str] | None = None) -> None:
    """Set the backends that get headers; with None these are the hosts that answer as Autellix.

    Args:
        base_url: one or several addresses, such as "http://gateway:8000/v1".

    Raises:
        ValueError: if an address is malformed.
    """
    addresses = _environment.parse_base_urls(base_url or ())
    backends.configure(addresses)
    keeper.leave_all()


def start() -> None:
    """Configure the client from the environment, and switch it on."""
    backends.configure(_environment.configured_backends())
    name, program_id = _environment.program_of_process()
    programs.name_process(None if name is None else quote_name(name), program_id)
    if programs.implicit.is_implicit:
        programs.implicit.name = safely(_script_name)
    instrument()


def _script_name() -> str | None:
    return quote_name(_environment.script_name() or "")


def _patch_when_imported(instrumentors: Mapping[str, str]) -> None:
    for name, instrumentor in instrumentors.items():
        _switch.hook.when_imported(name, partial(_patch, instrumentor))


def _patch(instrumentor: str, module: ModuleType) -> None:
    package, _, function = instrumentor.partition(":")
    try:
        # Not importlib: loading it takes as long as several of our modules.
        patching = __import__(package, fromlist=(function,))
    except ImportError as error:
        # An integration is not installed, or is for another version of the framework.
        log_debug("%s is not instrumented: %s", module.__name__, error)
        return
    try:
        getattr(patching, function)(_switch.patches, module)
    except AttributeError as error:
        _switch.patches.note_missing(f"{module.__name__}: {error}")


def _register_fork_hooks() -> None:
    # Once: the interpreter cannot unregister them. Without a session they take microseconds.
    if not _switch.has_fork_hooks and hasattr(os, "register_at_fork"):
        _switch.has_fork_hooks = True
        os.register_at_fork(
            before=keeper.before_fork,
            after_in_parent=keeper.after_fork_in_parent,
            after_in_child=_after_fork_in_child,
        )


def _after_fork_in_child() -> None:
    _switch.lock = threading.RLock()
    running.after_fork_in_child()
    keeper.after_fork_in_child()
