"""The protocol between compare.py and a contender without HTTP: one JSON object per line, a task in, figures out."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTask:
    """One run of load."""

    concurrency: int
    prompts: list[list[int]]
    """Token ids."""
    max_tokens: int
    in_waves: bool = False
    """Start `concurrency` prompts together and wait for all of them before the next; otherwise a closed loop."""

    def to_line(self) -> str:
        """For the worker's standard input."""
        return json.dumps(asdict(self))


def serve_tasks(measure: Callable[[LoadTask], dict[str, float]]) -> None:
    """Say that it is ready, then answer each line of standard input until it ends."""
    answers = _take_standard_output()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(LoadTask(**json.loads(line)))), file=answers, flush=True)


def _take_standard_output() -> TextIO:
    """The standard output for answers alone: what an engine prints goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def waves(prompts: list[list[int]], concurrency: int) -> list[list[list[int]]]:
    """The prompts in groups of `concurrency`."""
    return [prompts[start : start + concurrency] for start in range(0, len(prompts), concurrency)]


def gguf_argument() -> Path:
    """The model named on the command line."""
    return Path(sys.argv[1])
