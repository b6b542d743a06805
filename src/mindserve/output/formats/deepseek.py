"""DeepSeek V3, R1-0528 and V3.1: tokens around each call and around all of them; arguments are kept as written.

A call may also begin without the outer token: after a broken call the next one does.
"""

from mindserve.output.formats.base import (
    CallStart,
    Json,
    JsonArguments,
    Literal,
    Maybe,
    Name,
    Part,
    Space,
    ToolFormat,
)

_CALLS = "<｜tool▁calls▁begin｜>"
_CALL = "<｜tool▁call▁begin｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_END = "<｜tool▁call▁end｜>"


def _starts(call: tuple[Part, ...]) -> tuple[CallStart, ...]:
    return (
        CallStart(marker=_CALLS, parts=(Space(), Literal(_CALL), *call)),
        CallStart(marker=_CALL, parts=call),
    )


DEEPSEEK_V3 = ToolFormat(
    name="deepseek_v3",
    starts=_starts(
        (
            Literal("function"),
            Literal(_SEPARATOR),
            Name(),
            Literal("\n```json\n"),
            Json(),
            Literal("\n```"),
            Space(),
            Literal(_END),
        )
    ),
    arguments=JsonArguments(is_verbatim=True),
    separator="\n",
    further_start=1,
    closing="<｜tool▁calls▁end｜>",
)

DEEPSEEK_V31 = ToolFormat(
    name="deepseek_v31",
    starts=_starts(
        (
            Name(),
            Literal(_SEPARATOR),
            Space(),
            Maybe((Literal("```json"), Space())),
            Json(),
            Space(),
            Maybe((Literal("```"), Space())),
            Literal(_END),
        )
    ),
    arguments=JsonArguments(is_verbatim=True),
    further_start=1,
    closing="<｜tool▁calls▁end｜>",
)
