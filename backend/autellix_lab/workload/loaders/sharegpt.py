"""ShareGPT conversations: a JSON list of {"id", "conversations": [{"from", "value"}]}.

Source: the format of ShareGPT_V3_unfiltered_cleaned_split.json and of FastChat's cleaned files, which
serving benchmarks use. There is no version; the file has been the same since 2023.

A conversation is a program, and each of its answers a call. The messages since the last answer (people,
tools, system) are the call's new prompt; the history before it is shared. Answers in a row count as one. What
follows the last answer asks for nothing and is left out, as are conversations without an answer. Gaps are
unknown. Tokens of a chat template are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autellix_lab.workload.loaders.base import LoadOptions, Record, as_record, read_json
from autellix_lab.workload.loaders.chain import Chain
from autellix_lab.workload.trace import ProgramTrace, TraceError

ANSWERS = frozenset({"gpt", "chatgpt", "bing", "bard", "assistant", "model"})
PROMPTS = frozenset({"human", "user", "system", "tool", "observation", "function_response"})


def load_sharegpt(path: Path, options: LoadOptions) -> list[ProgramTrace]:
    """Load the conversations of a file.

    Raises:
        TraceError: for a file that is not a list of conversations; names the index and the field.
    """
    found = read_json(path)
    if not isinstance(found, list):
        raise TraceError("file", "is not a JSON list of conversations", str(path))
    return [
        program
        for index, item in enumerate(found)
        for program in _conversation(
            as_record(item, f"{path}, conversation {index}", "conversation"), index, options
        )
    ]


def _conversation(record: Record, index: int, options: LoadOptions) -> Iterator[ProgramTrace]:
    chain = Chain()
    for new_tokens, decode_tokens in _exchanges(record, options):
        chain.add(new_tokens, decode_tokens, "human")
    if not chain.calls:
        return
    program_id = str(record.values.get("id", f"conversation_{index}"))
    yield record.program(
        source="sharegpt",
        program_id=program_id,
        group=program_id,
        tokenizer=options.tokenizer,
        calls=tuple(chain.calls),
    )


def _exchanges(record: Record, options: LoadOptions) -> Iterator[tuple[int, int]]:
    """Yield the tokens of each prompt and its answer."""
    prompt_tokens = answer_tokens = 0
    has_answer = False
    for message in record.records("conversations"):
        speaker = message.get("from", str)
        tokens = options.count_tokens(message.get("value", str))
        if speaker in ANSWERS:
            answer_tokens += tokens
            has_answer = True
        elif speaker in PROMPTS:
            if has_answer:
                yield prompt_tokens, answer_tokens
                prompt_tokens = answer_tokens = 0
                has_answer = False
            prompt_tokens += tokens
        else:
            known = ", ".join(sorted(ANSWERS | PROMPTS))
            raise message.error("from", f"is {speaker!r}; expected one of {known}")
    if has_answer:
        yield prompt_tokens, answer_tokens
