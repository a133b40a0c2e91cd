"""The tenants file: TOML with one `[[tenant]]` per tenant. Errors name the tenant and the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from autellix_backend.gateway.tenancy.tenants import DIGEST_PREFIX, KEY_END, Tenant, Tenants
from autellix_backend.settings import (
    Settings,
    SettingsError,
    TenantLimits,
    fields_of,
    read_toml,
    section,
)

UNLIMITED = "none"
"""The value of a limit that lifts a default of the settings."""
MAX_WEIGHT = 1000.0

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_KEY = re.compile(re.escape(DIGEST_PREFIX) + rf"([0-9a-f]{{64}})(?:{KEY_END}(\d{{4}}-\d\d-\d\d))?")
_FIELDS = ("name", "weight", "admin", "keys", "models", "sort_tools", "limits")


@section("tenant")
class _TenantTable:
    """What a tenant's table holds beside its name, keys and limits."""

    weight: Annotated[float, Field(gt=0, le=MAX_WEIGHT, strict=True)] = 1.0
    admin: Annotated[bool, Field(strict=True)] = False
    sort_tools: Annotated[bool, Field(strict=True)] = False


def load_tenants(settings: Settings) -> Tenants:
    """Return the tenants of the settings' file; without one, a single tenant and no authentication.

    Raises:
        SettingsError: naming file, tenant and field.
    """
    path = settings.gateway.tenants_file
    if path is None:
        return Tenants(only_tenant=Tenant(is_admin=True, limits=settings.limits))
    return Tenants(read_tenants(path, settings.limits), read=lambda: read_tenants(path, settings.limits))


def read_tenants(path: Path, defaults: TenantLimits) -> dict[bytes, Tenant]:
    """Return the file's tenants by the digests of their keys; raises as load_tenants() does."""
    document = read_toml(path, "gateway.tenants_file")
    try:
        return _tenants_by_key(document, defaults)
    except SettingsError as error:
        raise SettingsError(error.field, error.problem, error.expected, str(path)) from error


def check_name(name: object, field_name: str) -> str:
    """Return a tenant's name.

    Raises:
        SettingsError: if it is not a valid name.
    """
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        problem = "is missing" if name is None else f"is {name!r}"
        raise SettingsError(field_name, problem, "1 to 32 of a-z, 0-9, - and _, the first a letter or digit")
    return name


def _tenants_by_key(document: Mapping[str, object], defaults: TenantLimits) -> dict[bytes, Tenant]:
    tables = document.get("tenant")
    if not (isinstance(tables, list) and tables and all(isinstance(table, dict) for table in tables)):
        raise SettingsError("tenant", "is missing or not a list of tables", "one [[tenant]] or more")
    if unknown := sorted(document.keys() - {"tenant"}):
        raise SettingsError(unknown[0], "is unknown", "[[tenant]] tables only")
    names: set[str] = set()
    owners: dict[bytes, Tenant] = {}
    for number, table in enumerate(tables, 1):
        tenant = _tenant(table, number, defaults)
        where = f'tenant "{tenant.name}"'
        if tenant.name in names:
            raise SettingsError(f"{where}: name", "appears twice", "each name once")
        names.add(tenant.name)
        for digest in _keys(table, where):
            owner = owners.setdefault(digest, tenant)
            if owner is not tenant:
                problem = f'holds a key of tenant "{owner.name}"'
                raise SettingsError(f"{where}: keys", problem, "keys of its own")
    return owners


def _tenant(table: Mapping[str, object], number: int, defaults: TenantLimits) -> Tenant:
    name = check_name(table.get("name"), f"tenant {number}: name")
    where = f'tenant "{name}"'
    if unknown := [key for key in table if key not in _FIELDS]:
        raise SettingsError(f"{where}: {unknown[0]}", "is unknown", f"one of {', '.join(_FIELDS)}")
    values: Any = {key: table[key] for key in ("weight", "admin", "sort_tools") if key in table}
    try:
        rest = _TenantTable(**values)
    except SettingsError as error:
        problem = f"{where}: {error.field.removeprefix('tenant.')}"
        raise SettingsError(problem, error.problem, error.expected) from error
    return Tenant(
        name=name,
        weight=rest.weight,
        is_admin=rest.admin,
        limits=_limits(table, where, defaults),
        models=_models(table, where),
        sorts_tools=rest.sort_tools,
        key_ends={digest: end for digest, end in _keys(table, where).items() if end is not None},
    )


def _models(table: Mapping[str, object], where: str) -> tuple[str, ...]:
    if "models" not in table:
        return ()
    models = table["models"]
    if not (isinstance(models, list) and models and all(isinstance(name, str) for name in models)):
        raise SettingsError(f"{where}: models", f"is {models!r}", "a list of names; without it, all models")
    return tuple(models)


def _keys(table: Mapping[str, object], where: str) -> dict[bytes, date | None]:
    """Return the last days of keys, None without one, by the keys' digests."""
    keys = table.get("keys")
    expected = f'a list of "{DIGEST_PREFIX}<64 hex digits>", as `autellix keys new` prints them'
    if not (isinstance(keys, list) and keys):
        raise SettingsError(f"{where}: keys", "is missing or empty", expected)
    found: dict[bytes, date | None] = {}
    for number, key in enumerate(keys, 1):
        match = _KEY.fullmatch(key) if isinstance(key, str) else None
        if match is None:
            # The value is not shown: it may be a key in clear text, entered by mistake.
            raise SettingsError(f"{where}: keys", f"number {number} is not the digest of a key", expected)
        digest = bytes.fromhex(match[1])
        if digest in found:
            # One of two lines would say that it never ends.
            raise SettingsError(f"{where}: keys", f"number {number} is there already", "each key once")
        try:
            found[digest] = date.fromisoformat(match[2]) if match[2] else None
        except ValueError:
            raise SettingsError(f"{where}: keys", f"number {number} ends on {match[2]}", "a date") from None
    return found


def _limits(table: Mapping[str, object], where: str, defaults: TenantLimits) -> TenantLimits:
    limits = table.get("limits", {})
    if not isinstance(limits, dict):
        raise SettingsError(f"{where}: limits", f"is {limits!r}", "a table")
    if unknown := [key for key in limits if key not in fields_of("limits")]:
        problem = f"{where}: limits.{unknown[0]}"
        raise SettingsError(problem, "is unknown", f"one of {', '.join(fields_of('limits'))}")
    given: Any = {key: None if value == UNLIMITED else value for key, value in limits.items()}
    try:
        return replace(defaults, **given)
    except SettingsError as error:
        expected = f'{error.expected}, or "{UNLIMITED}"'
        raise SettingsError(f"{where}: {error.field}", error.problem, expected) from error
