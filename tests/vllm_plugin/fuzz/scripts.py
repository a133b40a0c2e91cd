"""Random scripts for a scheduler: how the engine is set up, and what happens to it at which step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from autellix_backend.vllm_plugin.trial_runner import TOKENS, answer

POLICIES = ("boost", "plas", "atlas", "atlas_dag", "mlfq", "round_robin", "fcfs", "sjf")
WINDOW = 12
"""The tokens of a window, and of a chunk of local attention."""
SHARED = tuple(7 + 13 * number % (TOKENS - 7) for number in range(40))
"""The beginning of many prompts."""


class Event(NamedTuple):
    """Something that happens before a step."""

    step: int
    kind: str
    """A method of `play.Player`."""
    request: str = ""
    fields: Any = None
    """The method's other arguments, by name."""


class Image(NamedTuple):
    """An image in a prompt."""

    offset: int
    length: int
    """Its tokens."""
    number: int
    """Equal ones have the same."""

    @property
    def end(self) -> int:
        """The token behind it."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One engine."""

    mode: str
    """How vLLM runs: `sync`, `async`, `pipelined` (two steps under way), `v2` (model runner V2, async), or
    `v2-pipelined` (two stages, each of which decodes a request in every second step)."""
    has_cache: bool
    slots: int
    block_tokens: int
    blocks: int
    layers: Sequence[str]
    """The groups of layers: `full`, `window` or `local`."""
    max_tokens: int
    budget: int
    is_chunked: bool
    long_prefill: int
    drafts: int
    adapters: int
    """The most LoRA adapters at once; 0 for an engine without."""
    loads: str
    """What a connector does: nothing, or it loads contexts within the step (`now`) or later."""
    failures: str
    """What vLLM does where some loads fail: `recompute` the tokens, or `fail` the request."""
    connectors: int
    """Those behind a `MultiConnector`; 0 for one alone."""
    encoder: int
    """The budget and the cache of an encoder of images, in tokens; 0 for a model without."""
    has_priorities: bool
    throttles: bool
    """Whether most steps begin no prefill."""
    step_s: float
    scheduler: dict[str, Any] = field(hash=False)

    @property
    def lora_bound(self) -> float:
        """The most steps of any order of calls, as a multiple of another's, because of the adapters' places.

        As long as a call waits, each place is taken by at least one that runs (docs/scheduling.md).
        """
        places = self.adapters and min(self.adapters, self.slots)
        return self.slots / places + 1 - 1 / places if places else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A setup with its events, in their order."""

    seed: int
    setup: Setup
    events: tuple[Event, ...]

    @property
    def is_plain(self) -> bool:
        """Whether nothing but calls happens, so that the steps of two schedulers can be compared."""
        is_calls = all(event.kind == "add" and not event.fields["is_session"] for event in self.events)
        return is_calls and not self.setup.throttles and not self.setup.loads

    def without(self, place: int, count: int) -> Script:
        """Return the script without some events in a row, nor anything else of the requests that they add."""
        dropped = self.events[place : place + count]
        gone = {event.request for event in dropped if event.kind == "add"}
        kept = [*self.events[:place], *self.events[place + count :]]
        return replace(self, events=tuple(event for event in kept if event.request not in gone))


def make_script(seed: int, mode: str | None = None) -> Script:
    """Make the script of a seed, in a mode of its own or the given one."""
    # A second generator, so that scripts stay as they were where they do without what it chooses.
    generator, more = random.Random(seed), random.Random(f"more of {seed}")
    setup = _make_setup(generator, more, mode)
    return Script(seed=seed, setup=setup, events=tuple(_make_events(generator, more, setup)))


def _make_setup(generator: random.Random, more: random.Random, mode: str | None) -> Setup:
    choice, chance = generator.choice, generator.random
    mode = mode or choice(["sync", "async", "async", "pipelined", "v2"])
    if mode == "v2" and more.random() < 0.3:
        mode = "v2-pipelined"
    layers = choice([["full"]] * 4 + [["full", "window"], ["full", "window", "local"]])
    max_tokens, block_tokens = choice([64, 128, 256]), choice([4, 8, 16])
    # What one context takes at most, for a start.
    blocks = -(-(max_tokens + 8) // block_tokens) * len(layers) + 4 * len(layers)
    is_chunked = chance() < 0.85
    budget = choice([16, 64, 256])
    setup = Setup(
        mode=mode,
        has_cache=chance() < 0.75,
        slots=choice([1, 2, 3, 4, 8, 16]),
        block_tokens=block_tokens,
        blocks=int(blocks * choice([1.0, 1.2, 1.6, 2.5, 5.0])),
        layers=tuple(layers),
        max_tokens=max_tokens,
        budget=budget if is_chunked else max(budget, max_tokens),
        is_chunked=is_chunked,
        long_prefill=choice([0, 0, 0, 8, 24]) if is_chunked else 0,
        drafts=choice([0, 0, 2, 4]) if mode == "sync" else 0,
        adapters=choice([0] * 7 + [1, 2]),
        loads=choice([""] * 6 + ["now", "later", "later"]) if layers == ["full"] and mode != "v2" else "",
        failures="",
        connectors=0,
        encoder=0,
        has_priorities=chance() < 0.12,
        throttles=chance() < 0.1,
        step_s=choice([0.01, 0.05, 0.3]),
        scheduler=_make_scheduler(generator),
    )
    if more.random() < 0.15:
        setup = replace(setup, encoder=more.choice([8, 16, 40]))
    if setup.layers == ("full",) and more.random() < 0.1:
        setup = replace(setup, loads=more.choice(["now", "later"]))
    if setup.loads:
        failures = more.choice(["", "", "recompute", "fail"])
        if failures == "recompute" and setup.loads == "now" and setup.mode != "sync":
            # vLLM reads wrong blocks then: the next step has begun when it learns of the failure.
            failures = "fail"
        setup = replace(setup, failures=failures, connectors=more.choice([0, 0, 1, 2]))
    return setup


def _make_scheduler(generator: random.Random) -> dict[str, Any]:
    choice, chance = generator.choice, generator.random
    scheduler: dict[str, Any] = {"policy": choice([*POLICIES, "boost", "boost"])}
    options: dict[str, tuple[float, Sequence[Any]]] = {
        "admission": (0.5, ["none", "working_set"]),
        "preemption": (0.6, ["always", "priced", "never"]),
        "period_steps": (0.3, [2, 8]),
        "service": (0.2, ["tokens"]),
        "bounds": (0.5, [[0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2], [0.5], [5.0, 50.0]]),
    }
    for name, (share, values) in options.items():
        if chance() < share:
            scheduler[name] = choice(values)
    return scheduler


def _make_events(generator: random.Random, more: random.Random, setup: Setup) -> list[Event]:
    choice, chance = generator.choice, generator.random
    events: list[Event] = []
    contexts: dict[str, list[int]] = {}
    seen: dict[str, list[Image]] = {}
    count, step = choice([8, 20, 40, 80]), 0
    programs = choice([1, 3, 8, count])
    tenants = choice([[""], ["a", "b"], ["", "a", "b"]])
    tenant_of = {f"p{number}": choice(tenants) for number in range(programs)}
    for number in range(count):
        step += choice([0, 0, 0, 1, 2, 5])
        program = f"p{generator.randrange(programs)}"
        output = choice([1, 2, 5, 12, 24])
        prompt = _make_prompt(generator, contexts.get(program), setup.max_tokens - output - 1)
        is_session = chance() < 0.08 and not setup.drafts and not setup.loads
        if is_session:
            prompt, output = prompt[: setup.max_tokens // 4], min(output, 5)
        images: list[Image] = []
        if setup.encoder and not is_session:
            is_turn = prompt[: len(contexts.get(program, []))] == contexts.get(program)
            images = _put_images(more, prompt, seen.get(program, []) if is_turn else [], setup.encoder)
            seen[program] = images
        fields: dict[str, Any] = {
            "prompt": prompt,
            "images": images,
            "output": output,
            "ignores_end": chance() < 0.5,
            "arguments": _make_arguments(generator, program, tenant_of[program], f"c{number}", programs),
            "priority": choice([0, 0, 1, -3, 7]),
            "adapter": generator.randrange(4) if setup.adapters else 0,
            "is_session": is_session,
        }
        # With n > 1 a call is several requests.
        names = [f"r{number}"] if is_session or chance() < 0.9 else [f"{n}_r{number}" for n in range(3)]
        for name in names:
            events.append(Event(step, "add", name, fields))
            if chance() < 0.12:
                events.append(Event(step + generator.randrange(40), "abort", name))
        if is_session:
            events += _make_parts(generator, step, names[0])
        contexts[program] = prompt + answer(prompt, output, ignores_end=fields["ignores_end"])
    # One script in three has nothing but its calls, so that its steps can be compared.
    if chance() < 0.35:
        return [
            Event(*event[:3], event.fields | {"is_session": False}) for event in events if event.kind == "add"
        ]
    events += _make_interruptions(generator, step)
    if more.random() < 0.2:
        asleep = more.randrange(step + 10)
        events += [
            Event(asleep, "sleep", fields={"ends_calls": more.random() < 0.5}),
            Event(asleep + more.randint(1, 25), "pause", fields={"how": "UNPAUSED"}),
        ]
    return sorted(events, key=lambda event: event.step)


def _make_prompt(generator: random.Random, context: list[int] | None, most: int) -> list[int]:
    def tokens(count: int) -> list[int]:
        return [generator.randrange(1, TOKENS) for _ in range(count)]

    kind = generator.random()
    if kind < 0.4 and context:
        prompt = context + tokens(generator.randint(1, 10))
    elif kind < 0.7:
        prompt = [*SHARED[: generator.choice([8, 16, 40])], *tokens(generator.randint(1, 30))]
    else:
        prompt = tokens(generator.randint(1, max(1, most)))
    return prompt[: max(1, most)]


def _put_images(generator: random.Random, prompt: list[int], images: list[Image], most: int) -> list[Image]:
    """Return the images of a prompt, those of its beginning first, and put the others' tokens into it."""
    images = [image for image in images if image.end <= len(prompt)]
    place = images[-1].end if images else 0
    while generator.random() < 0.7:
        number = generator.randrange(6)
        image = Image(place + generator.randrange(8), 1 + 7 * number % most, number)
        if image.end > len(prompt):
            break
        prompt[image.offset : image.end] = [1 + number] * image.length
        images.append(image)
        place = image.end
    return images


