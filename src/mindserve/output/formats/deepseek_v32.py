"""DeepSeek V3.2: calls as tags of a mark-up of its own, whose prefix models leave out at times."""

from mindserve.output.formats.base import (
    Arguments,
    CallStart,
    Key,
    Literal,
    Many,
    Name,
    Part,
    Space,
    ToolFormat,
    TypeFlag,
    Value,
)

_PREFIX = "｜DSML｜"


def _starts(prefix: str) -> tuple[CallStart, ...]:
    invoke, end = f'<{prefix}invoke name="', f"</{prefix}invoke>"
    parameter = (
        Literal(f'<{prefix}parameter name="'),
        Key(end='"'),
        Literal('" string="'),
        TypeFlag(),
        Literal('">'),
        Value(end=f"</{prefix}parameter>", forbidden=end),
        Space("\n"),
    )
    call: tuple[Part, ...] = (Name(), Literal('">'), Space("\n"), Many(parameter), Literal(end))
    return (
        CallStart(marker=f"<{prefix}function_calls>", parts=(Space("\n"), Literal(invoke), *call)),
        CallStart(marker=invoke, parts=call),
    )


DEEPSEEK_V32 = ToolFormat(
    name="deepseek_v32",
    starts=(*_starts(_PREFIX), *_starts("")),
    arguments=Arguments.PARAMETERS,
    separator="\n",
    further_start=1,
    closing=f"\n</{_PREFIX}function_calls>",
)
