"""`autellix completion bash|zsh|fish`: the completion of a shell, generated from the argument parsers.

The parsers become plain data, one `Level` per subcommand, and a function per shell renders them. It completes
subcommands, options and the options' choices, and file names for everything else.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autellix_backend.cli import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The words that may follow a subcommand."""

    path: tuple[str, ...]
    """The subcommand: `()` for `autellix` itself, `("bench", "replay")`."""
    words: tuple[str, ...]
    """Subcommands, choices of arguments, and options."""
    choices: dict[str, tuple[str, ...]]
    """The values of an option, by option."""
    subcommands: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shell."""
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell to complete in")


def run(args: argparse.Namespace) -> int:
    """Print the completion, for the shell to evaluate or to load from a file."""
    parser = main.make_parser([name for name in main.all_commands() if _can_be_loaded(name)])
    print(SHELLS[args.shell](list(levels(parser))))
    return 0


def levels(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Level]:
    """Return the levels of a parser and of all its subcommands."""
    words: list[str] = []
    choices: dict[str, tuple[str, ...]] = {}
    below: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below |= action.choices
            continue
        values = tuple(str(value) for value in action.choices or ())
        words += action.option_strings or values
        if action.option_strings and values:
            choices |= dict.fromkeys(action.option_strings, values)
    yield Level(path=path, words=(*below, *words), choices=choices, subcommands=tuple(below))
    for name, child in below.items():
        yield from levels(child, (*path, name))


def _can_be_loaded(name: str) -> bool:
    """Return whether a command's packages are installed; without them only its name is completed."""
    module = main.all_commands()[name].module
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    return True


def bash(found: Sequence[Level]) -> str:
    """Return the completion for bash."""
    lines = [
        "_autellix() {",
        '  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" at="" word',
        '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        *_cases(found, lambda words: f'COMPREPLY=($(compgen -W {_quoted(words)} -- "$current"))'),
        "}",
        # File names where none of our words fits.
        "complete -o default -F _autellix autellix",
    ]
    return "\n".join(lines)


def zsh(found: Sequence[Level]) -> str:
    """Return the completion for zsh."""
    lines = [
        "#compdef autellix",
        "_autellix() {",
        '  local at="" word before="${words[CURRENT-1]}"',
        '  for word in "${(@)words[2,CURRENT-1]}"; do',
        *_cases(found, lambda words: f"compadd -- {shlex.join(words)}"),
        "  _files",
        "}",
        "compdef _autellix autellix",
    ]
    return "\n".join(lines)


def fish(found: Sequence[Level]) -> str:
    """Return the completion for fish."""
    lines = []
    for level in found:
        seen = [f"__fish_seen_subcommand_from {name}" for name in level.path]
        unseen = (
            [f"not __fish_seen_subcommand_from {' '.join(level.subcommands)}"] if level.subcommands else []
        )
        condition = shlex.quote("; and ".join([*seen, *unseen]) or "true")
        plain = [word for word in level.words if not word.startswith("-")]
        if plain:
            lines.append(f"complete -c autellix -n {condition} -a {_quoted(plain)}")
        for option in (word for word in level.words if word.startswith("-")):
            name = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            values = level.choices.get(option)
            taken = f" -x -a {_quoted(values)}" if values else ""
            lines.append(f"complete -c autellix -n {condition} {name}{taken}")
    return "\n".join(lines)


SHELLS: dict[str, Callable[[Sequence[Level]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def _cases(found: Sequence[Level], offer: Callable[[Sequence[str]], str]) -> list[str]:
    """Return the lines, for bash and zsh, that find the subcommand and offer what may follow it.

    They end a loop over the words so far: a word that is no subcommand changes nothing. An option with
    choices goes before all else.
    """
    return [
        '    case "$at|$word" in',
        *(
            f"      {_pattern(level.path, name)}) at={_pattern((*level.path, name))} ;;"
            for level in found
            for name in level.subcommands
        ),
        "    esac",
        "  done",
        '  case "$at|$before" in',
        *(
            f"    {_pattern(level.path, option)}) {offer(values)}; return ;;"
            for level in found
            for option, values in level.choices.items()
        ),
        "  esac",
        '  case "$at" in',
        *(f"    {_pattern(level.path)}) {offer(level.words)} ;;" for level in found),
        "  esac",
    ]


def _pattern(path: Sequence[str], word: str | None = None) -> str:
    joined = " ".join(path)
    return shlex.quote(joined if word is None else f"{joined}|{word}")


def _quoted(words: Sequence[str]) -> str:
    return shlex.quote(" ".join(words))
