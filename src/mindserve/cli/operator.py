"""What the operator sees on the terminal: errors without tracebacks, warnings, progress."""

import contextlib
import threading
from collections.abc import Callable, Generator

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from mindserve.errors import MindserveError

Report = Callable[[str, float], None]
"""Told what is being done and the share of it that is done; called from any thread."""

console = Console(stderr=True, highlight=False)


@contextlib.contextmanager
def plain_errors() -> Generator[None]:
    """An operator's mistake is one clear line and exit code 1."""
    try:
        yield
    except MindserveError as error:
        console.print(f"[bold red]error:[/] {_escaped(error.message)}", soft_wrap=True)
        raise typer.Exit(1) from None


def warn(message: str) -> None:
    """A line about something that does not stop the server."""
    console.print(f"[yellow]warning:[/] {_escaped(message)}", soft_wrap=True)


@contextlib.contextmanager
def progress_bars() -> Generator[Report]:
    """One bar for each thing reported; on something that is no terminal, one line when it begins."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            yield _Bars(progress).report
    else:
        yield _Lines().report


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def report(self, what: str, share: float) -> None:
        with self._lock:
            if what not in self._tasks:
                self._tasks[what] = self._progress.add_task(what, total=1.0)
        self._progress.update(self._tasks[what], completed=share)


class _Lines:
    def __init__(self) -> None:
        self._said: set[str] = set()

    def report(self, what: str, share: float) -> None:
        if what not in self._said:
            self._said.add(what)
            console.print(f"{_escaped(what)} ...")


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")
