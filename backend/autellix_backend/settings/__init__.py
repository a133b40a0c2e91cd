"""One frozen tree of settings, built at the edge from a file, the environment and the command line."""

from autellix_backend.settings.base import (
    SettingsError,
    child_environment,
    client_environment,
    default_cache_dir,
    report_secret,
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
from autellix_backend.settings.secrets import without_credentials
from autellix_backend.settings.sections import (
    ANY_CLUSTER,
    AUTO_KIND,
    ENGINE_KINDS,
    MAX_PORT,
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
from autellix_backend.settings.variables import unknown_variables

__all__ = [
    "ANY_CLUSTER",
    "AUTO_KIND",
    "ENGINE_KINDS",
    "HTTP_URL",
    "MAX_PORT",
    "BalancerSettings",
    "EngineKindChoice",
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
    "report_secret",
    "settings_to_mapping",
    "texts_of",
    "unknown_variables",
    "without_credentials",
]
