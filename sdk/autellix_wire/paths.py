"""Paths of the sessions API, below the gateway's root."""

from __future__ import annotations

API_PREFIX = "/autellix/v1"
SESSIONS_PATH = API_PREFIX + "/sessions"
PROGRAMS_PATH = API_PREFIX + "/programs"
