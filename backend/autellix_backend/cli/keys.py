"""`autellix keys`: make an API key, and list or revoke keys of the tenants file.

The file holds digests only: nobody can read a key from it, and a key that is lost cannot be shown again.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autellix_backend.cli.options import add_setting_options, settings_from_args
from autellix_backend.cli.terminal import Row, Terminal
from autellix_backend.gateway.tenancy.file import check_name, read_tenants
from autellix_backend.gateway.tenancy.tenants import DIGEST_PREFIX, KEY_END, KEY_PREFIX, key_line, new_key
from autellix_backend.settings import SettingsError, TenantLimits

SHOWN_DIGITS = 12
HEADINGS = ("TENANT", "KEY (SHA-256)", "UNTIL", "ADMIN", "WEIGHT")
"""Hexadecimal digits of a digest in the list: enough to name one key."""
MIN_DIGITS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    make = actions.add_parser("new", help="print a new key, once, and its line for the tenants file")
    make.add_argument("tenant", metavar="TENANT", help="the tenant's name in the tenants file")
    make.add_argument("--days", type=int, metavar="N", help="the key ends after N days; without it, never")
    make.set_defaults(act=_new)
    listing = actions.add_parser("list", help="list the keys of the tenants file by their digests")
    add_setting_options(listing, "--tenants")
    listing.set_defaults(act=_list)
    revoke = actions.add_parser("revoke", help="remove a key from the tenants file")
    revoke.add_argument("key", metavar="KEY|DIGEST", help="the key, or the first digits of its digest")
    add_setting_options(revoke, "--tenants")
    revoke.set_defaults(act=_revoke)


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    args.act(args)
    return 0


def _new(args: argparse.Namespace) -> None:
    """Print a key and its lines for the file; nothing is written."""
    check_name(args.tenant, "TENANT")
    if args.days is not None and args.days < 1:
        raise SettingsError("--days", f"is {args.days}", "1 or more")
    key = new_key()
    last = args.days and datetime.now(UTC).date() + timedelta(days=args.days)
    print(f"Key for the clients of {args.tenant} (not stored anywhere, and not shown again):\n\n  {key}\n")
    print("Line for gateway.tenants_file (for an existing tenant, add the key to its list):\n")
    print(f'  [[tenant]]\n  name = "{args.tenant}"\n  keys = ["{key_line(key, last)}"]')


def _list(args: argparse.Namespace) -> None:
    tenants = read_tenants(_file(args), TenantLimits())
    rows = [
        Row(
            cells=(
                tenant.name,
                f"{DIGEST_PREFIX}{digest.hex()[:SHOWN_DIGITS]}",
                str(tenant.key_ends.get(digest, "-")),
                "yes" if tenant.is_admin else "-",
                f"{tenant.weight:g}",
            )
        )
        for digest, tenant in tenants.items()
    ]
    print(*Terminal.of_output().table(HEADINGS, rows), sep="\n")


def _revoke(args: argparse.Namespace) -> None:
    """Remove the key's digest from the file, and nothing else."""
    path = _file(args)
    tenants = read_tenants(path, TenantLimits())
    wanted = _digest_of(args.key)
    found = [digest for digest in tenants if digest.hex().startswith(wanted)]
    if len(found) != 1:
        problem = f"matches {len(found)} keys" if found else "is in no tenant's list"
        raise SettingsError("KEY", f"{DIGEST_PREFIX}{wanted[:SHOWN_DIGITS]} {problem}", "a key of this file")
    (digest,) = found
    tenant = tenants[digest]
    if sum(other is tenant for other in tenants.values()) == 1:
        problem = f'is the only key of tenant "{tenant.name}"'
        raise SettingsError("KEY", problem, "a further key first, or the [[tenant]] removed by hand")
    text = path.read_text(encoding="utf-8")
    _replace(path, re.sub(rf'"{DIGEST_PREFIX}{digest.hex()}(?:{KEY_END}[0-9-]*)?"\s*,?', "", text))
    print(f'{path}: removed a key of tenant "{tenant.name}"; `kill -HUP` makes a running gateway reload it')


def _digest_of(text: str) -> str:
    """Return the digits that the digest must start with."""
    if text.startswith(KEY_PREFIX):
        return hashlib.sha256(text.encode()).hexdigest()
    digits = text.removeprefix(DIGEST_PREFIX)
    if not re.fullmatch(rf"[0-9a-f]{{{MIN_DIGITS},64}}", digits):
        # Not shown: it may be part of a key.
        raise SettingsError("KEY", "is neither a key nor a digest", f"{MIN_DIGITS} or more of its hex digits")
    return digits


def _file(args: argparse.Namespace) -> Path:
    path = settings_from_args(args).gateway.tenants_file
    if path is None:
        raise SettingsError("gateway.tenants_file", "is not given", "--tenants FILE")
    return path


def _replace(path: Path, text: str) -> None:
    """Replace a file at once, and keep its permissions."""
    new = path.with_name(f"{path.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        read_tenants(new, TenantLimits())
        new.chmod(path.stat().st_mode)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
