"""`autellix keys new` makes keys that the tenants file takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autellix_backend.cli.main import main
from autellix_backend.gateway.tenancy.file import read_tenants
from autellix_backend.gateway.tenancy.tenants import Tenants
from autellix_backend.settings import TenantLimits


def test_a_new_key_authenticates_once_its_lines_are_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints a key and its exact lines for the file."""
    assert main(["keys", "new", "research"]) == 0
    head, tail = capsys.readouterr().out.split("Line for")
    (key,) = re.findall(r"sk-autellix-[\w-]{43}", head)
    path = tmp_path / "tenants.toml"
    path.write_text(tail.split("\n", 1)[1])

    tenants = Tenants(read_tenants(path, TenantLimits()))

    assert tenants.authenticate({"x-api-key": key}).name == "research"
    assert key not in path.read_text()


def test_an_invalid_tenant_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the argument."""
    assert main(["keys", "new", "Re/search"]) == 2
    assert "TENANT: is 'Re/search'; expected 1 to 32 of" in capsys.readouterr().err
