"""Scopes that only the garbage collector closes, everywhere at once: nothing may hang, nothing may stay.

    python tests/sdk/finalizers.py --seconds 60 --graphs   # a collection at every allocation; what was done
    python tests/sdk/finalizers.py --rotate 100000         # programs that come and go; the memory

A process of its own: a hang ends it with the stacks of all threads. It needs the client alone, and LangGraph
for graphs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import json
import operator
import platform
import random
import resource
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import autellix
from autellix._programs import generators
from autellix._programs.registry import programs
from autellix._sessions.keeper import keeper

BASE_URL = "http://127.0.0.1:9/v1"
IDS = ("first", "second")
HANGS_AFTER_S = 60.0


class State(TypedDict):
    """Of a graph."""

    steps: Annotated[int, operator.add]


def abandon(thing: object) -> None:
    """Leave a thing to the garbage collector."""
    cycle: list[object] = [thing]
    cycle.append(cycle)


def call() -> None:
    autellix.headers(BASE_URL)


class Load:
    """Steps that abandon something, chosen at random."""

    def __init__(self, seed: int, stream: Callable[[], Any] | None = None) -> None:
        self.random = random.Random(seed)
        self.done = Counter[str]()
        self.stream = stream

    def program_id(self) -> str | None:
        return self.random.choice((*IDS, None))

    def scoped(self) -> Generator[None]:
        """Close a program, a session and a thread of it; make a call and open a program meanwhile."""
        ends = self.random.random() < 0.5
        program = autellix.program("abandoned", id=self.program_id(), continues=not ends)
        with program, autellix.session(id=self.program_id()), autellix.thread("named"):
            call()
            try:
                yield
            finally:
                with autellix.program("closing", id=self.program_id()):
                    call()

    async def ascoped(self) -> AsyncGenerator[None]:
        async with autellix.program("abandoned", id=self.program_id()):
            call()
            yield

    async def plain(self) -> AsyncGenerator[None]:
        """Hold no scope: asyncio's own finalizer is enough."""
        yield

    def generator(self) -> None:
        generator = self.scoped()
        next(generator)
        abandon(generator)

    def decorated(self) -> None:
        generator = autellix.program("decorated")(self.scoped)()
        next(generator)
        abandon(generator)

    def finalized(self) -> None:
        """Make a call, and open scopes, in the callback of a weak reference."""

        def callback() -> None:
            with autellix.program("finalizer", id=IDS[0]), autellix.session(id=IDS[1]):
                call()
                threading.Thread(target=call, daemon=True).start()

        holder = type("Holder", (), {})()
        weakref.finalize(holder, callback).atexit = False
        abandon(holder)

    def thread(self) -> None:
        with autellix.program("threads", id=self.program_id()):
            call()
            thread = threading.Thread(target=self.generator)
            thread.start()
            thread.join()
            call()

    def graph(self) -> None:
        assert self.stream is not None
        stream = self.stream()
        # After a step: a stream that is closed waits for its running nodes, even if it is closed inside one.
        next(stream)
        next(stream)
        abandon(stream)

    def step(self) -> None:
        steps: list[Callable[[], None]] = [self.generator, self.decorated, self.finalized, self.thread]
        step = self.random.choice([*steps, self.graph] if self.stream else steps)
        step()
        self.done[step.__name__] += 1

    async def branch(self, make: Callable[[], AsyncGenerator[None]]) -> None:
        call()
        generator = make()
        await anext(generator)
        abandon(generator)

    async def astep(self) -> None:
        make = self.random.choice((self.ascoped, self.plain))
        with autellix.program("tasks", id=self.program_id()):
            await asyncio.gather(*(self.branch(make) for _ in range(5)))
            call()
        self.done[make.__name__] += 1


def graph_stream() -> Callable[[], Any]:
    """Return what starts the stream of a graph with two parallel nodes."""
    from langgraph.graph import END, START, StateGraph

    def node(state: dict[str, int]) -> dict[str, int]:
        call()
        return {"steps": 1}

    graph: Any = StateGraph(State)
    for name in ("left", "right"):
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    compiled = graph.compile()
    return lambda: iter(compiled.stream({"steps": 1}, stream_mode="values"))


def run(seconds: float, seed: int, stream: Callable[[], Any] | None) -> dict[str, Any]:
    """Abandon things in two threads and an event loop for some seconds, collecting at every allocation."""
    loads = [Load(seed + number, stream) for number in range(3)]
    for load in loads[: stream is not None]:
        # Whatever it imports late.
        load.graph()
    ends_s = time.monotonic() + seconds

    def steps(load: Load) -> None:
        while time.monotonic() < ends_s:
            load.step()

    async def asteps(load: Load) -> None:
        while time.monotonic() < ends_s:
            await load.astep()
            load.step()
        # The end of the loop would cancel what closes its generators.
        while any(frame.f_code is Load.ascoped.__code__ for frame in list(generators.open_scopes)):
            gc.collect()
            # Not zero: the threads that still end would hardly get the interpreter's lock.
            await asyncio.sleep(0.01)

    gc.collect()
    # What the imports have made is not looked at again: a collection takes microseconds.
    gc.freeze()
    gc.set_threshold(1)
    threads = [threading.Thread(target=steps, args=(load,)) for load in loads[1:]]
    for thread in threads:
        thread.start()
    asyncio.run(asteps(loads[0]))
    for thread in threads:
        thread.join()
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    return {"steps": dict(sum((load.done for load in loads), Counter[str]()))}


def rotate(count: int, seed: int) -> dict[str, Any]:
    """Open programs with ids that never come again, and abandon a generator in each; return the memory."""
    load = Load(seed)
    memory = []
    for number in range(count):
        with autellix.program("rotating", id=f"program-{number}"):
            call()
            load.generator()
        if number % (count // 5) == count // 5 - 1:
            gc.collect()
            memory.append({"programs": number + 1, "objects": len(gc.get_objects()), "mib": resident_mib()})
    return {"memory": memory}


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def left() -> dict[str, int]:
    """Count what is still open after a collection."""
    ends_s = time.monotonic() + HANGS_AFTER_S / 2
    while True:
        # Does nothing while another thread collects.
        gc.collect()
        found = {
            "programs": len(programs._open),
            "sessions": len(keeper._named),
            "generators": len(generators.open_scopes),
        }
        if not any(found.values()) or time.monotonic() > ends_s:
            return found
        time.sleep(0.01)


def mend_threading() -> None:
    """Take away a lock of Python's own, before 3.13: it may collect while it holds that."""
    module: Any = threading
    if sys.version_info < (3, 13):
        module._shutdown_locks_lock = contextlib.nullcontext()
        module._maintain_shutdown_locks = lambda: None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--rotate", type=int, default=0)
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    stream = graph_stream() if options.graphs else None
    if options.graphs:
        mend_threading()
    faulthandler.dump_traceback_later(options.seconds + options.rotate / 100 + HANGS_AFTER_S, exit=True)
    autellix.configure(BASE_URL)
    started_s = time.monotonic()
    found: dict[str, Any] = {"python": platform.python_version()}
    found |= (
        rotate(options.rotate, options.seed) if options.rotate else run(options.seconds, options.seed, stream)
    )
    found |= {"seconds": round(time.monotonic() - started_s, 1), "left": left()}
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
