"""Names of the request and response headers."""

from __future__ import annotations

SESSION_ID = "X-Autellix-Session-ID"
SESSION_TOKEN = "X-Autellix-Session-Token"
PROGRAM_ID = "X-Autellix-Program-ID"
PROGRAM_NAME = "X-Autellix-Program-Name"
THREAD_ID = "X-Autellix-Thread-ID"
THREAD_NAME = "X-Autellix-Thread-Name"
CALL_ID = "X-Autellix-Call-ID"
PARENT_IDS = "X-Autellix-Parent-IDs"
FLAGS = "X-Autellix-Flags"
FINAL = "X-Autellix-Final"
EXPECTED_CALLS = "X-Autellix-Expected-Calls"
EXPECTED_TOKENS = "X-Autellix-Expected-Tokens"
INTERCEPTIONS = "X-Autellix-Interceptions"
"""Tools that ran since the parent calls: name=seconds, comma separated."""

VERSION = "X-Autellix-Version"
"""On every response: the mark by which clients know an Autellix backend."""
IDENTITY_SOURCE = "X-Autellix-Identity-Source"
ENGINE = "X-Autellix-Engine"
QUEUE_LEVEL = "X-Autellix-Queue-Level"
