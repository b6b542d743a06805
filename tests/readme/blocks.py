"""The fenced code blocks of README.md."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block, and the heading that it stands under."""

    language: str
    text: str
    heading: str
    line: int


def blocks(language: str) -> list[Block]:
    """All blocks in a language, in order."""
    document = README.read_text()
    found: list[Block] = []
    for match in FENCE.finditer(document):
        before = document[: match.start()]
        heading = re.findall(r"^#+ (.+)$", before, re.MULTILINE)[-1]
        block = Block(language=match[1], text=match[2], heading=heading, line=before.count("\n") + 1)
        found.append(block)
    return [block for block in found if block.language == language]
