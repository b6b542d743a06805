"""How many prompt tokens may ride beside decodes, learned from the times that steps take.

A step with prompt tokens is longer than one without, and everybody who decodes waits for it. So a mixed step may last
`stretch` times what its decodes take alone, or longer where more prompts wait than sequences decode: the more there
are on a side, the more their wait counts. Prompts among themselves have the whole budget.

Two figures are kept: what a step of so many decodes takes, and what each prompt token adds to it at present (attention
makes a prompt's later tokens dearer). They are smoothed, and one slow step cannot move them far. Where the first one
is unknown or old, a step without prompts refreshes it.
"""

GRAIN = 8
"""Prompt tokens come in multiples of it, and at least so many, whatever they cost: prompts always move."""
RATE = 0.5
"""How much of a new time is believed."""
LARGEST_SURPRISE = 2.0
"""A time counts as at most so many times the expected one, and at least as that part of it."""
MIXED_STEPS_IN_A_ROW = 16
"""After these a step decodes alone, if nobody has made one meanwhile."""


class Pace:
    """What the engine's steps have taken lately."""

    def __init__(self, stretch: float) -> None:
        """`stretch`: see above, at least 1."""
        self._stretch = stretch
        self._decode_s: dict[int, float] = {}
        """Number of decodes -> seconds of a step with them alone."""
        self._token_s: float | None = None
        """Seconds that a prompt token adds to a step."""
        self._mixed_steps = 0
        """Since the last step without prompts."""

    def prompt_tokens(self, *, decodes: int, prompts: int) -> int | None:
        """How many may be planned beside `decodes` sequences while `prompts` have not been read; None: no limit."""
        if not decodes or not prompts:
            return None
        decode_s = self._known_decode_s(decodes)
        if decode_s is None or self._mixed_steps >= MIXED_STEPS_IN_A_ROW:
            return 0
        if self._token_s is None:
            return None
        spare_s = (self._stretch - 1) * decode_s * max(1, prompts / decodes)
        return max(1, int(spare_s / self._token_s / GRAIN)) * GRAIN

    def learn(self, *, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """A step has been computed."""
        if prompt_tokens:
            self._mixed_steps += 1
            self._learn_token(decodes, prompt_tokens, seconds)
        else:
            self._mixed_steps = 0
            self._decode_s[decodes] = _moved(self._decode_s.get(decodes, seconds), seconds)

    def _learn_token(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """What the step took beyond its decodes. Of a short step some is the tokens' at any rate."""
        beyond_s = seconds - (self._known_decode_s(decodes) or 0.0)
        token_s = max(beyond_s, seconds / 10) / prompt_tokens
        self._token_s = _moved(self._token_s or token_s, token_s)

    def _known_decode_s(self, decodes: int) -> float | None:
        """Of the nearest number of decodes that was seen, if it is near."""
        nearest = min(self._decode_s, key=lambda known: abs(known - decodes), default=None)
        is_near = nearest is not None and abs(nearest - decodes) <= decodes / 4
        return self._decode_s[nearest] if nearest is not None and is_near else None


def _moved(old: float, new: float) -> float:
    """`old`, moved towards `new`."""
    surprise = min(max(new / old, 1 / LARGEST_SURPRISE), LARGEST_SURPRISE) if old > 0 else 1.0
    return old * surprise**RATE
