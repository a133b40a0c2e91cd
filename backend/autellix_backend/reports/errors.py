"""The error of a malformed message."""

from __future__ import annotations


class ReportError(ValueError):
    """A message is neither of the kinds that engines and gateways exchange."""
