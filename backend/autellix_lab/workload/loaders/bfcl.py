"""BFCL v3 multi-turn tasks: JSON lines of {"id", "question", "involved_classes"} and a file of ground truths.

Source: github.com/ShishirPatil/gorilla, berkeley-function-call-leaderboard/bfcl_eval/data, read at commit
6ea5797. Since BFCL v4 the same tasks are in BFCL_v4_multi_turn_*.json; files of both names have one format.

A task is a program. Each turn has one call per function call of the ground truth, then a closing call that
answers the person. The first prompt holds the descriptions of the functions of the involved classes, from
multi_turn_func_doc/ beside the task's file. Functions that the task omits at first (`missed_function`) are
described when their turn comes; `excluded_function` are left out. Answers are the text of the function calls.
Not in the data, so fixed here: tokens of a function's result and of a closing answer. Gaps are unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autellix_lab.workload.loaders.base import LoadOptions, Record, read_json_lines
from autellix_lab.workload.loaders.chain import Chain
from autellix_lab.workload.trace import ProgramTrace

RESULT_TOKENS = 23
"""Tokens of a function's result, the median when the functions are run."""
CLOSING_TOKENS = 35
"""Tokens of the answer that closes a turn."""

DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
"""Name of the file of function descriptions, by class."""

Descriptions = Mapping[str, int]
"""Tokens of the description of each function of a class."""


def load_bfcl(path: Path, options: LoadOptions) -> list[ProgramTrace]:
    """Load the tasks of a file; ground truths are in possible_answer/<same name>.

    Raises:
        TraceError: for a broken line, a task without a ground truth, or a missing file of descriptions.
    """
    tasks = list(read_json_lines(path))
    answers_path = path.parent / "possible_answer" / path.name
    answers = {record.get("id", str): record for record in read_json_lines(answers_path)}
    library = _Library(path.parent / "multi_turn_func_doc", options)
    programs = []
    for task in tasks:
        task_id = task.get("id", str)
        if task_id not in answers:
            raise task.error("id", f"is {task_id!r}; expected a task with a ground truth in {answers_path}")
        programs.append(_task(task, answers[task_id], library, options))
    return programs


class _Library:
    """Counts the function descriptions of each class once."""

    def __init__(self, folder: Path, options: LoadOptions) -> None:
        self.folder = folder
        self.options = options
        self.classes: dict[str, Descriptions] = {}

    def describe(self, task: Record) -> dict[str, int]:
        """Return the tokens of each function that the task's classes have."""
        found: dict[str, int] = {}
        for name in task.names("involved_classes"):
            if name not in DOCUMENTS:
                raise task.error("involved_classes", f"holds {name!r}; expected {', '.join(DOCUMENTS)}")
            if name not in self.classes:
                self.classes[name] = self._read(DOCUMENTS[name])
            found |= self.classes[name]
        return found

    def _read(self, document: str) -> Descriptions:
        return {
            function.get("name", str): self.options.count_tokens(json.dumps(function.values))
            for function in read_json_lines(self.folder / f"{document}.json")
        }


def _task(task: Record, answer: Record, library: _Library, options: LoadOptions) -> ProgramTrace:
    described = library.describe(task)
    missed = Record(task.find("missed_function", dict) or {}, task.where, "missed_function.")
    held_back = {turn: missed.names(turn) for turn in missed.values}
    hidden = {name for names in held_back.values() for name in names} | set(task.names("excluded_function"))
    system_tokens = sum(tokens for name, tokens in described.items() if name not in hidden)
    turns = _lists(task, "question")
    truths = _lists(answer, "ground_truth")
    if len(truths) != len(turns):
        raise answer.error("ground_truth", f"has {len(truths)} turns; expected the question's {len(turns)}")
    chain = Chain()
    for turn, (messages, functions) in enumerate(zip(turns, truths, strict=True)):
        new_tokens = sum(_message_tokens(task, message, options) for message in messages)
        new_tokens += sum(described.get(name, 0) for name in held_back.get(str(turn), ()))
        _add_turn(chain, turn, new_tokens + (0 if turn else system_tokens), functions, options)
    number = re.search(r"(\d+)$", task.get("id", str))
    return task.program(
        source="bfcl",
        program_id=task.get("id", str),
        # Variants of one task share most of their text.
        group=f"bfcl_{number.group(1)}" if number else task.get("id", str),
        tokenizer=options.tokenizer,
        system_prefix_tokens=system_tokens,
        calls=tuple(chain.calls),
    )


def _add_turn(
    chain: Chain, turn: int, new_tokens: int, functions: Sequence[Any], options: LoadOptions
) -> None:
    kind = "human"
    for function in functions:
        chain.add(new_tokens, options.count_tokens(str(function)), kind, turn)
        new_tokens, kind = RESULT_TOKENS, "tool"
    chain.add(new_tokens, CLOSING_TOKENS, kind, turn)


def _lists(record: Record, field: str) -> list[list[Any]]:
    found = record.get(field, list)
    for index, item in enumerate(found):
        if not isinstance(item, list):
            raise record.error(f"{field}[{index}]", f"is {item!r}; expected a list, one item a step")
    if not found:
        raise record.error(field, "is empty; expected one turn or more")
    return found


def _message_tokens(task: Record, message: object, options: LoadOptions) -> int:
    if not isinstance(message, dict) or not isinstance(message.get("content"), str):
        raise task.error("question", f"holds {message!r}; expected {{'role', 'content'}}")
    return options.count_tokens(message["content"])
