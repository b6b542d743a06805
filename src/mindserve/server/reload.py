"""Follows `openAiSupport` in the configuration file: the mode changes without a restart."""

import asyncio
import logging
from pathlib import Path

from mindserve.errors import ConfigError
from mindserve.server.state import ServerState
from mindserve.settings.mindie import api_mode, read_object

log = logging.getLogger(__name__)

INTERVAL_S = 2.0


async def watch_mode(state: ServerState) -> None:
    """Look at the file every few seconds, for ever. A file that cannot be read changes nothing."""
    file = state.settings.server.config_file
    if file is None:
        return
    seen = None  # the file may have changed between its reading and now
    while True:
        await asyncio.sleep(INTERVAL_S)
        stamp = await asyncio.to_thread(_stamp, file)
        if stamp != seen:
            seen = stamp
            await _reload(state, file)


async def _reload(state: ServerState, file: Path) -> None:
    try:
        mode = api_mode(await asyncio.to_thread(read_object, file))
    except ConfigError as error:
        log.warning("configuration not reloaded: %s", error.message)
        return
    if mode is not state.mode:
        log.info("mode changed from=%s to=%s", state.mode.value, mode.value)
        state.mode = mode


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """Changes whenever the file is written or replaced."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)
