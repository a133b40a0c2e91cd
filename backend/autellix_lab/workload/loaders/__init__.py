"""Loaders of other traces into program traces, one module a format."""

from autellix_lab.workload.loaders.base import LoadOptions
from autellix_lab.workload.loaders.registry import LOADERS, detect_format, load

__all__ = ["LOADERS", "LoadOptions", "detect_format", "load"]
