"""Becomes a container: `container.py SPEC` lays out the image's files in namespaces of its own.

The standard library alone, as it runs before anything of ours is in place. SPEC is JSON; `node.py` writes it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

MOUNT = "/bin/mount"


def mount(*words: str) -> None:
    """Mount something, here alone."""
    subprocess.run([MOUNT, *words], check=True)


def lay_out(spec: dict[str, Any]) -> Path:
    """Make the root folder: the machine's files, below what the image and the pod add."""
    work = Path(spec["work"])
    root, upper, inner = work / "root", work / "upper", work / "inner"
    for folder in (root, upper, inner):
        folder.mkdir(parents=True, exist_ok=True)
    mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={inner}", str(root))
    for path in spec["passable"]:
        inside(root, path).chmod(0o711)
    for path in spec["removed"]:
        target = inside(root, path)
        if not target.parent.resolve().is_relative_to(root.resolve()):
            raise ValueError(f"{path} leads out of the container")
        target.unlink(missing_ok=True)
    points = {path: inside(root, path) for path in (*spec["mounts"], *spec["homes"])}
    for point in points.values():
        point.mkdir(parents=True, exist_ok=True)
    for path in spec["homes"]:
        points[path].chmod(0o777)
    mount("--bind", spec["hosts"], str(inside(root, "/etc/hosts")))
    mount("-t", "proc", "proc", str(root / "proc"))
    for name in ("dev", "sys"):
        mount("--rbind", f"/{name}", str(root / name))
    if spec["is_read_only"]:
        mount("-o", "remount,ro", str(root))
    for path, (source, is_read_only) in spec["mounts"].items():
        mount("--bind", source, str(points[path]))
        if is_read_only:
            mount("-o", "remount,bind,ro", str(points[path]))
    return root


def inside(root: Path, path: str) -> Path:
    """Return where an absolute path of the container is."""
    return root / path.lstrip("/")


def main() -> None:
    """Become the container."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    socket.sethostname(spec["name"])
    os.chroot(lay_out(spec))
    os.chdir(spec["folder"])
    if spec["user"] is not None:
        os.setgroups([])
        os.setgid(spec["user"])
        os.setuid(spec["user"])
    os.execvpe(spec["command"][0], spec["command"], spec["environment"])


if __name__ == "__main__":
    main()
