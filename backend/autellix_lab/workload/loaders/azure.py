"""The Azure LLM inference trace of 2023 as programs: a CSV of single requests.

Source: github.com/Azure/AzurePublicDataset, data/AzureLLMInferenceTrace_{code,conv}.csv, read at commit
b469a11; `workload/request_log.py` describes the columns. The trace does not relate requests to each other,
so each row is a program of one call.
"""

from __future__ import annotations

from pathlib import Path

from autellix_lab.workload.loaders.base import LoadOptions
from autellix_lab.workload.request_log import LoggedRequest, read_request_log
from autellix_lab.workload.trace import CallTrace, ProgramTrace


def load_azure(path: Path, _options: LoadOptions) -> list[ProgramTrace]:
    """Load the rows of a .csv or .csv.gz file.

    Raises:
        TraceError: for a broken row; names the line and the column.
    """
    stem = path.name.split(".")[0]
    return [_program(f"{stem}_{row}", request) for row, request in enumerate(read_request_log(path))]


def _program(program_id: str, request: LoggedRequest) -> ProgramTrace:
    call = CallTrace(
        id=0,
        parents=(),
        thread="main",
        # An engine cannot run an empty prompt.
        prefill_tokens=max(1, request.prompt_tokens),
        decode_tokens=request.answer_tokens,
        kind="root",
    )
    return ProgramTrace(
        source="azure",
        program_id=program_id,
        group=program_id,
        tokenizer="as recorded",
        arrival_s=request.arrival_s,
        calls=(call,),
    )
