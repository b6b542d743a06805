"""The one rule for names of functions: in tools, in `tool_choice` and in calls of earlier messages."""

import re

from mindserve.contract.failure import failure

MAX_CHARS = 64
PATTERN = r"^[a-zA-Z0-9_\u4e00-\u9fa5-]{1,64}$"
TEXT = (
    "The name of function must be a-z, A-Z, 0-9, common chinese characters, underscores and dashe "
    "within max length of 64, unexpected function name: {name}"
)

_ALLOWED = re.compile(PATTERN.removeprefix("^").removesuffix("$"))


def check_function_name(name: str, *, param: str) -> None:
    """Raise InvalidRequest unless the name is allowed."""
    if not _ALLOWED.fullmatch(name):
        raise failure(TEXT, param=param, name=name)
