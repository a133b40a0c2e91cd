"""Hatchling's hook that compiles the native library of an installation or a wheel."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles `csrc/` before an editable installation or a wheel is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and tag a wheel with a library for this platform."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        # An sdist has the sources inside; in the repository they are beside this folder.
        sources = root if (root / "csrc").is_dir() else root.parent
        native = _builder(sources)
        made = native.build(sources, os.environ.get("AUTELLIX_NATIVE", "auto"))
        self.app.display_info(f"swap kernel: {made}")
        if version == "standard" and made != "off":
            # The library has a C interface, so one wheel serves every Python of the platform.
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"


def _builder(sources: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_native", sources / "scripts" / "build_native.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
