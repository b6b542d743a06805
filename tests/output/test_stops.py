"""Stop strings."""

import random

import pytest

from mindserve.output.stops import StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher, out = StopMatcher(stops), ""
    for piece in pieces:
        out += matcher.feed(piece)
        if matcher.matched is not None:
            return out, matcher.matched
    return out + matcher.flush(), None


def naive(stops: list[str], text: str) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["lo"], "hello world", ("hel", "lo")),
        (["wor", "world"], "hello world", ("hello ", "wor")),
        (["b", "ab"], "xab", ("xa", "b")),
        (["ab", "b"], "xab", ("x", "ab")),
        (["aab"], "aaab", ("a", "aab")),
        (["北京"], "我在北京市", ("我在", "北京")),
        (["\n\n"], "a\nb\n\nc", ("a\nb", "\n\n")),
        (["nope"], "nop nop", ("nop nop", None)),
        (["Observation"], "Obs", ("Obs", None)),
    ],
)
def test_cuts_at_the_match_that_is_complete_first(stops, text, expected):
    assert run(stops, [text]) == expected
    assert run(stops, list(text)) == expected


def test_agrees_with_a_naive_search_for_any_pieces():
    rng = random.Random(7)
    for _ in range(400):
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 4))]
        text = "".join(rng.choices("abc", weights=[3, 3, 1], k=30))
        cuts = sorted(rng.sample(range(1, 30), rng.randint(0, 8)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, 30], strict=True)]
        assert run(stops, pieces) == naive(stops, text), (stops, pieces)


def test_holds_back_only_what_may_become_a_stop():
    matcher = StopMatcher(["</end>"])
    assert matcher.feed("text <") == "text "
    assert matcher.feed("/") == ""
    assert matcher.feed("b> more") == "</b> more"
