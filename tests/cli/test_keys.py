"""`autellix keys` makes keys that the tenants file takes, lists them, and takes them out."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from autellix_backend.cli.main import main
from autellix_backend.gateway.errors import InvalidKeyError
from autellix_backend.gateway.tenancy.file import read_tenants
from autellix_backend.gateway.tenancy.tenants import Tenants, key_line, new_key
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


def test_a_key_with_an_end_is_good_to_its_last_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--days` writes the day behind the digest; `list` shows it."""
    assert main(["keys", "new", "research", "--days", "30"]) == 0
    head, tail = capsys.readouterr().out.split("Line for")
    (key,) = re.findall(r"sk-autellix-[\w-]{43}", head)
    path = tmp_path / "tenants.toml"
    path.write_text(tail.split("\n", 1)[1])
    [last] = (date.fromisoformat(day) for day in re.findall(r" until ([\d-]+)", path.read_text()))
    assert abs((last - datetime.now(UTC).date()).days - 30) <= 1

    today = [last]
    tenants = Tenants(read_tenants(path, TenantLimits()), today=lambda: today[0])
    assert tenants.authenticate({"x-api-key": key}).name == "research"
    today[0] += timedelta(days=1)
    with pytest.raises(InvalidKeyError, match=f"has ended on {last}"):
        tenants.authenticate({"x-api-key": key})

    assert main(["keys", "list", "--tenants", str(path)]) == 0
    assert str(last) in capsys.readouterr().out


@pytest.mark.parametrize("days", ["0", "-3"])
def test_a_key_ends_in_the_future(capsys: pytest.CaptureFixture[str], days: str) -> None:
    assert main(["keys", "new", "research", f"--days={days}"]) == 2
    assert f"--days: is {days}; expected 1 or more" in capsys.readouterr().err


def test_an_invalid_tenant_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the argument."""
    assert main(["keys", "new", "Re/search"]) == 2
    assert "TENANT: is 'Re/search'; expected 1 to 32 of" in capsys.readouterr().err


KEYS = tuple(new_key() for _ in range(3))
FILE = f"""# The tenants.
[[tenant]]
name = "research"   # a comment
weight = 2.0
keys = [
    "{key_line(KEYS[0])}",
    "{key_line(KEYS[1], date(2999, 1, 31))}"
]

[[tenant]]
name = "operators"
admin = true
keys = ["{key_line(KEYS[2])}"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.toml"
    path.write_text(FILE)
    path.chmod(0o640)
    return path


def test_list_shows_whose_keys_there_are(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the beginning of each digest."""
    assert main(["keys", "list", "--tenants", str(file)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    digests = [key_line(key)[: len("sha256:") + 12] for key in KEYS]
    assert rows == [
        ["research", digests[0], "-", "-", "2"],
        ["research", digests[1], "2999-01-31", "-", "2"],
        ["operators", digests[2], "-", "yes", "1"],
    ]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("is_key", [True, False])
def test_a_revoked_key_is_gone_and_the_rest_stays(file: Path, number: int, is_key: bool) -> None:
    """By the key itself or by digits of its digest; comments and permissions stay."""
    named = KEYS[number] if is_key else key_line(KEYS[number])[:20]

    assert main(["keys", "revoke", named, "--tenants", str(file)]) == 0

    tenants = Tenants(read_tenants(file, TenantLimits()))
    assert tenants.authenticate({"x-api-key": KEYS[1 - number]}).name == "research"
    assert tenants.authenticate({"x-api-key": KEYS[2]}).name == "operators"
    with pytest.raises(InvalidKeyError):
        tenants.authenticate({"x-api-key": KEYS[number]})
    assert "# a comment" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        (KEYS[2], 'is the only key of tenant "operators"; expected a further key first'),
        (new_key(), "is in no tenant's list"),
        ("abc", "is neither a key nor a digest"),
    ],
    ids=["the only one", "of nobody", "too short"],
)
def test_what_cannot_be_revoked_changes_nothing(
    file: Path, capsys: pytest.CaptureFixture[str], named: str, problem: str
) -> None:
    assert main(["keys", "revoke", named, "--tenants", str(file)]) == 2
    assert problem in capsys.readouterr().err
    assert file.read_text() == FILE


def test_list_and_revoke_need_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTELLIX_GATEWAY_TENANTS_FILE", raising=False)
    assert main(["keys", "list"]) == 2
    assert "gateway.tenants_file: is not given; expected --tenants FILE" in capsys.readouterr().err
