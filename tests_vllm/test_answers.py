"""What vLLM answers through our engine, against transformers on the same weights."""

import asyncio
import math
from pathlib import Path

import pytest

from mindserve.engine.base import LOGPROB_OF_EXCLUDED, Engine, FinishReason
from mindserve.errors import InvalidRequest, ModelLoadError
from tests_vllm.engines import events_of, request, tokens_of
from tests_vllm.tiny import Reference

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOLERANCE = 2e-3


async def test_greedy_tokens_and_their_logprobs(engine: Engine, reference: Reference, prompts: list[list[int]]) -> None:
    answers = await asyncio.gather(*[events_of(engine.submit(request(prompt, logprobs=5))) for prompt in prompts])
    for prompt, events in zip(prompts, answers, strict=True):
        tokens, logprobs, _ = reference.greedy(prompt, 24)
        assert tokens_of(events) == tokens
        entries = [entry for event in events for entry in event.logprobs or ()]
        assert [entry.logprob for entry in entries] == pytest.approx(logprobs, abs=TOLERANCE)
        assert [entry.top[0][0] for entry in entries] == tokens
        assert events[-1].cumulative_logprob == pytest.approx(sum(logprobs), abs=0.05)


@pytest.mark.parametrize("name", ["rank4", "rank8"])
async def test_adapters_change_answers_as_merged_weights_do(
    engine: Engine, reference: Reference, prompts: list[list[int]], tiny: Path, name: str
) -> None:
    merged = reference.with_adapter(tiny / name)
    asked = [prompt for prompt in prompts if merged.greedy(prompt, 12)[2] > 0.05][:12]
    assert len(asked) > 5
    answers, base = await asyncio.gather(
        asyncio.gather(*[events_of(engine.submit(request(prompt, adapter=name, max_tokens=12))) for prompt in asked]),
        asyncio.gather(*[events_of(engine.submit(request(prompt, max_tokens=12))) for prompt in asked]),
    )
    for prompt, with_adapter, without in zip(asked, answers, base, strict=True):
        assert tokens_of(with_adapter) == merged.greedy(prompt, 12)[0]
        assert tokens_of(without) == reference.greedy(prompt, 12)[0]


async def test_penalties_are_ours(engine: Engine, reference: Reference, prompts: list[list[int]]) -> None:
    options = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": -0.7}
    for prompt in prompts[:3]:
        events = await events_of(engine.submit(request(prompt, max_tokens=16, logprobs=0, **options)))
        tokens = tokens_of(events)
        for i, event in enumerate(events):
            logits = reference.logits_after([*prompt, *tokens[:i]])
            for token in {*prompt, *tokens[:i]}:
                logits[token] *= 1.3 if logits[token] < 0 else 1 / 1.3
            for token in set(tokens[:i]):
                logits[token] -= 0.5 * tokens[:i].count(token) - 0.7
            (entry,) = event.logprobs or ()
            assert entry.logprob == pytest.approx(float(logits.log_softmax(0)[tokens[i]]), abs=TOLERANCE)


@pytest.mark.parametrize("temperature", [0.5, 1.7, 6.0])
async def test_logprobs_come_after_temperature_and_the_survivors_cut(
    engine: Engine, reference: Reference, prompts: list[list[int]], temperature: float
) -> None:
    prompt = prompts[0]
    options = {"temperature": temperature, "top_k": 4, "seed": 3, "max_tokens": 8, "logprobs": 6}
    events = await events_of(engine.submit(request(prompt, **options)))
    tokens = tokens_of(events)
    for i, event in enumerate(events):
        logits = reference.logits_after([*prompt, *tokens[:i]]) / temperature
        best = logits.topk(4)
        (entry,) = event.logprobs or ()
        assert tokens[i] in best.indices.tolist()
        expected = best.values.log_softmax(0).tolist()
        assert [value for _, value in entry.top[:4]] == pytest.approx(expected, abs=TOLERANCE)
        assert [value for _, value in entry.top[4:]] == [LOGPROB_OF_EXCLUDED] * 2


async def test_very_cold_is_greedy(engine: Engine, reference: Reference, prompts: list[list[int]]) -> None:
    events = await events_of(engine.submit(request(prompts[1], temperature=1e-5, seed=1)))
    assert tokens_of(events) == reference.greedy(prompts[1], 24)[0]


async def test_draws_follow_the_distribution(engine: Engine, reference: Reference, prompts: list[list[int]]) -> None:
    """128 first tokens against their probabilities."""
    prompt, count = prompts[2], 128
    events = await events_of(engine.submit(request(prompt, n=count, temperature=1.0, max_tokens=1, seed=5)))
    probabilities = reference.logits_after(prompt).softmax(0)
    likely = int(probabilities.argmax())
    share = float(probabilities[likely])
    drawn = sum(event.token_ids == (likely,) for event in events)
    assert abs(drawn - count * share) < 4 * math.sqrt(count * share * (1 - share)) + 1


