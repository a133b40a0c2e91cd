"""Text that the demo model's tokenizer is trained on: sentences about agents, made from word lists."""

from __future__ import annotations

import random
from collections.abc import Iterator

PEOPLE = (
    "the user", "a customer", "our neighbour", "the student", "my colleague", "the planner", "a reader",
    "the operator",
)  # fmt: skip
TOOLS = (
    "search", "calculator", "calendar", "weather", "database", "browser", "editor", "terminal",
    "translator", "mailbox",
)  # fmt: skip
VERBS = (
    "asks", "checks", "compares", "writes", "reads", "plans", "explains", "repairs", "measures",
    "translates", "sorts", "counts",
)  # fmt: skip
THINGS = (
    "the train to the coast", "a list of prime numbers", "the height of the tower", "two recipes for bread",
    "a letter to the council", "the weather on Sunday", "the sum of the invoices",
    "a function that sorts names", "the shortest path through the garden", "the history of the bridge",
    "an appointment for next week", "the temperature of the water", "the colour of the roof",
    "a table of results", "the queue at the counter",
)  # fmt: skip
REASONS = (
    "because the first answer was incomplete", "before the others arrive", "as soon as the result is known",
    "while the second branch is still running", "after looking at the observation",
    "so that nobody has to wait", "although the price has changed", "until every step is done",
    "in order to be certain",
)  # fmt: skip
TEMPLATES = (
    "{person} {verb} {thing} {reason}.",
    "Thought: {person} needs {thing}. Action: {tool}[{thing}]. Observation: {number} results were found.",
    "Question: what should {person} do with {thing}? Answer: use the {tool}, {reason}.",
    "Step {number}: call the {tool} for {thing}; then return {number} items to {person}.",
    '{{"name": "{tool}", "arguments": {{"query": "{thing}", "limit": {number}}}}}',
    "def {tool}(query, limit={number}):\n    return [item for item in results if item.matches(query)]",
    "The assistant says: I have used the {tool} {number} times, and {person} {verb} {thing}.",
    "You are a helpful assistant. When {person} {verb} {thing}, think step by step and give a short answer.",
)
SENTENCE_COUNT = 4000


def sentences(seed: int = 0) -> Iterator[str]:
    """Yield the corpus, the same for the same seed."""
    choose = random.Random(seed)
    for _ in range(SENTENCE_COUNT):
        text = choose.choice(TEMPLATES).format(
            person=choose.choice(PEOPLE),
            verb=choose.choice(VERBS),
            thing=choose.choice(THINGS),
            reason=choose.choice(REASONS),
            tool=choose.choice(TOOLS),
            number=choose.randrange(1000),
        )
        yield text[0].upper() + text[1:]
