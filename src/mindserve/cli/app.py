"""The commands by name."""

import typer

from mindserve.cli.chat import chat
from mindserve.cli.config import config_app
from mindserve.cli.serve import serve

app = typer.Typer(
    name="mindserve",
    help="A chat-completions inference server with a MindIE-compatible API and an engine of its own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(chat)
app.add_typer(config_app, name="config")


def main() -> None:
    """Entry point."""
    app()
