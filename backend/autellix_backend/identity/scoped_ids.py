"""Ids within the backend: a client's id behind the name of its tenant (`research/run-7`).

Names of tenants contain no slash, so two tenants never share an id, whichever ids their clients choose.
"""

from __future__ import annotations

SEPARATOR = "/"


def scoped(tenant: str, own_id: str) -> str:
    """Return the backend's id for a client's id; unchanged without tenants, whose name is empty."""
    return f"{tenant}{SEPARATOR}{own_id}" if tenant else own_id
