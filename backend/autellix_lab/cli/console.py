"""Consoles, progress bars and the hint to install the laboratory's packages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from autellix_backend.install import pip_install
from autellix_lab.cli.arguments import InputError

WIDTH = 150
"""Columns of the tables where the output is not a terminal."""

Follow = Callable[[str, int], Callable[[object], None]]
"""Starts a progress bar with a title and a total; returns a function that advances it."""


def make_console(*, is_stderr: bool = False) -> Console:
    """Return a console that is wide enough for the tables."""
    console = Console(stderr=is_stderr)
    return console if console.is_terminal else Console(stderr=is_stderr, width=WIDTH)


def number_table(*titles: str, title: str | None = None, texts: int = 1) -> Table:
    """Return a table whose first columns hold texts, and the others numbers."""
    table = Table(title=title, title_justify="left")
    for position, name in enumerate(titles):
        table.add_column(name, justify="left" if position < texts else "right")
    return table


@contextlib.contextmanager
def progress_bars(console: Console) -> Iterator[Follow]:
    """Show progress bars on a terminal, and nothing elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def follow(title: str, total: int) -> Callable[[object], None]:
            task = progress.add_task(title, total=total)
            return lambda _: progress.advance(task)

        yield follow


@contextlib.contextmanager
def lab_extra(purpose: str) -> Iterator[None]:
    """Name the extra to install where a package is missing.

    Raises:
        InputError: if a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"{purpose} needs {error.name}; expected {pip_install('lab')}") from error
