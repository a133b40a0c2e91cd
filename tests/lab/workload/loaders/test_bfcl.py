"""BFCL multi-turn tasks as programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autellix_lab.workload.loaders.base import LoadOptions
from autellix_lab.workload.loaders.bfcl import CLOSING_TOKENS, RESULT_TOKENS, load_bfcl
from autellix_lab.workload.trace import ProgramTrace, TraceError

WORDS = LoadOptions(count_tokens=lambda text: len(text.split()), tokenizer="words")
TASK: dict[str, Any] = {
    "id": "multi_turn_base_7",
    "question": [[{"role": "user", "content": "add two numbers"}], [{"role": "user", "content": "thanks"}]],
    "involved_classes": ["MathAPI"],
}
TRUTH = {"id": "multi_turn_base_7", "ground_truth": [["add(a=1, b=2)", "mean([1])"], []]}
FUNCTIONS = [{"name": "add", "text": "adds"}, {"name": "mean", "text": "the mean"}]
ADD_TOKENS, MEAN_TOKENS = (len(json.dumps(function).split()) for function in FUNCTIONS)


def load(tmp_path: Path, task: Any = TASK, truth: Any = TRUTH, options: LoadOptions = WORDS) -> ProgramTrace:
    (tmp_path / "multi_turn_func_doc").mkdir()
    (tmp_path / "multi_turn_func_doc" / "math_api.json").write_text("\n".join(map(json.dumps, FUNCTIONS)))
    (tmp_path / "possible_answer").mkdir()
    (tmp_path / "possible_answer" / "tasks.json").write_text(json.dumps(truth))
    (tmp_path / "tasks.json").write_text(json.dumps(task))
    (program,) = load_bfcl(tmp_path / "tasks.json", options)
    return program


def test_a_turn_has_a_call_a_function_and_a_closing_one(tmp_path: Path) -> None:
    """The first prompt holds the descriptions, each later one the last answer and its result."""
    program = load(tmp_path)

    assert [call.kind for call in program.calls] == ["root", "tool", "tool", "human"]
    assert [call.turn for call in program.calls] == [0, 0, 0, 1]
    assert [call.decode_tokens for call in program.calls] == [2, 1, CLOSING_TOKENS, CLOSING_TOKENS]
    assert [call.new_tokens for call in program.calls] == [
        ADD_TOKENS + MEAN_TOKENS + 3,
        RESULT_TOKENS,
        RESULT_TOKENS,
        1,
    ]
    assert (program.group, program.system_prefix_tokens) == ("bfcl_7", ADD_TOKENS + MEAN_TOKENS)
    assert not program.is_parallel


def test_a_function_missing_at_first_is_described_in_its_turn(tmp_path: Path) -> None:
    """Until then it is not in the prompt."""
    program = load(tmp_path, {**TASK, "missed_function": {"1": ["mean"]}})

    assert program.system_prefix_tokens == ADD_TOKENS
    assert program.calls[3].new_tokens == 1 + MEAN_TOKENS


def test_an_excluded_function_is_not_described(tmp_path: Path) -> None:
    """It never comes."""
    assert load(tmp_path, {**TASK, "excluded_function": ["add"]}).system_prefix_tokens == MEAN_TOKENS


@pytest.mark.parametrize(
    ("task", "truth", "message"),
    [
        (
            {},
            {"id": "x"},
            r"tasks\.json, line 1: id is 'multi_turn_base_7'; expected a task with a ground truth",
        ),
        (
            {"involved_classes": ["Chess"]},
            {},
            r"line 1: involved_classes holds 'Chess'; expected GorillaFileSystem",
        ),
        ({"involved_classes": ["TradingBot"]}, {}, r"trading_bot\.json cannot be read"),
        ({"question": [[]]}, {}, r"line 1: ground_truth has 2 turns; expected the question's 1"),
        ({"question": [1]}, {}, r"line 1: question\[0\] is 1; expected a list"),
        ({"question": []}, {}, r"line 1: question is empty; expected one turn or more"),
        ({"question": [["hi"], []]}, {}, r"line 1: question holds 'hi'; expected \{'role', 'content'\}"),
        ({}, {"ground_truth": None}, r"line 1: ground_truth is None; expected a list"),
    ],
)
def test_an_error_names_the_line_and_the_field(tmp_path: Path, task: Any, truth: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        load(tmp_path, {**TASK, **task}, {**TRUTH, **truth})
