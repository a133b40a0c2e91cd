"""Questions to a live endpoint before a run: its model and its batch size."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from autellix_lab.bench.replay import ReplayError

TIMEOUT_S = 10.0


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
