"""Files under the media directory, and nothing else of this machine (contract: local file mode, decisions R-C18).

The path is resolved first, then opened component by component without following links: what changes between the two
steps is refused, never followed.
"""

import logging
import os
import stat
from pathlib import Path
from typing import IO

from mindserve.errors import InvalidRequest

NOT_ALLOWED = (
    "Your input local file path is not allowed!please ensure your multimedia files are placed under the media directory"
)
IS_LINK = "The path should not be a symbolic link file."
NOT_FOUND = "Can not find the input media file."
NOT_A_FILE = "The input media file is not a regular file."

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""NONBLOCK: opening a pipe must not wait for its writer."""

_log = logging.getLogger(__name__)


def open_local(path: str, media_dir: Path) -> IO[bytes]:
    """Open a regular file inside `media_dir`. Blocks on the disk. Raises InvalidRequest."""
    root = os.path.realpath(media_dir)
    inside = _resolve(_relative(path, media_dir, root), root)
    try:
        descriptor = _open_beneath(root, inside)
    except OSError as error:
        raise InvalidRequest(NOT_FOUND, param="messages") from error
    try:
        _check_regular(os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _relative(path: str, media_dir: Path, root: str) -> str:
    """By the letters of the path alone: its part below the media directory."""
    normal = os.path.normpath(path)
    if os.path.isabs(normal):
        for base in (os.path.abspath(media_dir), root):
            if normal.startswith(base.rstrip("/") + "/"):
                return normal[len(base.rstrip("/")) + 1 :]
        raise InvalidRequest(NOT_ALLOWED, param="messages")
    if normal == ".." or normal.startswith("../"):
        raise InvalidRequest(NOT_ALLOWED, param="messages")
    return normal


def _resolve(relative: str, root: str) -> str:
    """Links that stay inside are fine; returns the path below `root` that has none left."""
    try:
        real = os.path.realpath(os.path.join(root, relative), strict=True)
    except (OSError, ValueError) as error:
        raise InvalidRequest(NOT_FOUND, param="messages") from error
    if not real.startswith(root.rstrip("/") + "/"):
        raise InvalidRequest(IS_LINK if real != root else NOT_A_FILE, param="messages")
    return real[len(root.rstrip("/")) + 1 :]


def _open_beneath(root: str, relative: str) -> int:
    """Every component is opened inside the one before it, and none may be a link."""
    *directories, name = relative.split("/")
    parent = os.open(root, _DIRECTORY)
    try:
        for directory in directories:
            child = os.open(directory, _DIRECTORY, dir_fd=parent)
            os.close(parent)
            parent = child
        return os.open(name, _FILE, dir_fd=parent)
    finally:
        os.close(parent)


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidRequest(NOT_A_FILE, param="messages")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        _log.warning("A media file may be written by others than its owner (mode %o)", stat.S_IMODE(status.st_mode))
