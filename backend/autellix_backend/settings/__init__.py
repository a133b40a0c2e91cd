"""One frozen tree of settings, built at the edge from a file, the environment and the command line."""

from autellix_backend.settings.base import (
    SettingsError,
    child_environment,
    client_environment,
    default_cache_dir,
)
from autellix_backend.settings.fields import HTTP_URL, RawValue, Rule, Setting, convert
from autellix_backend.settings.load import (
    Layer,
    all_settings,
    build_settings,
    layer_from_environment,
    load_settings,
    merged_layer,
    read_toml,
    settings_to_mapping,
)
from autellix_backend.settings.sections import (
    ANY_CLUSTER,
    AUTO_KIND,
    ENGINE_KINDS,
    BalancerSettings,
    EngineSettings,
    GatewaySettings,
    ObserveSettings,
    RaySettings,
    Settings,
    TenantLimits,
)

__all__ = [
    "ANY_CLUSTER",
    "AUTO_KIND",
    "ENGINE_KINDS",
    "HTTP_URL",
    "BalancerSettings",
    "EngineSettings",
    "GatewaySettings",
    "Layer",
    "ObserveSettings",
    "RawValue",
    "RaySettings",
    "Rule",
    "Setting",
    "Settings",
    "SettingsError",
    "TenantLimits",
    "all_settings",
    "build_settings",
    "child_environment",
    "client_environment",
    "convert",
    "default_cache_dir",
    "layer_from_environment",
    "load_settings",
    "merged_layer",
    "read_toml",
    "settings_to_mapping",
]
