"""Generated text that no parser has let go of yet."""


class Source:
    """A buffer whose characters keep their position in the whole text, and leave it in order.

    A special token that the request skips is seen by the parsers but hidden from whoever reads their content.
    """

    def __init__(self) -> None:
        self.text = ""
        self.start = 0
        """Position of the first character of `text`."""
        self._hidden: list[tuple[int, int]] = []

    def append(self, text: str) -> None:
        """Text that follows what is there."""
        self.text += text

    def hide(self, start: int, end: int) -> None:
        """Leave the positions from `start` to `end` out of what `take` returns. They may not have arrived yet."""
        self._hidden.append((start, end))

    def take(self, count: int) -> str:
        """Remove the first `count` characters and return those that are not hidden."""
        taken = self._visible(count) if self._hidden else self.text[:count]
        self.drop(count)
        return taken

    def drop(self, count: int) -> None:
        """Remove the first `count` characters."""
        self.text = self.text[count:]
        self.start += count

    def _visible(self, count: int) -> str:
        taken, position, end = "", self.start, self.start + count
        for hidden_start, hidden_end in self._hidden:
            if hidden_start < end and position < hidden_end:
                taken += self.text[position - self.start : max(hidden_start - self.start, 0)]
                position = min(hidden_end, end)
        self._hidden = [span for span in self._hidden if span[1] > end]
        return taken + self.text[position - self.start : count]


def partial_length(text: str, markers: tuple[str, ...]) -> int:
    """Length of the longest end of `text` that begins one of `markers` without being all of it."""
    longest = 0
    for marker in markers:
        for length in range(min(len(text), len(marker) - 1), longest, -1):
            if text.endswith(marker[:length]):
                longest = length
                break
    return longest
