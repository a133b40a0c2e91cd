"""Questions to a live endpoint before a run: its model and its batch size."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autellix_lab.bench.replay import ReplayError

TIMEOUT_S = 10.0
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


def root_url(url: str) -> str:
    """Return the root of an endpoint that is given with or without /v1."""
    return url.rstrip("/").removesuffix("/v1")


def first_model(url: str) -> str:
    """Return the first model that a server lists.

    Raises:
        ReplayError: if it does not answer or lists none.
    """
    try:
        return str(_get(f"{url}/v1/models")["data"][0]["id"])
    except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
        problem = f"does not answer /v1/models ({error})"
    except (ValueError, LookupError, TypeError):
        problem = "lists no model"
    raise ReplayError(f"{url} {problem}; expected an OpenAI-compatible server, or --model NAME")


def records_into(url: str, trace: Path) -> bool:
    """Return whether a gateway on this machine records into a trace; False where that is unknown.

    A relative path is of the gateway's folder, which is not known here: the end of the path is compared.
    """
    if urlsplit(url).hostname not in LOCAL_HOSTS:
        return False
    try:
        path = _get(f"{url}/autellix/v1/config")["gateway"]["record_path"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    if not isinstance(path, str):
        return False
    parts = Path(path).parts
    return trace.resolve().parts[-len(parts) :] == parts


def batch_size(url: str) -> int:
    """Return the batch size in a gateway's settings.

    Raises:
        ValueError: if the gateway does not report it.
    """
    try:
        size = _get(f"{url}/autellix/v1/config")["engine"]["max_num_seqs"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{url} does not report its settings ({error}); expected --max-num-seqs N"
        ) from error
    if not isinstance(size, int):
        raise ValueError(f"{url}: engine.max_num_seqs is {size}; expected --max-num-seqs N")
    return size


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return json.load(answer)
