"""The values of the header `X-Autellix-Flags`."""

from __future__ import annotations

IMPLICIT = "implicit"
"""The call is outside of all programs that its client has opened: its process is the program."""
TRUNCATED = "truncated"
"""It depends on more calls than it lists."""
