"""Llama 3.x: the whole output is one JSON object, which may stand behind the token for code."""

from mindserve.output.formats.base import CallStart, End, Json, JsonCall, Space, ToolFormat

_CALL = (Space(), Json(), Space(), End())

LLAMA3 = ToolFormat(
    name="llama3",
    starts=(CallStart(parts=_CALL), CallStart(marker="<|python_tag|>", parts=_CALL)),
    arguments=JsonCall(arguments_key="parameters"),
    further_start=None,
    max_calls=1,
)
