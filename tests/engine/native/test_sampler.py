"""The sampler against an obvious one that looks at every token of every row."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from fake_runner import FakeOutput, output_of
from numpy.typing import NDArray

from mindserve.engine.base import LOGPROB_OF_EXCLUDED, GenerateRequest, SamplingParams
from mindserve.engine.native.sampling import view
from mindserve.engine.native.sampling.ranking import Wanted
from mindserve.engine.native.sampling.sampler import Sampled, _Drawing, sample
from mindserve.engine.native.sampling.state import SamplerState
from mindserve.engine.native.sampling.view import candidates
from mindserve.errors import EngineFailure


@dataclass
class FixedMask:
    """Allows these tokens, always."""

    tokens: frozenset[int]
    size: int
    advanced: list[int] = field(default_factory=list)

    def allowed(self) -> NDArray[np.uint32]:
        bits = np.zeros(-(-self.size // 32) * 32, np.uint8)
        bits[sorted(self.tokens)] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def advance(self, token_id: int) -> None:
        self.advanced.append(token_id)

    def fork(self) -> "FixedMask":
        return FixedMask(self.tokens, self.size)


@dataclass
class Case:
    """One sequence: how it is sampled, and what it has generated."""

    params: SamplingParams
    prompt: list[int] = field(default_factory=lambda: [0])
    generated: list[int] = field(default_factory=list)
    mask: FixedMask | None = None

    def state(self) -> SamplerState:
        request = GenerateRequest(request_id="r", prompt_token_ids=self.prompt, sampling=self.params, mask=self.mask)
        state = SamplerState(request, 0)
        for token in self.generated:
            state.accept(token)
        return state


def obvious(row: NDArray[np.float32], case: Case, uniform: float) -> tuple[int, float, dict[int, float]]:
    """Token, log-probability, and every token's log-probability; written for the eye."""
    params, logits = case.params, {i: float(x) for i, x in enumerate(row) if x > -np.inf}
    if case.mask is not None:
        logits = {i: x for i, x in logits.items() if i in case.mask.tokens}
    for i in logits:
        if i in case.prompt or i in case.generated:
            r = params.repetition_penalty
            logits[i] = logits[i] / r if logits[i] > 0 else logits[i] * r
        count = case.generated.count(i)
        logits[i] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    order = sorted(logits, key=lambda i: (-logits[i], i))
    is_greedy = params.is_greedy
    scale = 1.0 if is_greedy else 1 / params.temperature
    weights = np.exp((np.array([logits[i] for i in order]) - logits[order[0]]) * scale)
    cumulative = np.cumsum(weights)
    kept = len(order)
    if not is_greedy and params.top_k > 0:
        kept = min(kept, params.top_k)
    if not is_greedy and params.top_p < 1:
        kept = int(np.argmax(cumulative[:kept] >= params.top_p * cumulative[kept - 1])) + 1
    mass = cumulative[kept - 1]
    index = 0 if is_greedy else int(np.argmax(cumulative[:kept] > uniform * mass))
    logprobs = {
        i: float(np.log(w / mass)) if w > 0 else LOGPROB_OF_EXCLUDED for i, w in zip(order, weights, strict=True)
    }
    logprobs |= dict.fromkeys(order[kept:], LOGPROB_OF_EXCLUDED)
    return order[index], logprobs[order[index]], logprobs


def rows_of(rng: np.random.Generator, count: int, vocab: int) -> NDArray[np.float32]:
    """Peaked and flat rows, some with many ties, some with impossible tokens."""
    rows = rng.standard_normal((count, vocab)) * rng.choice([0.3, 2.0, 5.0], (count, 1))
    rows += rng.gumbel(size=(count, vocab)) * rng.choice([0.0, 1.5], (count, 1))
    for row in rows:
        kind = rng.integers(6)
        if kind == 0:
            row[:] = np.round(row * 2) / 2
        elif kind == 1:
            row[rng.random(vocab) < 0.5] = -np.inf
        elif kind == 2:
            row[rng.integers(vocab)] += 15
    return rows.astype(np.float32)


