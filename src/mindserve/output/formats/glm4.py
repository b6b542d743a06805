"""GLM-4: the whole output is the function's name and, on the next line, its arguments."""

from mindserve.output.formats.base import CallStart, End, Json, JsonArguments, Literal, Name, Space, ToolFormat

GLM4 = ToolFormat(
    name="glm4",
    starts=(CallStart(parts=(Space(), Name(), Literal("\n"), Json(), Space(), End())),),
    arguments=JsonArguments(),
    further_start=None,
    max_calls=1,
)
