"""Drafts change how fast tokens come, never which."""

import numpy as np
import pytest
from fake_runner import FakeRunner
from numpy.typing import NDArray
from test_stepper import Bench, request

from mindserve.engine.base import FinishReason, GenerateRequest, SamplingParams
from mindserve.engine.native.speculate import Drafter, can_draft, count_agreed, least_chance
from mindserve.settings.values import SchedulerSettings

DRAFTING = SchedulerSettings(max_ngram_draft=5)


class Parrot(FakeRunner):
    """Mostly says again what followed the last two tokens before; now and then something else."""

    def logits_after(self, history: tuple[int, ...]) -> NDArray[np.float32]:
        logits = super().logits_after(history)
        places = [i for i in range(2, len(history)) if history[i - 2 : i] == history[-2:]]
        if places and logits[0] < 3:
            logits[history[places[-1]]] += 30
        return logits


def run(asked: dict[int, GenerateRequest], settings: SchedulerSettings, eos: frozenset[int] = frozenset()) -> Bench:
    bench = Bench(Parrot(block_count=30), settings, eos=eos)
    for number, one in asked.items():
        bench.add(number, one)
    bench.run()
    return bench


def test_drafter_finds_the_longest_and_latest_run() -> None:
    tokens = [1, 2, 3, 9, 8, 2, 3, 7, 6, 1, 2, 3]
    assert Drafter(4).propose(tokens, 10, chance=0) == (9, 8, 2, 3)  # three tokens agree there, two at the later place
    assert Drafter(4).propose([*tokens, 5, 2, 3], 2, chance=0) == (5, 2)
    assert Drafter(4).propose([*tokens, 5, 2, 3, 4], 10, chance=0) == ()
    assert Drafter(4).propose([], 10, chance=0) == ()


def test_drafter_follows_a_loop_past_its_end() -> None:
    assert Drafter(8).propose([1, 2, 3, 1, 2], 8, chance=0) == (3, 1, 2, 3, 1, 2, 3, 1)


def test_drafter_stays_with_a_passage_that_holds() -> None:
    passage = list(range(20))
    drafter = Drafter(3)
    tokens = [*passage, 50, 5, 6, 70, 0, 1, 2]
    assert drafter.propose(tokens, 9, chance=0) == (3, 4, 5)
    tokens += [3, 4, 5, 6]  # the last two stand nearer too, but the passage goes on elsewhere
    assert drafter.propose(tokens, 9, chance=0) == (7, 8, 9)


def test_drafter_drafts_more_the_longer_it_is_right() -> None:
    passage = list(range(40))
    drafter = Drafter(9)
    tokens = [*passage, 0, 1]
    lengths: list[int] = []
    for token in range(2, 12):
        lengths.append(len(drafter.propose(tokens, 99)))
        tokens.append(token)
    assert lengths == sorted(lengths)
    assert 0 < lengths[0] < lengths[-1] == 9


def test_drafter_falls_silent_where_nothing_comes_true_and_wakes_up_again() -> None:
    drafter = Drafter(9)
    tokens = [1, 2, 3]
    drafted: list[int] = []
    for other in range(100, 140):  # a run that was there before, each time followed by something else
        tokens += [1, 2]
        drafted.append(len(drafter.propose(tokens, 99)))
        tokens.append(other)
    assert sum(drafted[:5]) > 0
    assert sum(drafted[5:]) == 0
    passage = tokens[:30]
    for token in passage[2:20]:
        tokens.append(token)
        drafter.propose(tokens, 99)
    assert len(drafter.propose(tokens, 99)) > 3


def test_the_fuller_the_step_the_surer_a_draft_must_be() -> None:
    assert least_chance(1) < least_chance(8) < least_chance(14) < 1
    tokens = [*range(20), 0, 1, 2]
    counts = [len(Drafter(9).propose(tokens, 99, chance=least_chance(decodes))) for decodes in (1, 8, 14)]
    assert counts[0] > 0
    assert counts[2] == 0


