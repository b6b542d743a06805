"""Prompts of an exact number of tokens that no server has seen before: random words that are one token each."""

import random
import re
from pathlib import Path
from typing import Any

from gguf import GGUFReader

WORD = re.compile("\u0120[a-z]{3,}")
"""A token of a byte-level vocabulary that is a space and a whole lower-case word."""
OPENING = "Topics:"

Message = dict[str, str]


class Words:
    """The one-token words of a model's vocabulary, drawn at random from a seed."""

    def __init__(self, gguf: Path, *, seed: int) -> None:
        tokens: Any = GGUFReader(gguf).fields["tokenizer.ggml.tokens"].contents()
        self._word_ids = [token_id for token_id, token in enumerate(tokens) if WORD.fullmatch(token)]
        self._tokens: list[str] = tokens
        self._random = random.Random(seed)

    def token_ids(self, count: int) -> list[int]:
        """`count` random tokens."""
        return self._random.choices(self._word_ids, k=count)

    def text(self, count: int) -> str:
        """`count` random words, each with a space before it."""
        return "".join(" " + self._tokens[token_id][1:] for token_id in self.token_ids(count))

    def messages(self, count: int) -> list[Message]:
        """A system and a user message with `count` random words: after the template's first tokens all is new."""
        system = count // 4
        return [
            {"role": "system", "content": OPENING + self.text(system)},
            {"role": "user", "content": OPENING + self.text(count - system)},
        ]

    def multi_turn(self, *, turns: int, words_per_turn: int) -> list[list[Message]]:
        """One conversation as the requests of its turns; the answers in the history are random words too."""
        requests: list[list[Message]] = []
        history = self.messages(words_per_turn)
        for _ in range(turns):
            requests.append(list(history))
            history.append({"role": "assistant", "content": OPENING + self.text(words_per_turn)})
            history.append({"role": "user", "content": OPENING + self.text(words_per_turn)})
        return requests
