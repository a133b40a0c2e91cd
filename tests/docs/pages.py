"""The pages of the documentation, taken apart: headings, links, code."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
    ),
    ROOT / "examples/README.md",
    ROOT / "benchmarks/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
SHELLS = ("sh", "console", "bash")

_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_ASSIGNMENT = re.compile(r"[A-Z_]+=")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Page:
    """One page."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """The path from the repository's root."""
        return str(self.path.relative_to(ROOT))

    @property
    def prose(self) -> str:
        """The text without fenced code."""
        return _FENCE.sub("", self.text)

    def fenced(self, *languages: str) -> list[str]:
        """Return the fenced code in any of these languages."""
        return [found[3] for found in _FENCE.finditer(self.text) if found[2] in languages]

    def spans(self) -> list[str]:
        """Return the code within the prose; a span may go on in the next line."""
        return [" ".join(found[1].split()) for found in _SPAN.finditer(self.prose)]

    def links(self) -> list[str]:
        """Return the targets of the links that stay inside the repository."""
        found = (target for target in _LINK.findall(_SPAN.sub("", self.prose)))
        return [target for target in found if not re.match(r"[a-z]+:", target)]

    def anchors(self) -> set[str]:
        """Return the anchors of the headings, as GitHub makes them."""
        seen: Counter[str] = Counter()
        anchors = set()
        for heading in _HEADING.findall(self.prose):
            anchor = _slug(heading)
            anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
            seen[anchor] += 1
        return anchors

    def commands(self) -> list[list[str]]:
        """Return the commands of fenced shell code, each as words; comments are left out."""
        return [
            command for code in self.fenced(*SHELLS) for words in _lines(code) for command in _parts(words)
        ]

    def prompts(self) -> list[str]:
        """Return the lines of fenced code that begin with a shell's prompt, which a copy would contain."""
        return re.findall(
            r"^ *\$ .*", "".join(found[3] for found in _FENCE.finditer(self.text)), re.MULTILINE
        )


def _slug(heading: str) -> str:
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")


def _lines(code: str) -> list[list[str]]:
    """Return the words of each command, and of the lines that it goes on in.

    With prompts, only lines that begin with one are commands; the others are output.
    """
    found, pending = [], ""
    prompt = "$ " if re.search(r"^\$ ", code, re.MULTILINE) else ""
    for line in code.splitlines():
        if pending:
            pending += "\n" + line
        elif line.startswith(prompt):
            pending = line.removeprefix(prompt).strip()
        if not pending or pending.endswith("\\"):
            continue
        try:
            found.append(shlex.split(pending.replace("\\\n", " "), comments=True))
        except ValueError:
            # A quotation goes on in the next line.
            continue
        pending = ""
    assert not pending, f"a command without an end: {pending}"
    return found


def _parts(words: list[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", "||", "|", ";", "&"):
            parts.append([])
        else:
            parts[-1].append(word)
    # A command may begin with variables for it alone.
    commands = ([*itertools.dropwhile(_ASSIGNMENT.match, part)] or part for part in parts)
    return [command for command in commands if command]


PAGES_READ = [Page(path, path.read_text(encoding="utf-8")) for path in PAGES]
