"""`autellix keys new TENANT`: print a new API key and its line for the tenants file."""

from __future__ import annotations

import argparse

from autellix_backend.gateway.tenancy.file import check_name
from autellix_backend.gateway.tenancy.tenants import key_line, new_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the action and the tenant."""
    parser.add_argument("action", choices=("new",), help="make a key")
    parser.add_argument("tenant", metavar="TENANT", help="whose key: the tenant's name in the tenants file")


def run(args: argparse.Namespace) -> int:
    """Print a key and its line; nothing is written anywhere."""
    check_name(args.tenant, "TENANT")
    key = new_key()
    print(f"Key for the clients of {args.tenant} (not stored anywhere, and not shown again):\n\n  {key}\n")
    print("Line for gateway.tenants_file (a further key goes into the list of the tenant that is there):\n")
    print(f'  [[tenant]]\n  name = "{args.tenant}"\n  keys = ["{key_line(key)}"]')
    return 0
