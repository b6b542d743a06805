"""Masks in other processes: pickled, they allow step by step what the original allows."""

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest

from mindserve.engine.base import TokenMask
from mindserve.output.formats.reasoning import THINK_TAGS
from mindserve.output.formats.registry import find_format
from mindserve.output.grammar import GrammarCompiler, ThoughtLimits
from mindserve.output.literals import CallableTool
from mindserve.output.plan import ThoughtPlan, ThoughtStart
from mindserve.output.schemas import closed
from mindserve.text.bytes_tokenizer import ByteTokenizer
from mindserve.text.load import load_tokenizer
from tests.output.walk import END, ids_of, make_tokenizer

ROOT = Path(__file__).parents[2]
QWEN = ROOT / "tests" / "data" / "goldens" / "qwen2" / "model"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = [CallableTool(name="get_weather", schema=closed(SCHEMA), is_strict=True)]


def thought(start: ThoughtStart, budget_tokens: int | None = None) -> ThoughtLimits:
    return ThoughtLimits(plan=ThoughtPlan(format=THINK_TAGS, start=start), budget_tokens=budget_tokens)


MASKS = {
    "json": lambda compiler: compiler.json_mask(SCHEMA),
    "any json": lambda compiler: compiler.json_mask(),
    "json after a thought": lambda compiler: compiler.json_mask(SCHEMA, thought=thought(ThoughtStart.IF_OPENED)),
    "required calls": lambda compiler: compiler.calls_mask(find_format("hermes"), TOOLS),
    "one call after a thought": lambda compiler: compiler.calls_mask(
        find_format("hermes"), TOOLS, is_single=True, thought=thought(ThoughtStart.ASSUMED, 5)
    ),
    "strict calls": lambda compiler: compiler.strict_mask(find_format("hermes"), TOOLS),
    "a budget": lambda compiler: compiler.thought_mask(thought(ThoughtStart.ASSUMED, 4)),
}


def compiler_of(kind: str) -> GrammarCompiler:
    if kind == "pieces":
        tokenizer = make_tokenizer()
        ends, files = frozenset({tokenizer.token_id(END)}), None
    elif kind == "bytes":
        tokenizer, files = ByteTokenizer(), None
        ends = frozenset({tokenizer.token_id("<|im_end|>")})
    else:
        tokenizer, files = load_tokenizer(QWEN), QWEN
        ends = frozenset({tokenizer.token_id("<|im_end|>")})
    return GrammarCompiler(tokenizer, eos_token_ids=ends, vocab_size=tokenizer.vocab_size + 40, files=files)


def walk_together(mask: TokenMask, copy: TokenMask, vocab_size: int, *, seed: int, steps: int = 60) -> int:
    """Both allow the same at every step of a random walk; returns how often that was a choice among some tokens."""
    rng, constrained = random.Random(seed), 0
    tag = mask._lexicon.encode_tag("<tool_call>")
    for step in range(steps):
        allowed = ids_of(mask, vocab_size)
        assert allowed == ids_of(copy, vocab_size)
        constrained += allowed is not None
        free = tag[step] if step < len(tag) else rng.randrange(vocab_size - 40)
        token_id = rng.choice(sorted(allowed)) if allowed else free
        mask.advance(token_id)
        copy.advance(token_id)
    return constrained


@pytest.mark.parametrize("kind", ["pieces", "bytes", "files"])
@pytest.mark.parametrize("name", MASKS)
def test_a_copy_allows_what_the_original_allows(kind: str, name: str) -> None:
    compiler = compiler_of(kind)
    vocab_size = compiler._vocab_size
    mask = MASKS[name](compiler)
    data = pickle.dumps(mask)
    constrained = [
        walk_together(mask.fork(), pickle.loads(data).fork(), vocab_size, seed=seed, steps=80) for seed in range(3)
    ]
    assert any(constrained)


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_has_gone_on_is_pickled_as_it_began(name: str) -> None:
    compiler = compiler_of("files")
    mask = MASKS[name](compiler)
    gone_on = mask.fork()
    walk_together(gone_on, mask.fork(), compiler._vocab_size, seed=7, steps=12)
    walk_together(mask, pickle.loads(pickle.dumps(gone_on)), compiler._vocab_size, seed=8)


def test_masks_of_one_model_are_small_and_share_their_vocabulary() -> None:
    compiler = compiler_of("files")
    data = [pickle.dumps(MASKS[name](compiler)) for name in ("json", "strict calls", "a budget")]
    assert max(map(len, data)) < 20_000
    json_mask, strict_mask, budget_mask = map(pickle.loads, data)
    assert json_mask._lexicon is strict_mask._lexicon is budget_mask._lexicon


def test_a_mask_reaches_a_process_that_knows_nothing_of_the_model() -> None:
    mask = MASKS["json"](compiler_of("files"))
    program = (
        "import pickle, sys\n"
        "mask = pickle.load(sys.stdin.buffer)\n"
        "mask.advance(mask._lexicon.encode('{')[0])\n"
        "sys.stdout.write(' '.join(map(str, mask.allowed().tolist())))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(mask), capture_output=True, check=True, env=os.environ
    )
    mask.advance(mask._lexicon.encode("{")[0])
    assert [int(word) for word in done.stdout.split()] == mask.allowed().tolist()
