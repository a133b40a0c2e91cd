"""How to install what is missing: the one place of the commands that messages print; standard library only.

There is no release on PyPI yet, so each command names the repository. With a release, `REPOSITORY` goes.
"""

from __future__ import annotations

REPOSITORY = "https://github.com/autellix/autellix"


def pip_install(extra: str) -> str:
    """Return the shell command that adds an extra of the server's distribution, in backquotes."""
    backend = f"'autellix-backend[{extra}] @ git+{REPOSITORY}#subdirectory=backend'"
    return f"`pip install {backend} git+{REPOSITORY}`"


CPU_ENGINE = f"`make install` in a clone of {REPOSITORY}"
"""The CPU build of vLLM needs the clone's lists of what to leave out and what to replace."""

ENGINE = f"{pip_install('vllm')} with a GPU, or {CPU_ENGINE} without"