def _make_arguments(
    generator: random.Random, program: str, tenant: str, call: str, programs: int
) -> dict[str, Any]:
    choice, chance = generator.choice, generator.random
    if chance() < 0.1:
        return {}
    others: dict[str, tuple[float, Sequence[Any]]] = {
        "autellix_priority": (0.2, ["batch", "interactive", "unknown"]),
        "autellix_group": (0.2, ["g1", "g2"]),
        "autellix_last": (0.2, [1]),
        "autellix_return_s": (0.1, [0.0, 0.5, 30.0, 1e11]),
        "autellix_retain_s": (0.1, [0.0, 0.5, 30.0, 1e11]),
        "autellix_expected_tokens": (0.1, [0.0, 50.0, 1e11]),
        "autellix_service_s": (0.1, [0.0, 0.5, 30.0, 1e6]),
        "autellix_ended": (0.05, [f'["p{generator.randrange(programs)}"]']),
    }
    chosen = {name: choice(values) for name, (share, values) in others.items() if chance() < share}
    named = {"autellix_tenant": tenant} if tenant else {}
    return {"autellix_program": program, "autellix_call": call} | named | chosen


def _make_parts(generator: random.Random, step: int, name: str) -> list[Event]:
    events = []
    for _ in range(generator.randint(1, 3)):
        step += generator.randint(1, 30)
        tokens = [generator.randrange(1, TOKENS) for _ in range(generator.randint(1, 6))]
        events.append(Event(step, "part", name, {"tokens": tokens, "output": generator.choice([1, 3, 5])}))
    return [*events, Event(step + generator.randint(1, 40), "end", name)]


def _make_interruptions(generator: random.Random, steps: int) -> list[Event]:
    events = [
        Event(generator.randrange(steps + 20), "reset", fields={"running": generator.random() < 0.6})
        for _ in range(generator.choice([0, 0, 1, 4]))
    ]
    for _ in range(generator.choice([0, 0, 1, 3])):
        start = generator.randrange(steps + 10)
        how = generator.choice(["PAUSED_NEW", "PAUSED_ALL"])
        events += [
            Event(start, "pause", fields={"how": how}),
            Event(start + generator.randint(1, 25), "pause", fields={"how": "UNPAUSED"}),
        ]
    if generator.random() < 0.1:
        events.append(Event(generator.randrange(steps + 10), "abort_all"))
    return events