async def test_seeds(engine: Engine, prompts: list[list[int]]) -> None:
    async def answer(seed: int, n: int = 3) -> list[list[int]]:
        events = await events_of(engine.submit(request(prompts[3], n=n, temperature=1.0, seed=seed, max_tokens=12)))
        return [tokens_of(events, index) for index in range(n)]

    first, crowd = await answer(2**64 - 1), await asyncio.gather(*[answer(seed) for seed in (2**64 - 1, 1, 2)])
    assert first == crowd[0]
    assert (await answer(2**64 - 1, n=1))[0] == first[0]
    assert len({tuple(tokens) for tokens in first}) == 3
    assert crowd[1] != crowd[2]


def beams_by_hand(
    reference: Reference, prompt: list[int], width: int, ends: frozenset[int], penalty: float
) -> list[tuple[list[int], float]]:
    """(tokens, sum of log-probabilities) after 8 tokens, best first."""
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int]]] = []
    for step in range(8):
        found: list[tuple[float, list[int]]] = []
        for score, tokens in running:
            logits = reference.logits_after([*prompt, *tokens])
            for token in set(tokens):
                logits[token] -= penalty * tokens.count(token)
            found += [(score + float(p), [*tokens, i]) for i, p in enumerate(logits.log_softmax(0))]
        found.sort(key=lambda one: -one[0])
        done += [one for one in found[:width] if step == 7 or one[1][-1] in ends]
        done = sorted(done, key=lambda one: -one[0] / len(one[1]))[:width]
        running = [one for one in found if one[1][-1] not in ends][:width]
        if len(done) == width and running[0][0] / len(running[0][1]) <= done[-1][0] / len(done[-1][1]):
            break
    return [(tokens, score) for score, tokens in done]


@pytest.mark.parametrize("penalty", [0.0, 1.5])
async def test_beam_search_follows_the_rule(
    engine: Engine, reference: Reference, prompts: list[list[int]], penalty: float
) -> None:
    prompt = prompts[4]
    free = beams_by_hand(reference, prompt, 3, frozenset(), penalty)
    for ends in (frozenset[int](), frozenset({free[0][0][3]})):
        options = {"use_beam_search": True, "max_tokens": 8, "frequency_penalty": penalty, "stop_token_ids": ends}
        events = await events_of(engine.submit(request(prompt, n=3, logprobs=2, **options)))
        expected = beams_by_hand(reference, prompt, 3, ends, penalty)
        assert [list(event.token_ids) for event in events] == [tokens for tokens, _ in expected]
        assert [event.cumulative_logprob for event in events] == pytest.approx([s for _, s in expected], abs=0.01)


async def test_prompts_are_found_again(engine: Engine) -> None:
    prompt = list(range(100, 300))
    first = await events_of(engine.submit(request(prompt)))
    before = engine.stats()
    second, siblings = await asyncio.gather(
        events_of(engine.submit(request(prompt))), events_of(engine.submit(request(prompt, n=4, temperature=1.0)))
    )
    assert {event.cached_tokens for event in first} == {0}
    assert {event.cached_tokens for event in (*second, *siblings)} == {192}
    assert tokens_of(first) == tokens_of(second)
    assert engine.stats().prefix_hits - before.prefix_hits >= 5 * 192


async def test_a_broken_adapter_hurts_nobody(
    engine: Engine, tiny: Path, tmp_path: Path, prompts: list[list[int]]
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_bytes((tiny / "rank4" / "adapter_config.json").read_bytes())
    (broken / "adapter_model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(ModelLoadError):
        await engine.load_adapter("broken", broken)
    with pytest.raises(InvalidRequest, match="broken"):
        engine.submit(request(prompts[0], adapter="broken"))
    assert len(tokens_of(await events_of(engine.submit(request(prompts[0], adapter="rank4"))))) == 24


async def test_adapters_can_be_loaded_again_from_elsewhere(
    engine: Engine, reference: Reference, tiny: Path, prompts: list[list[int]]
) -> None:
    """The same name and another adapter: nothing of the first is found in the prefix cache."""
    prompt = next(p for p in prompts if len(p) > 40)
    for name in ("rank4", "rank8", "rank4"):
        await engine.load_adapter("poet", tiny / name)
        events = await events_of(engine.submit(request(prompt, adapter="poet", max_tokens=6)))
        assert tokens_of(events) == reference.with_adapter(tiny / name).greedy(prompt, 6)[0]
        await engine.unload_adapter("poet")


async def test_a_request_that_no_cache_holds_waits_and_is_answered(engine: Engine) -> None:
    """More tokens than blocks: some wait, some are preempted, all end as if they were alone."""
    asked = [request([100 + i] * 300, max_tokens=200, temperature=1.0, seed=i) for i in range(80)]
    alone = tokens_of(await events_of(engine.submit(asked[40])))
    answers = await asyncio.gather(*[events_of(engine.submit(one)) for one in asked])
    assert all(len(tokens_of(events)) == 200 for events in answers)
    assert all(events[-1].finish_reason is FinishReason.LENGTH for events in answers)
    assert max(events[0].step.queue_wait_us for events in answers) > 0
    assert tokens_of(answers[40]) == alone
    assert engine.stats().preemptions > 0


async def test_a_step_of_many_streams_counts_them(engine: Engine) -> None:
    streams = [engine.submit(request([50 + i], max_tokens=8)) for i in range(100)]
    sizes = {event.step.batch_size for stream in streams for event in await events_of(stream)}
    assert 60 < max(sizes) <= 100
