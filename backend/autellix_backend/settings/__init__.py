"""One frozen tree of settings, built at the edge from a file, the environment and the command line."""

from autellix_backend.settings.base import (
    SettingsError,
    child_environment,
    client_environment,
    default_cache_dir,
)
from autellix_backend.settings.fields import HTTP_URL, RawValue, Rule, convert, texts_of
from autellix_backend.settings.load import (
    Layer,
    build_settings,
    declaration_of,
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
    StoreSettings,
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
    "Settings",
    "SettingsError",
    "StoreSettings",
    "TenantLimits",
    "build_settings",
    "child_environment",
    "client_environment",
    "convert",
    "declaration_of",
    "default_cache_dir",
    "layer_from_environment",
    "load_settings",
    "merged_layer",
    "read_toml",
    "settings_to_mapping",
    "texts_of",
]
