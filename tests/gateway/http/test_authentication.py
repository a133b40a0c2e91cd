"""Whose a new connection is, by its first bytes."""

from __future__ import annotations

import hashlib

import pytest

from autellix_backend.gateway.http.authentication import owner_of
from autellix_backend.gateway.tenancy.tenants import Tenant, Tenants

KEYS = {hashlib.sha256(key).digest(): Tenant(name=name) for key, name in [(b"sk-a", "a"), (b"sk-b", "b")]}
LINE = b"GET / HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("head", "owner"),
    [
        (b"authorization: Bearer sk-a\r\n\r\n", "a"),
        (b"Authorization:bearer  sk-a \r\nx: y\r\n", "a"),
        (b"X-API-Key: sk-b\r\n\r\n", "b"),
        (b"authorization: Bearer sk-a\r\n\r\nauthorization: Bearer sk-b\r\n", "a"),
        (b"authorization: Bearer sk-c\r\n\r\n", ""),
        (b"authorization: Basic sk-a\r\n\r\n", ""),
        (b"x-authorization: Bearer sk-a\r\n\r\n", ""),
        (b"\r\nauthorization: Bearer sk-a\r\n\r\n", ""),
        (b"authorization: Bearer \xff\xfe\r\n\r\n", ""),
    ],
)
def test_the_owner_is_the_tenant_of_the_key_in_the_head(head: bytes, owner: str) -> None:
    assert owner_of(Tenants(KEYS), LINE + head) == owner


@pytest.mark.parametrize("first", [b"x", b"\x16\x03\x01", b"\r\n" * 2000, b"authorization: Bearer sk-a\r\n"])
def test_bytes_that_are_no_head_have_no_owner(first: bytes) -> None:
    assert owner_of(Tenants(KEYS), first) == ""


def test_without_keys_nobody_owns_a_connection() -> None:
    assert owner_of(Tenants(only_tenant=Tenant()), LINE + b"authorization: Bearer sk-a\r\n\r\n") == ""
