"""ChatGLM3-6B: the function's name on the first line of a segment, then a line of Python in a code fence."""

from mindserve.output.formats.base import Arguments, CallStart, Commit, Literal, Name, PythonCall, ToolFormat

_CALL = (Name(), Literal("\n ```python\n"), Commit(), PythonCall(), Literal("\n```"))

CHATGLM3 = ToolFormat(
    name="chatglm3",
    starts=(CallStart(parts=_CALL), CallStart(marker="<|assistant|>", parts=_CALL)),
    arguments=Arguments.PYTHON_CALL,
    further_start=None,
    ends_at_broken_call=True,
)