def random_case(rng: np.random.Generator, vocab: int) -> Case:
    is_penalised, is_masked = rng.random() < 0.4, rng.random() < 0.3
    params = SamplingParams(
        temperature=float(rng.choice([0.0, 0.2, 0.7, 1.0, 1.0, 1.7])),
        top_k=int(rng.choice([0, 0, 1, 5, 40, 64, 100, 1000])),
        top_p=float(rng.choice([1.0, 1.0, 0.9, 0.5, 1e-5])),
        repetition_penalty=float(rng.choice([0.8, 1.2])) if is_penalised else 1.0,
        presence_penalty=float(rng.choice([0.0, 0.7, -0.5])) if is_penalised else 0.0,
        frequency_penalty=float(rng.choice([0.0, 0.4, -1.0])) if is_penalised else 0.0,
        seed=int(rng.integers(1 << 60)),
        logprobs=None if rng.random() < 0.6 else int(rng.integers(0, 6)),
    )
    allowed = rng.choice(vocab, int(rng.choice([3, vocab // 2 + 1])), replace=False)
    return Case(
        params=params,
        prompt=rng.integers(0, vocab, 12).tolist(),
        generated=rng.integers(0, vocab, rng.integers(0, 12)).tolist() * 2,
        mask=FixedMask(frozenset(allowed.tolist()), vocab) if is_masked else None,
    )


def sample_cases(cases: list[Case], rows: NDArray[np.float32]) -> tuple[list[Sampled], FakeOutput, list[float]]:
    states = [case.state() for case in cases]
    inverse = np.array([state.inverse_temperature for state in states], np.float32)
    output = output_of(rows, inverse)
    uniforms = [case.state().next_uniform() for case in cases]
    return sample(list(enumerate(states)), output), output, uniforms


@pytest.mark.parametrize(("vocab", "rounds"), [(20, 15), (64, 10), (300, 15), (3000, 4), (40_000, 1)])
def test_same_token_and_logprob_as_the_obvious_sampler(vocab: int, rounds: int) -> None:
    rng = np.random.default_rng(vocab)
    for _ in range(rounds):
        cases = [random_case(rng, vocab) for _ in range(24)]
        rows = rows_of(rng, 24, vocab)
        results, _, uniforms = sample_cases(cases, rows)
        for case, row, result, uniform in zip(cases, rows, results, uniforms, strict=True):
            if case.mask is not None and not any(row[i] > -np.inf for i in case.mask.tokens):
                assert result == Sampled()
                continue
            token, logprob, logprobs = obvious(row, case, uniform)
            assert result.token_id == token
            if case.params.logprobs is None:
                assert result.logprob is None
                continue
            assert result.logprob is not None
            assert result.logprob.logprob == pytest.approx(logprob, abs=2e-4)
            best = sorted(logprobs, key=lambda i: -logprobs[i])
            shown = [value for _, value in result.logprob.top]
            expected = [logprobs[i] for i in best[: case.params.logprobs]]
            assert shown == pytest.approx(expected, abs=2e-4)
            for i, value in result.logprob.top:
                assert value == pytest.approx(logprobs[i], abs=2e-4)


def test_same_with_small_glances(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where every larger view is used often, although the vocabulary is small."""
    for name, size in (("SMALL_ROW", 50), ("ESTIMATE_SIZE", 100), ("FEW", 80), ("MANY", 200)):
        monkeypatch.setattr(view, name, size)
    test_same_token_and_logprob_as_the_obvious_sampler(400, 25)


def test_large_vocabulary_without_penalties() -> None:
    """Where the part of a row that is looked at first is only estimated."""
    vocab, rng = 50_000, np.random.default_rng(5)
    rows = rows_of(rng, 60, vocab)
    cases = [
        Case(SamplingParams(top_k=k, top_p=p, seed=int(rng.integers(1 << 60))))
        for k in (0, 1000, 30_000)
        for p in (1.0, 0.95)
        for _ in range(10)
    ]
    results, _, uniforms = sample_cases(cases, rows)
    for case, row, result, uniform in zip(cases, rows, results, uniforms, strict=True):
        order = np.lexsort((np.arange(vocab), -row))
        cumulative = np.cumsum(np.exp(row[order].astype(np.float64) - float(row[order[0]])))
        kept = min(case.params.top_k or vocab, int((row > -np.inf).sum()))
        if case.params.top_p < 1:
            kept = int(np.argmax(cumulative[:kept] >= case.params.top_p * cumulative[kept - 1])) + 1
        assert result.token_id == order[np.argmax(cumulative > uniform * cumulative[kept - 1])]


def test_candidates_decide_nearly_everything() -> None:
    """A model's usual rows need no look at the full row, or the step would take much longer."""
    rng = np.random.default_rng(1)
    ranks = np.arange(1, 30_001)
    rows = np.stack([rng.permutation(-1.6 * np.log(ranks)) for _ in range(200)]).astype(np.float32)
    for params, least in ((SamplingParams(temperature=0), 200), (SamplingParams(top_p=0.8), 195)):
        wanted = [Wanted(row, Case(params).state()) for row in range(200)]
        drawing = _Drawing(wanted, output_of(rows, np.ones(200, np.float32)))
        assert 200 - len(drawing.choose(drawing.refuse_broken(), candidates)) >= least


def test_draws_follow_the_distribution() -> None:
    probabilities = np.array([0.4, 0.3, 0.2, 0.07, 0.03])
    rows = np.log(probabilities).astype(np.float32)[None]
    state = Case(SamplingParams(seed=9)).state()
    output = output_of(rows, np.ones(1, np.float32))
    tokens = [sample([(0, state)], output)[0].token_id for _ in range(4000)]
    observed = np.bincount(np.array(tokens), minlength=5)
    expected = 4000 * probabilities
    assert ((observed - expected) ** 2 / expected).sum() < 18.5  # chi-square, 4 degrees, one in a thousand


def test_seed_gives_the_same_numbers_and_siblings_have_their_own() -> None:
    request = GenerateRequest(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(seed=2**64 - 1), n=2)
    first, again, sibling = (SamplerState(request, index) for index in (0, 0, 1))
    numbers = [first.next_uniform() for _ in range(200)]
    assert numbers == [again.next_uniform() for _ in range(200)]
    assert set(numbers).isdisjoint([sibling.next_uniform() for _ in range(200)])
    unseeded = [Case(SamplingParams()).state().next_uniform() for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_ties_go_to_the_lowest_id() -> None:
    row = np.zeros((1, 500), np.float32)
    results, _, _ = sample_cases([Case(SamplingParams(temperature=0))], row)
    assert results[0].token_id == 0
    row[0, [30, 70, 400]] = 1
    results, _, _ = sample_cases([Case(SamplingParams(temperature=0))], row)
    assert results[0].token_id == 30


def test_what_is_wrong_with_one_row_stays_there() -> None:
    rows = np.zeros((4, 300), np.float32)
    rows[0, 5], rows[1], rows[2, 6], rows[3] = 9, np.nan, 9, -np.inf
    greedy = SamplingParams(temperature=0)
    cases = [Case(greedy), Case(greedy), Case(greedy, mask=FixedMask(frozenset(), 300)), Case(greedy)]
    results, _, _ = sample_cases(cases, rows)
    assert results[0].token_id == 5
    assert isinstance(results[1].error, EngineFailure)
    assert results[2] == Sampled()
    assert isinstance(results[3].error, EngineFailure)


def test_several_sequences_draw_from_one_row() -> None:
    rows = np.random.default_rng(0).standard_normal((1, 300)).astype(np.float32)
    request = GenerateRequest(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(seed=4), n=50)
    states = [SamplerState(request, index) for index in range(50)]
    results = sample([(0, state) for state in states], output_of(rows, np.ones(1, np.float32)))
    assert len({result.token_id for result in results}) > 10
    assert all(result.logprob is not None and result.logprob.top == () for result in results)


def test_short_masks_forbid_what_they_do_not_reach() -> None:
    """A padded vocabulary is larger than the tokenizer's."""
    rows = np.arange(400, dtype=np.float32)[None]
    for temperature in (0.0, 1.0):
        case = Case(SamplingParams(temperature=temperature), mask=FixedMask(frozenset({3, 9}), 40))
        assert sample_cases([case], rows)[0][0].token_id == 9
