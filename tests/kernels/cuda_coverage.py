"""Print which lines of the CUDA back end the plays over the stand-in run.

`python -m tests.kernels.cuda_coverage`; needs gcov. A line counts if it runs with any version of the runtime.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kernels import stand_in

PLAYS = (("schedules", 1, 300), ("failures", 1, 1), ("starts", 1, 8), ("losses", 1, 50), ("threads", 1, 10))


def main() -> int:
    """Build, play, and print the share of lines, and those that never ran."""
    cxx = os.environ.get("CXX", "g++")
    counts: dict[int, int] = {}
    text: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for runtime in stand_in.RUNTIMES:
            (folder / runtime).mkdir()
            made = stand_in.build(
                cxx, folder / runtime / "driver", extra=["-O0", "-g", "--coverage"], runtime=runtime
            )
            for play in PLAYS if runtime == "13.0" else PLAYS[:1]:
                _say(stand_in.run(made, *play).out.strip())
            for line in _lines(folder / runtime / "cuda-parts"):
                count, number, source = line.split(":", 2)
                if count.strip() == "-" or not int(number):
                    continue
                ran = 0 if "#" in count or "=" in count else int(count.strip().rstrip("*"))
                counts[int(number)] = counts.get(int(number), 0) + ran
                text[int(number)] = source
    missed = [number for number, count in sorted(counts.items()) if count == 0]
    ran = len(counts) - len(missed)
    _say(f"{ran} of {len(counts)} lines of cuda_backend.cu: {ran / len(counts):.1%}")
    for missing in missed:
        _say(f"{missing:>5} {text[missing]}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _lines(parts: Path) -> list[str]:
    part = next(parts.glob("cuda_backend-*.gcda"))
    subprocess.run(["gcov", "-m", part.name], cwd=parts, capture_output=True, check=True)
    report = next(path for path in parts.glob("*.gcov") if path.name.startswith("cuda_backend-"))
    # Templates and inline functions are listed again for each of their instances, indented alike.
    lines = report.read_text().splitlines()
    return [line for line in lines if line.count(":") >= 2 and line.split(":", 2)[1].strip().isdigit()]


if __name__ == "__main__":
    sys.exit(main())
