"""One frozen tree of settings, built at the edge from a file, the environment and the command line."""

from autellix_backend.settings.balancer import BalancerSettings
from autellix_backend.settings.base import (
    SettingsError,
    check_url,
    child_environment,
    client_environment,
    default_cache_dir,
)
from autellix_backend.settings.convert import Given, convert
from autellix_backend.settings.limits import TenantLimits
from autellix_backend.settings.load import (
    Layer,
    build_settings,
    layer_from_environment,
    layer_from_file,
    load_settings,
    merged_layer,
    settings_to_mapping,
)
from autellix_backend.settings.ray import ANY_CLUSTER, RaySettings
from autellix_backend.settings.tree import (
    AUTO_KIND,
    ENGINE_KINDS,
    EngineSettings,
    GatewaySettings,
    ObserveSettings,
    Settings,
)

__all__ = [
    "ANY_CLUSTER",
    "AUTO_KIND",
    "ENGINE_KINDS",
    "BalancerSettings",
    "EngineSettings",
    "GatewaySettings",
    "Given",
    "Layer",
    "ObserveSettings",
    "RaySettings",
    "Settings",
    "SettingsError",
    "TenantLimits",
    "build_settings",
    "check_url",
    "child_environment",
    "client_environment",
    "convert",
    "default_cache_dir",
    "layer_from_environment",
    "layer_from_file",
    "load_settings",
    "merged_layer",
    "settings_to_mapping",
]
