"""The command line: `mindserve serve`, `chat` and `config`. Here everything is put together, and nowhere else."""

from mindserve.cli.app import main

__all__ = ["main"]
