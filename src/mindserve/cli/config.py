"""`mindserve config`: check a configuration, or show what it comes to."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mindserve.cli.operator import console, plain_errors, warn
from mindserve.server.tls import server_context
from mindserve.settings.location import load_configuration
from mindserve.settings.show import as_plain
from mindserve.settings.values import Settings

config_app = typer.Typer(help="Check and show configurations.", no_args_is_help=True)

File = Annotated[Path | None, typer.Argument(help="MindIE config.json; without it, the one that `serve` would take.")]


@config_app.command()
def check(file: File = None) -> None:
    """Say whether the server would start with this configuration; TLS files are read, the model is not."""
    settings = _load(file)
    for warning in settings.warnings:
        warn(warning)
    with plain_errors():
        for plane in (settings.server.service, settings.server.management, settings.server.metrics):
            if plane.tls is not None:
                server_context(plane.tls)
    console.print("[bold green]ok[/]")


@config_app.command()
def show(file: File = None) -> None:
    """Print the effective settings as JSON, secrets masked."""
    Console(highlight=False).print(
        json.dumps(as_plain(_load(file)), indent=2, ensure_ascii=False), markup=False, soft_wrap=True
    )


def _load(file: Path | None) -> Settings:
    with plain_errors():
        return load_configuration(file, os.environ)
