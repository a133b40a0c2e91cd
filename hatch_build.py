"""Hatchling's hooks: the native library of an installation or a wheel, and the README with whole links."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = "https://github.com/autellix/autellix"


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles `csrc/` before an editable installation or a wheel is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and tag a wheel with a library for this platform."""
        root = Path(self.root)
        native = _builder(root)
        made = native.build(root, os.environ.get("AUTELLIX_NATIVE", "auto"))
        self.app.display_info(f"swap kernel: {made}")
        if version == "standard" and made != "off":
            # The library has a C interface, so one wheel serves every Python of the platform.
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"


class ReadmeHook(MetadataHookInterface):
    """Gives the package the README, whose links lead into the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the long description."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": with_whole_links(text)}


def with_whole_links(markdown: str) -> str:
    """Return Markdown whose relative links and pictures are those of the repository's main branch."""
    pictures = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:|#)", rf"\g<1>{REPOSITORY}/raw/main/", markdown)
    return re.sub(r"((?<!!)\[[^\[\]]*\]\()(?![a-z]+:|#)", rf"\g<1>{REPOSITORY}/blob/main/", pictures)


def _builder(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_native", root / "scripts" / "build_native.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
