"""Numbers that no arithmetic survives are refused where they are read, in every field that takes one."""

from __future__ import annotations

import dataclasses
import math
import typing
from pathlib import Path

import pytest

from autellix_backend.gateway.tenancy.file import read_tenants
from autellix_backend.settings import SettingsError, TenantLimits, sections

SECTIONS = [
    sections.GatewaySettings,
    sections.EngineSettings,
    sections.BalancerSettings,
    sections.SchedulerSettings,
    sections.TenantLimits,
    sections.StoreSettings,
    sections.RaySettings,
]
NO_NUMBERS = [-math.inf, math.nan, -1, -1.5, "-Infinity", "nan"]
TOO_LARGE = [math.inf, 1e308, 10**400, "inf", "1e308", "9" * 400]
MAY_BE_INFINITE = "beta"
"""`inf` turns it off, as documented; so does any huge value."""


def takes_numbers(annotation: object) -> bool:
    if annotation in (int, float):
        return True
    return any(takes_numbers(part) for part in typing.get_args(annotation))


FIELDS = [
    (section, name, annotation)
    for section in SECTIONS
    for name, annotation in typing.get_type_hints(section).items()
    if takes_numbers(annotation)
]
CASES = [
    pytest.param(*field, value, id=f"{field[1]}={str(value)[:12]}")
    for field in FIELDS
    for value in (NO_NUMBERS if field[1] == MAY_BE_INFINITE else [*NO_NUMBERS, *TOO_LARGE])
]


def test_every_kind_of_field_is_found() -> None:
    names = {name for _, name, _ in FIELDS}
    assert {"port", "kv_host_gib", "bounds", "beta", "period_steps", "stall_timeout_s", "cpus"} <= names


@pytest.mark.parametrize(("section", "name", "annotation", "value"), CASES)
def test_no_field_takes_a_number_that_breaks_arithmetic(
    section: type, name: str, annotation: object, value: object
) -> None:
    given = (value,) if typing.get_origin(annotation) is tuple else value
    with pytest.raises(SettingsError, match=name):
        section(**{name: given})


@pytest.mark.parametrize(
    "name", ["weight", *(f"limits.{each.name}" for each in dataclasses.fields(TenantLimits))]
)
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "-1", "-1.5", "1e308", "9" * 400, '"inf"', "true"])
def test_no_tenant_has_such_a_limit(tmp_path: Path, name: str, value: str) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(f'[[tenant]]\nname = "a"\n{name} = {value}\nkeys = ["sha256:{"0" * 64}"]\n')
    with pytest.raises(SettingsError, match=name.removeprefix("limits.")):
        read_tenants(path, TenantLimits())