def test_count_agreed() -> None:
    assert [count_agreed((1, 2, 3), chosen) for chosen in ([1, 2, 3, 4], [1, 5, 3, 4], [5, 2, 3, 4])] == [3, 1, 0]


def test_who_can_draft() -> None:
    assert can_draft(request([1]))
    assert can_draft(request([1], temperature=1.0, top_k=1))
    assert not can_draft(request([1], temperature=1.0))
    assert not can_draft(request([1], presence_penalty=0.5))
    beam = GenerateRequest(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(), use_beam_search=True)
    assert not can_draft(beam)


@pytest.mark.parametrize("budget", [512, 9, 3])
def test_same_tokens_in_fewer_steps(budget: int) -> None:
    rng = np.random.default_rng(3)
    words = [rng.integers(0, 200, 6).tolist() for _ in range(4)]
    asked = {i: request([t for w in rng.permutation(4) for t in words[w] * 2], max_tokens=60) for i in range(3)}
    asked[3] = request(words[0] * 3, max_tokens=30, temperature=1.0, seed=5)
    asked[4] = request(words[1] * 3, max_tokens=30, logprobs=2)
    eos = frozenset({words[2][4]})
    plain = run(asked, SchedulerSettings(step_token_budget=budget), eos)
    drafted = run(asked, SchedulerSettings(step_token_budget=budget, max_ngram_draft=5), eos)
    for number in asked:
        assert drafted.tokens(number) == plain.tokens(number)
        assert drafted.reasons(number) == plain.reasons(number)
    assert max(drafted.runner.token_counts) <= budget
    stats = drafted.stepper.stats()
    assert 0 < stats.accepted_tokens < stats.draft_tokens
    if budget > 3:
        events = [sum(len(bench.events[i]) for i in asked) for bench in (plain, drafted)]
        assert events[1] < 0.9 * events[0]
    drafted.check_at_rest()


def test_logprobs_are_those_of_the_single_steps() -> None:
    asked = {0: request([5, 6, 7, 8] * 4, max_tokens=40, logprobs=3)}
    plain, drafted = (run(asked, settings) for settings in (SchedulerSettings(), DRAFTING))
    of_plain, of_drafted = (
        [entry for event in bench.events[0] for entry in event.logprobs or ()] for bench in (plain, drafted)
    )
    assert of_drafted == of_plain
    assert len(of_drafted) == 40
    assert max(len(event.token_ids) for event in drafted.events[0]) > 1


def test_never_more_tokens_than_allowed() -> None:
    for max_tokens in range(1, 12):
        bench = run({0: request([5, 6, 7, 8] * 4, max_tokens=max_tokens)}, DRAFTING)
        assert len(bench.tokens(0)) == max_tokens
        assert bench.reasons(0) == [FinishReason.LENGTH]


def test_end_token_inside_a_draft_ends_there() -> None:
    asked = {0: request([5, 6, 7, 8] * 4, max_tokens=40)}
    free = run(asked, DRAFTING).tokens(0)
    end = free[6]
    bench = run(asked, DRAFTING, frozenset({end}))
    assert bench.tokens(0) == free[: free.index(end) + 1]
    assert bench.reasons(0) == [FinishReason.STOP]
    bench.check_at_rest()


def test_drafts_take_no_blocks_from_others() -> None:
    asked = {i: request([5, 6, 7, 8] * 12, max_tokens=60) for i in range(4)}
    for blocks in (6, 8, 10):
        benches = [Bench(Parrot(block_count=blocks), settings) for settings in (SchedulerSettings(), DRAFTING)]
        for bench in benches:
            for number, one in asked.items():
                bench.add(number, one)
            bench.run()
            bench.check_at_rest()
        assert [benches[0].tokens(i) for i in asked] == [benches[1].tokens(i) for i in asked]
