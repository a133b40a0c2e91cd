"""Pods of systemd units: each unit's command line, its environment files, folders and sandbox."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from tests.deploy.drill.pods import Container, Mount, Part, Pod, Probe, Volume

VARIABLE = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")
USER = 1000
"""Stands for the user `autellix`."""
FOLDERS = {"StateDirectory": "/var/lib", "CacheDirectory": "/var/cache"}
PRIVATE = ("/tmp", "/var/tmp")
HIDDEN = ("/home",)
"""What ProtectHome= hides; not `/root`, where this machine may have its Python."""
PROBE_PERIOD_S = 2.0
PROBE_FAILURES = 2


def directives(unit: Path) -> dict[str, list[str]]:
    """Return what a unit sets, continued lines joined; a directive may come several times."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().replace("\\\n", " ").splitlines():
        if line[:1].isalpha():
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def environment_file(text: str) -> dict[str, str]:
    """Return the variables of an environment file."""
    found = {}
    for line in text.splitlines():
        if line[:1].isalpha():
            name, _, value = line.partition("=")
            found[name] = value[1:-1] if value[:1] in "'\"" else value
    return found


def words(command: str, variables: Mapping[str, str]) -> list[str]:
    """Return the words of ExecStart=: `${NAME}` is one word or part of one, `$NAME` alone becomes several."""
    found: list[str] = []
    for word in shlex.split(command):
        if word.startswith("$") and not word.startswith("${"):
            found += variables.get(word[1:], "").split()
        else:
            found.append(VARIABLE.sub(lambda name: variables.get(name[1], ""), word))
    return found


def pod_of(
    unit: Path,
    part: Part,
    environment: Mapping[str, str],
    *,
    name: str,
    port: int,
    path: str,
) -> Pod:
    """Return the pod of a unit.

    Args:
        unit: Its file.
        part: What it is there for.
        environment: What its environment file sets.
        name: Its machine's.
        port: Where it answers.
        path: What says that it is ready.
    """
    found = directives(unit)
    [command] = found["ExecStart"]
    own = dict(
        each.partition("=")[::2] for value in found.get("Environment", ()) for each in shlex.split(value)
    )
    # The file's variables come after the unit's own.
    variables = {**own, **environment}
    paths = [f"{folder}/{value}" for name, folder in FOLDERS.items() for value in found.get(name, ())]
    paths += PRIVATE if found.get("PrivateTmp") == ["yes"] else ()
    hidden = HIDDEN if found.get("ProtectHome") == ["yes"] else ()
    mounts = [Mount(volume=each, path=each) for each in paths]
    mounts += [Mount(volume=each, path=each, is_read_only=True) for each in hidden]
    return Pod(
        name=name,
        part=part,
        main=Container(
            image=part,
            command=tuple(words(command.replace("%i", str(port)), variables)),
            environment=variables,
            user=USER if found.get("User") else None,
            is_read_only=found.get("ProtectSystem") == ["strict"],
            mounts=tuple(mounts),
        ),
        volumes=tuple(Volume(name=each) for each in (*paths, *hidden)),
        probe=Probe(port=port, path=path, period_s=PROBE_PERIOD_S, failures=PROBE_FAILURES),
        names=(name,),
        grace_s=float(found["TimeoutStopSec"][0]),
    )
