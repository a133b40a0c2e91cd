"""Finds the loader of a trace file, by name or by looking at the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from autellix_lab.workload.loaders.azure import load_azure
from autellix_lab.workload.loaders.base import LoadOptions, read_text
from autellix_lab.workload.loaders.bfcl import load_bfcl
from autellix_lab.workload.loaders.call_log import load_call_log
from autellix_lab.workload.loaders.claude_code import load_claude_code
from autellix_lab.workload.loaders.mooncake import load_mooncake
from autellix_lab.workload.loaders.otel import load_otel
from autellix_lab.workload.loaders.recorded import load_recorded
from autellix_lab.workload.loaders.sharegpt import load_sharegpt
from autellix_lab.workload.loaders.tracelab import load_tracelab
from autellix_lab.workload.trace import ProgramTrace, TraceError

Loader = Callable[[Path, LoadOptions], list[ProgramTrace]]

LOADERS: dict[str, Loader] = {
    "recorded": load_recorded,
    "call_log": load_call_log,
    "sharegpt": load_sharegpt,
    "bfcl": load_bfcl,
    "mooncake": load_mooncake,
    "claude_code": load_claude_code,
    "tracelab": load_tracelab,
    "otel": load_otel,
    "azure": load_azure,
}
"""Loader by name of its format."""

_DISTINCT_FIELDS = (
    ("recorded", {"calls"}),
    ("call_log", {"call_id", "program_id", "duration_s"}),
    ("bfcl", {"question", "involved_classes"}),
    ("mooncake", {"timestamp", "input_length", "output_length", "hash_ids"}),
    ("claude_code", {"requests", "block_size"}),
    ("tracelab", {"session_id", "round_index", "input_tokens_total"}),
    ("otel", {"spans"}),
    ("otel", {"resourceSpans"}),
)
"""Fields that a file's first object has in one format only."""


def load(
    path: Path, format_name: str | None = None, options: LoadOptions | None = None
) -> list[ProgramTrace]:
    """Load a file or folder of traces as programs.

    Args:
        path: the file or folder.
        format_name: a key of `LOADERS`; by default detected from the file.
        options: how to count tokens, and files beside the first.

    Raises:
        TraceError: if the format is unknown or not detected, or the file breaks it.
    """
    name = detect_format(path) if format_name is None else format_name
    if name not in LOADERS:
        raise TraceError("format", f"is {name!r}; expected one of {', '.join(LOADERS)}")
    return LOADERS[name](path, options or LoadOptions())


def detect_format(path: Path) -> str:
    """Detect the format of a file by its name and first object.

    Raises:
        TraceError: if the file cannot be read or fits no format.
    """
    if path.is_dir():
        first = min(path.glob("*.json"), default=None)
        return "claude_code" if first is None else detect_format(first)
    if {".csv"} & set(path.suffixes):
        return "azure"
    text = read_text(path).lstrip()
    if text.startswith("["):
        return "sharegpt"
    fields = _first_fields(text)
    found = [name for name, distinct in _DISTINCT_FIELDS if distinct <= fields]
    if len(found) != 1:
        raise TraceError("format", f"is unknown; expected --format {'|'.join(LOADERS)}", str(path))
    return found[0]


def _first_fields(text: str) -> set[str]:
    """Return the fields of the first line's object, or of the file's where it is one object of many lines."""
    for candidate in (text.split("\n", 1)[0], text):
        try:
            found = json.loads(candidate)
        except json.JSONDecodeError:
            continue
        return set(found) if isinstance(found, dict) else set()
    return set()
