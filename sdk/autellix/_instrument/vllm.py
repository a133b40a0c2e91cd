"""Names the program in the requests that this process makes to a vLLM engine of its own, without a gateway.

Each prompt of `LLM.generate`, `chat` and `enqueue`, and of `AsyncLLM.generate`, passes
`OutputProcessor.add_request` in its caller's thread or task, once it is valid and before the engine core gets
it. Our scheduler reads the `extra_args` of its sampling parameters. The end of a program goes with the next
request to the same engine, and so reaches the scheduler in whatever process that runs.
"""

from __future__ import annotations

import copy
import json
from collections import deque

from autellix._ids import ids
from autellix._instrument.patches import before, on_init
from autellix._programs.progress import Progress
from autellix._programs.registry import programs
from autellix._programs.running import running_thread
from autellix._propagation import propagation
from autellix_wire import engine_args
from autellix_wire.ids import format_parents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from autellix._instrument.patches import Patches
    from autellix._programs.thread import ProgramThread

PLUGIN = "autellix_backend.vllm_plugin."
"""How the modules of our scheduler begin."""
ENDED = "_autellix_ended"
"""The attribute of an output processor before our scheduler: programs that ended since its last request."""
MAX_ENDED = 256
"""The most ended programs that a request may name."""
MAX_WAITING = 4096
"""The most that wait for a request; the engine forgets the programs of older ones once they are idle."""


def _mark(engine: Any) -> None:
    """Mark the output processor of a new engine, if that has our scheduler."""
    chosen = engine.vllm_config.scheduler_config.scheduler_cls
    # A dotted path, or a class, perhaps the user's, with ours among its bases.
    bases = getattr(chosen, "__mro__", (chosen,))
    if any(str(getattr(base, "__module__", base)).startswith(PLUGIN) for base in bases):
        setattr(engine.output_processor, ENDED, deque(maxlen=MAX_WAITING))


def _name_program(
    self: Any, request: Any, prompt: Any, parent_req: Any = None, request_index: int = 0, queue: Any = None
) -> None:
    """Add our arguments to a request inside a program, unless it names one itself.

    Args:
        self: The output processor.
        request: The request.
        prompt: Its text.
        parent_req: The request for several answers that this one is made for.
        request_index: Its number among those.
        queue: Where an `AsyncLLM` takes the answer from.
    """
    del prompt, request_index
    ended: deque[str] | None = getattr(self, ENDED, None)
    params, in_flight = request.sampling_params, self.request_states
    # One in flight is a streaming session, of which this is the next part.
    if ended is None or params is None or request.request_id in in_flight or not propagation.is_on:
        return
    thread, given = running_thread(), params.extra_args or {}
    # Outside of all programs the engine makes each request one, which is right for unrelated prompts.
    is_outside = thread.program is programs.implicit and thread.program.is_implicit
    if is_outside or request.session_id or any(name.startswith(engine_args.PREFIX) for name in given):
        return
    latest, parents = thread.added or ("", None)
    call_id = ids.make("call")
    if latest in in_flight and (queue is None or parent_req is not None):
        # The next prompt of a batch, or another answer: a sibling of the one before, which it has not seen.
        thread.follow(Progress((call_id,), parents))
    else:
        parents = thread.record_call(call_id)
        if thread.is_truncated:
            thread.is_truncated, parents = False, None
    thread.added = (request.request_id, parents)
    # A copy: in a request that the user has made, it may be an object that others share.
    request.sampling_params = copy.copy(params)
    request.sampling_params.extra_args = {**given, **_arguments(thread, call_id, parents, ended)}


def _arguments(
    thread: ProgramThread, call_id: str, parents: tuple[str, ...] | None, ended: deque[str]
) -> dict[str, str]:
    """Return what our scheduler reads of a call, with the ends that wait."""
    program = thread.program
    program.engines[id(ended)] = ended
    taken = [ended.popleft() for _ in range(min(len(ended), MAX_ENDED))]
    arguments = {
        engine_args.PROGRAM: program.program_id,
        engine_args.CALL: call_id,
        engine_args.THREAD: str(thread.thread_id),
        engine_args.PARENTS: None if parents is None else format_parents(parents),
        engine_args.CLASS: program.name,
        engine_args.GROUP: program.hints.group,
        engine_args.PRIORITY: program.hints.priority,
        engine_args.ENDED: json.dumps(taken) if taken else None,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def instrument_engine(patches: Patches, module: ModuleType) -> None:
    """Mark each engine of `LLM` or `AsyncLLM`, and name the programs of its requests."""
    name = "AsyncLLM" if module.__name__.endswith("async_llm") else "LLMEngine"
    patches.apply(module, f"{name}.__init__", on_init(_mark))
    patches.apply(module, "OutputProcessor.add_request", before(_name_program))
