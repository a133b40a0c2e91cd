"""One frozen tree of settings, built at the edge from a file, the environment and the command line."""

from autellix_backend.settings.base import (
    SettingsError,
    child_environment,
    client_environment,
    default_cache_dir,
    report_secret,
)
from autellix_backend.settings.load import (
    PRESETS,
    SECTIONS,
    Layer,
    RawValue,
    build_settings,
    fields_of,
    layer_from_environment,
    load_settings,
    merged_layer,
    read_toml,
    settings_to_mapping,
    unknown_variables,
)
from autellix_backend.settings.secrets import without_credentials
from autellix_backend.settings.section import section
from autellix_backend.settings.sections import (
    AUTO_KIND,
    ENGINE_KINDS,
    BalancerSettings,
    EngineKindChoice,
    EngineSettings,
    GatewaySettings,
    ObserveSettings,
    RaySettings,
    Settings,
    StoreSettings,
    TenantLimits,
)
from autellix_backend.settings.types import ANY_CLUSTER, MAX_PORT

__all__ = [
    "ANY_CLUSTER",
    "AUTO_KIND",
    "ENGINE_KINDS",
    "MAX_PORT",
    "PRESETS",
    "SECTIONS",
    "BalancerSettings",
    "EngineKindChoice",
    "EngineSettings",
    "GatewaySettings",
    "Layer",
    "ObserveSettings",
    "RawValue",
    "RaySettings",
    "Settings",
    "SettingsError",
    "StoreSettings",
    "TenantLimits",
    "build_settings",
    "child_environment",
    "client_environment",
    "default_cache_dir",
    "fields_of",
    "layer_from_environment",
    "load_settings",
    "merged_layer",
    "read_toml",
    "report_secret",
    "section",
    "settings_to_mapping",
    "unknown_variables",
    "without_credentials",
]
