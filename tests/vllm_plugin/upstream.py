"""vLLM with the patches of `docs/design/upstream/`, in a temporary copy, and scenes played on its scheduler.

`python -m tests.vllm_plugin.upstream --seeds 5` prints the figures of the fourth patch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "docs" / "design" / "upstream"
MOST_S = 550.0


class PatchError(Exception):
    """A patch does not apply; the message is what `patch` says."""


def patched_files(patch: Path) -> list[Path]:
    """Return the files that a patch changes or makes."""
    lines = patch.read_text().splitlines()
    return [Path(line.removeprefix("+++ b/")) for line in lines if line.startswith("+++ b/")]


def make_tree(directory: Path, patches: Sequence[Path]) -> None:
    """Make a copy of the installed vLLM with patches, of links but for the files that they change.

    Raises:
        PatchError: one does not apply.
    """
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations
    installed = Path(spec.submodule_search_locations[0]).parent
    changed = {path for patch in patches for path in patched_files(patch)}
    folders = {folder for path in changed for folder in path.parents if folder.name}
    for folder in sorted(folders):
        (directory / folder).mkdir()
        for entry in (installed / folder).iterdir():
            path = folder / entry.name
            if path in changed:
                shutil.copy(entry, directory / path)
            elif path not in folders and entry.name != "__pycache__":
                (directory / path).symlink_to(entry)
    for patch in patches:
        command = ["patch", "-p1", "--batch", "--directory", str(directory), "--input", str(patch)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PatchError(f"{patch.name}: {done.stdout}{done.stderr}")


def play(directory: Path, scenes: Iterable[dict[str, Any]], most_s: float = MOST_S) -> list[dict[str, Any]]:
    """Play scenes of `upstream_scenes.py` on the vLLM in a directory; return what each returns.

    Raises:
        subprocess.CalledProcessError: a scene failed; its output has the error.
    """
    with tempfile.TemporaryDirectory() as model:
        path = [str(directory), str(ROOT), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, "-m", "tests.vllm_plugin.upstream_scenes", "-", model],
            input=json.dumps(list(scenes)),
            capture_output=True,
            text=True,
            check=False,
            timeout=most_s,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
        )
    if done.returncode:
        raise AssertionError(f"{done.stdout}\n{done.stderr[-4000:]}")
    results: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return results


CONTESTANTS: dict[str, dict[str, Any]] = {
    "fcfs": {},
    "fcfs, threshold 2,048": {"long_prefill_token_threshold": 2048},
    "short_prefill": {"scheduling_policy": "short_prefill"},
}


def main() -> None:
    """Print the figures of the fourth patch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=240.0)
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    scenes = [
        {"scene": "turns_beside_long_prefills", "seed": seed, "seconds": arguments.seconds, "options": each}
        for each in CONTESTANTS.values()
        for seed in seeds
    ]
    with tempfile.TemporaryDirectory() as folder:
        make_tree(Path(folder), sorted(PATCHES.glob("0004-*.patch")))
        results = play(Path(folder), scenes, most_s=7200.0)
    head = "| policy | seed | turns: mean, p95, most (s) | long: mean, p95, most (s) | turns, long |"
    sys.stdout.write(f"{head}\n|---|---|---|---|---|\n")
    for number, result in enumerate(results):
        name = list(CONTESTANTS)[number // len(seeds)]
        short, long = (" ".join(f"{each:.2f}" for each in result[kind]) for kind in ("turns", "long"))
        cells = (name, str(seeds[number % len(seeds)]), short, long, "{}, {}".format(*result["counts"]))
        sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
