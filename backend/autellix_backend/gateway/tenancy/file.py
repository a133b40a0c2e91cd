"""The tenants file: TOML with one `[[tenant]]` for each, read whole or refused with the place named."""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from autellix_backend.gateway.tenancy.tenants import DIGEST_PREFIX, KeyHolder, Tenant, Tenants
from autellix_backend.settings import RawValue, Settings, SettingsError, TenantLimits, convert

UNLIMITED = "none"
"""What a limit says to lift a default of the settings."""
MAX_WEIGHT = 1000.0

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_KEY = re.compile(re.escape(DIGEST_PREFIX) + r"([0-9a-f]{64})")
_FIELDS = ("name", "weight", "admin", "keys", "limits")
_LIMITS = typing.get_type_hints(TenantLimits)


def load_tenants(settings: Settings) -> Tenants:
    """Return the tenants of the settings' file, or an open door if there is none.

    Raises:
        SettingsError: naming file, tenant and field.
    """
    path = settings.gateway.tenants_file
    if path is None:
        return Tenants(open_tenant=Tenant(is_admin=True, limits=settings.limits))
    return Tenants(read_tenants(path, settings.limits), read=lambda: read_tenants(path, settings.limits))


def read_tenants(path: Path, defaults: TenantLimits) -> tuple[KeyHolder, ...]:
    """Read the file; raises as load_tenants() does."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError("gateway.tenants_file", f"cannot read {path}: {error}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError("gateway.tenants_file", f"{path} is not TOML: {error}") from error
    try:
        return _holders(document, defaults)
    except SettingsError as error:
        raise SettingsError(error.field, error.problem, error.expected, str(path)) from error


def _holders(document: Mapping[str, object], defaults: TenantLimits) -> tuple[KeyHolder, ...]:
    tables = document.get("tenant")
    if not (isinstance(tables, list) and tables and all(isinstance(table, dict) for table in tables)):
        raise SettingsError("tenant", "is missing or no list of tables", "one [[tenant]] or more")
    if unknown := sorted(document.keys() - {"tenant"}):
        raise SettingsError(unknown[0], "is unknown", "[[tenant]] tables only")
    holders = tuple(_holder(table, number, defaults) for number, table in enumerate(tables, 1))
    _check_distinct(holders)
    return holders


def check_name(name: object, field_name: str) -> str:
    """Return a tenant's name.

    Raises:
        SettingsError: if it is none.
    """
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        problem = "is missing" if name is None else f"is {name!r}"
        raise SettingsError(field_name, problem, "1 to 32 of a-z, 0-9, - and _, the first a letter or digit")
    return name


def _holder(table: Mapping[str, object], number: int, defaults: TenantLimits) -> KeyHolder:
    name = check_name(table.get("name"), f"tenant {number}: name")
    where = f'tenant "{name}"'
    if unknown := [key for key in table if key not in _FIELDS]:
        raise SettingsError(f"{where}: {unknown[0]}", "is unknown", f"one of {', '.join(_FIELDS)}")
    tenant = Tenant(
        name=name,
        weight=_weight(table, where),
        is_admin=_is_admin(table, where),
        limits=_limits(table, where, defaults),
    )
    return KeyHolder(tenant, _digests(table, where))


def _weight(table: Mapping[str, object], where: str) -> float:
    weight = table.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= MAX_WEIGHT:
        raise SettingsError(f"{where}: weight", f"is {weight!r}", f"a number above 0, up to {MAX_WEIGHT:g}")
    return float(weight)


def _is_admin(table: Mapping[str, object], where: str) -> bool:
    is_admin = table.get("admin", False)
    if not isinstance(is_admin, bool):
        raise SettingsError(f"{where}: admin", f"is {is_admin!r}", "true or false")
    return is_admin


def _digests(table: Mapping[str, object], where: str) -> tuple[bytes, ...]:
    keys = table.get("keys")
    expected = f'a list of "{DIGEST_PREFIX}<64 hex digits>", as `autellix keys new` prints them'
    if not (isinstance(keys, list) and keys):
        raise SettingsError(f"{where}: keys", "is missing or empty", expected)
    digests: list[bytes] = []
    for number, key in enumerate(keys, 1):
        match = _KEY.fullmatch(key) if isinstance(key, str) else None
        if match is None:
            # Its value is not shown: it may be a key in the clear, put there by mistake.
            raise SettingsError(f"{where}: keys", f"number {number} is no digest of a key", expected)
        digests.append(bytes.fromhex(match[1]))
    return tuple(digests)


def _limits(table: Mapping[str, object], where: str, defaults: TenantLimits) -> TenantLimits:
    limits = table.get("limits", {})
    if not isinstance(limits, dict):
        raise SettingsError(f"{where}: limits", f"is {limits!r}", "a table")
    values: dict[str, object] = {}
    for key, value in limits.items():
        name = f"{where}: limits.{key}"
        if key not in _LIMITS:
            raise SettingsError(name, "is unknown", f"one of {', '.join(_LIMITS)}")
        raw = None if value == UNLIMITED else value
        try:
            values[key] = convert(name, RawValue(raw, ""), _LIMITS[key])
        except SettingsError as error:
            expected = f'{error.expected}, or "{UNLIMITED}"'
            raise SettingsError(error.field, error.problem, expected) from error
    try:
        return replace(defaults, **values)  # type: ignore[arg-type]
    except SettingsError as error:
        raise SettingsError(f"{where}: {error.field}", error.problem, error.expected) from error


def _check_distinct(holders: tuple[KeyHolder, ...]) -> None:
    names: set[str] = set()
    owners: dict[bytes, str] = {}
    for holder in holders:
        name = holder.tenant.name
        if name in names:
            raise SettingsError(f'tenant "{name}": name', "is there twice", "each name once")
        names.add(name)
        for digest in holder.digests:
            owner = owners.setdefault(digest, name)
            if owner != name:
                problem = f'holds a key that tenant "{owner}" has too'
                raise SettingsError(f'tenant "{name}": keys', problem, "keys of its own")
