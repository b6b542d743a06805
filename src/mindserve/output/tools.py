"""Finds the calls in an answer and leaves the rest as content."""

import re

from mindserve.output.arguments import ParsedCall, read_call
from mindserve.output.formats.base import CallStart, ToolFormat
from mindserve.output.matcher import CallMatch
from mindserve.output.plan import ToolPlan
from mindserve.output.source import Source, partial_length


class ToolReader:
    """Reads one choice's answer: text, calls, and text that looked like a call and is content after all.

    Text and broken blocks after the first call are dropped.
    """

    def __init__(self, plan: ToolPlan, format_: ToolFormat) -> None:
        self.calls = 0
        """Calls found so far."""
        self.is_inside_call = False
        """Whether the text ended within a call."""
        self._plan = plan
        self._format = format_
        self._starts = {start.marker: start for start in format_.starts}
        self._markers = tuple(filter(None, self._starts))
        self._find_marker = (
            re.compile("|".join(re.escape(marker) for marker in self._markers)) if self._markers else None
        )
        self._match: CallMatch | None = None
        self._marker = ""
        self._is_over = False
        self._begin(self._starts.get(""))

    def read(self, source: Source, *, is_final: bool) -> tuple[str, list[ParsedCall]]:
        """Take out of `source` all that is certain: content, and the calls that are complete now."""
        content, calls = "", list[ParsedCall]()
        while source.text or is_final:
            if self._match is None:
                content += self._seek(source, is_final=is_final)
                if self._match is None:
                    break
            is_call = self._match.advance(source.text, is_final=False)
            if is_call is None and not is_final:
                break
            if is_call is None and not self._match.advance(source.text, is_final=True):
                return content + self._give_up_all(source), calls
            call = read_call(self._format, self._match.fields, self._plan) if is_call is not False else None
            if call:
                source.drop(self._match.position)
                calls.append(call)
                self._count_call()
            else:
                content += self._give_up(source)
        return content, calls

    def _begin(self, start: CallStart | None) -> None:
        if start is not None:
            self._marker = start.marker
            self._match = CallMatch(start.parts, marker_length=len(start.marker))

    def _seek(self, source: Source, *, is_final: bool) -> str:
        """Release the text before the next marker and begin a match there."""
        found = self._find_marker.search(source.text) if self._find_marker and not self._is_over else None
        if found:
            self._begin(self._starts[found.group()])
            return self._release(source, found.start())
        held = 0 if is_final or self._is_over else partial_length(source.text, self._markers)
        return self._release(source, len(source.text) - held)

    def _give_up(self, source: Source) -> str:
        """The marker was no call's; what follows it may still hold one."""
        if self._match and self._match.is_committed and self._format.ends_at_broken_call:
            self._is_over = True
        self._match = None
        return self._release(source, len(self._marker))

    def _give_up_all(self, source: Source) -> str:
        """The text ended within what may have become a call; no part of it is a complete one."""
        self.is_inside_call, self._match = True, None
        return self._release(source, len(source.text))

    def _count_call(self) -> None:
        self._match = None
        self.calls += 1
        self._is_over = self.calls == self._format.max_calls

    def _release(self, source: Source, count: int) -> str:
        taken = source.take(count)
        return "" if self.calls else taken
