"""Our graphs compute what the reference implementation computes (tolerances: 2e-3 on logits, equal greedy tokens)."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from paged_driver import Golden, PagedDriver, driver, golden

from mindserve.settings.values import Precision

FAMILIES = ["llama", "llama-untied", "qwen2", "qwen3", "mistral", "glm", "glm4", "qwen2-moe", "qwen3-moe"]
GGUFS = [("llama", "f16")] + [(family, "q8_0") for family in FAMILIES if family != "mistral"]
FAMILIES += ["phi3", "phi3-partial", "gemma3", "llama-linear", "llama-dynamic", "llama-yarn", "qwen2-yarn"]
TOLERANCE = 2e-3
GREEDY_TOKENS = 24


def last_logits(model: PagedDriver, reference: Golden) -> np.ndarray:
    return np.concatenate([model.step(ids, 0, [len(ids) - 1]) for ids in reference.prompts])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_meets_its_reference_numbers(family: str) -> None:
    reference = golden(family)
    model = driver(reference.folder / "model")
    raw = reference.prompts[0]
    assert np.abs(model.step(raw, 0, list(range(len(raw)))) - reference.array("all_logits.npy")).max() < TOLERANCE
    assert np.abs(last_logits(model, reference) - reference.array("last_logits.npy")).max() < TOLERANCE
    for prompt in reference.facts["prompts"]:
        assert model.greedy(prompt["ids"], GREEDY_TOKENS) == prompt["greedy"]["ids"], prompt["name"]


@pytest.mark.parametrize(("family", "kind"), GGUFS)
@pytest.mark.parametrize("precision", [Precision.F32, Precision.AUTO])
def test_a_gguf_file_meets_its_reference_numbers(family: str, kind: str, precision: Precision) -> None:
    if kind == "f16" and precision is Precision.AUTO:
        precision = Precision.F16
    reference = golden(family)
    facts = reference.facts["gguf"][kind]
    model = driver(reference.folder / facts["file"], precision)
    assert np.abs(last_logits(model, reference) - reference.array(facts["last_logits"])).max() < TOLERANCE
    for prompt, greedy in zip(reference.prompts, facts["greedy"], strict=True):
        if greedy["min_margin"] > 0.006:
            assert model.greedy(prompt, GREEDY_TOKENS) == greedy["ids"]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "glm"])
def test_a_prompt_in_chunks_is_the_same_prompt(family: str) -> None:
    reference = golden(family)
    model = driver(reference.folder / "model")
    ids = max(reference.prompts, key=len)
    whole = model.step(ids, 0, [len(ids) - 1])
    for start in range(0, len(ids), 29):
        part = ids[start : start + 29]
        chunked = model.step(part, start, [len(part) - 1])
    assert np.abs(chunked - whole).max() < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_stays_within_twice_the_error_of_its_reference(family: str) -> None:
    reference = golden(family)
    allowed = reference.facts["int8_weights_reference"]
    ours = last_logits(driver(reference.folder / "model", Precision.INT8), reference)
    exact = reference.array("last_logits.npy")
    error = np.abs(ours - exact)
    assert 0 < error.mean() <= 2 * allowed["mean_abs_logit_error"]
    assert error.max() <= 2 * allowed["max_abs_logit_error"]
    assert (ours.argmax(-1) == exact.argmax(-1)).sum() >= allowed["argmax_equal"] - 1


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_int4_is_coarser_than_int8_and_not_noise(family: str) -> None:
    reference = golden(family)
    exact = reference.array("last_logits.npy")
    coarse = last_logits(driver(reference.folder / "model", Precision.INT4), reference)
    fine = last_logits(driver(reference.folder / "model", Precision.INT8), reference)
    assert np.abs(fine - exact).mean() < np.abs(coarse - exact).mean()
    assert np.corrcoef(coarse.reshape(-1), exact.reshape(-1))[0, 1] > 0.9


def test_without_its_sliding_window_mistral_would_answer_otherwise(tmp_path: Path) -> None:
    reference = golden("mistral")
    shutil.copytree(reference.folder / "model", tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.chmod(0o644)
    config.write_text(config.read_text().replace('"sliding_window": 16', '"sliding_window": null'))
    unlimited = last_logits(driver(tmp_path / "model"), reference)
    assert np.abs(unlimited - reference.array("last_logits.npy")).max() > 0.1


def test_longrope_is_that_of_the_served_context() -> None:
    """Within the original context (48) the short factors hold, for sequences that may be longer the long ones."""
    reference = golden("phi3")
    model = driver(reference.folder / "model", max_context=48)
    expected = reference.array("short_last_logits.npy")
    for row, prompt in enumerate(reference.facts["short_prompts"]):
        assert np.abs(model.step(prompt["ids"], 0, [prompt["len"] - 1])[0] - expected[row]).max() < TOLERANCE
        assert model.greedy(prompt["ids"], GREEDY_TOKENS) == prompt["greedy"]["ids"]
    ids = reference.facts["short_prompts"][-1]["ids"]
    beyond = driver(reference.folder / "model", max_context=49).step(ids, 0, [len(ids) - 1])[0]
    assert np.abs(beyond - expected[-1]).max() > 0.1
