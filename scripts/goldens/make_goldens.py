"""Makes the reference numbers of tests/data/goldens that need nothing but token ids: tiny random models, and what the
reference implementation (transformers on torch, CPU, float32, eager attention) computes for them.

usage: python scripts/goldens/make_goldens.py [--out tests/data/goldens] [FAMILY ...]

Needs an environment of its own: pip install torch==2.13.0 transformers==5.24.0 (see README.md here). The same versions
give the same bytes. The families of tests/data/goldens that are not listed here came with tokenizers and GGUF files
from another script; their format is the same.
"""

import argparse
import json
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from families import FAMILIES, Family
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

VOCABULARY = 192
NEW_TOKENS = 24
MIN_MARGIN = 0.006
"""Smallest gap between the best and the second logit on a greedy path: three times the tests' tolerance."""
ATTEMPTS = 80
"""Draws of weights until no greedy path has a near tie and few of them repeat one token."""

Prompt = dict[str, Any]


def write_model(folder: Path, family: Family, seed: int) -> None:
    """config.json and one bfloat16 file with random weights."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = {
        **family.config,
        "vocab_size": VOCABULARY,
        "eos_token_id": 1,
        "bos_token_id": 0,
        "torch_dtype": "bfloat16",
    }
    write_json(folder / "config.json", config)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    draw_weights(model, family, seed)
    model.tie_weights()
    model.generation_config = GenerationConfig()
    model.to(torch.bfloat16).save_pretrained(folder)
    write_json(folder / "config.json", config)
    (folder / "generation_config.json").unlink(missing_ok=True)


def draw_weights(model: torch.nn.Module, family: Family, seed: int) -> None:
    """Weights under which every part matters: no norm is 1, no bias 0, and attention is not flat."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.named_parameters():
        noise = torch.randn(tensor.shape, generator=generator)
        if "norm" in name:
            tensor.copy_(1 + 0.2 * noise)
        elif name.endswith("bias"):
            tensor.copy_(0.2 * noise)
        elif "embed_tokens" in name:
            tensor.copy_(family.embedding_deviation * noise)
        else:
            tensor.copy_(_gain(name) / math.sqrt(tensor.shape[-1]) * noise)


def _gain(name: str) -> float:
    if "lm_head" in name:
        return 3.0
    return 1.4 if any(part in name for part in ("q_proj", "k_proj", "qkv_proj")) else 2.0


def load(folder: Path) -> Any:
    """In float32, without sampling defaults."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model.generation_config = GenerationConfig()
    return model


def logits_of(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """`[tokens, vocabulary]`, computed at once, without a cache."""
    return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0].float()


def greedy(model: Any, ids: Sequence[int]) -> dict[str, Any]:
    """The best next tokens, each from a computation of the whole sequence; an end token ends nothing."""
    tokens: list[int] = []
    logprobs: list[float] = []
    margin = math.inf
    for _ in range(NEW_TOKENS):
        row = torch.log_softmax(logits_of(model, [*ids, *tokens])[-1], -1)
        best, second = row.topk(2).values.tolist()
        margin = min(margin, best - second)
        tokens.append(int(row.argmax()))
        logprobs.append(best)
    return {"ids": tokens, "logprobs": logprobs, "min_margin": margin}


def prompts_of(lengths: Sequence[int], seed: int) -> list[Prompt]:
    generator = np.random.default_rng(seed)
    return [
        {
            "name": f"ids_{length}",
            "kind": "ids",
            "ids": generator.integers(2, VOCABULARY, length).tolist(),
            "len": length,
        }
        for length in lengths
    ]


def last_logits(model: Any, prompts: Sequence[Prompt]) -> np.ndarray:
    return np.stack([logits_of(model, prompt["ids"])[-1].numpy() for prompt in prompts])


def usable(prompts: Sequence[Prompt]) -> bool:
    varied = sum(len(set(prompt["greedy"]["ids"])) >= 4 for prompt in prompts)
    return all(prompt["greedy"]["min_margin"] > MIN_MARGIN for prompt in prompts) and varied >= len(prompts) - 1


def int8_reference(folder: Path, prompts: Sequence[Prompt], exact: np.ndarray) -> dict[str, Any]:
    """How far the numbers move when every matrix is rounded to int8 with one scale for each row: a yardstick."""
    model = load(folder)
    for tensor in model.parameters():
        if tensor.ndim == 2:
            scale = tensor.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
            tensor.copy_((tensor / scale).round().clamp(-127, 127) * scale)
    rounded = last_logits(model, prompts)
    error = np.abs(rounded - exact)
    return {
        "max_abs_logit_error": float(error.max()),
        "mean_abs_logit_error": float(error.mean()),
        "logit_std": float(exact.std()),
        "argmax_equal": int((rounded.argmax(-1) == exact.argmax(-1)).sum()),
    }


def make(out: Path, name: str, family: Family) -> None:
    """One folder. Exits where no weights are usable."""
    folder = out / name / "model"
    prompts = prompts_of(family.prompt_lengths, seed=sum(name.encode()))
    short_prompts = prompts_of(family.short_prompt_lengths, seed=1 + sum(name.encode()))
    for attempt in range(ATTEMPTS):
        write_model(folder, family, seed=1000 * sum(name.encode()) + attempt)
        model = load(folder)
        for prompt in (*prompts, *short_prompts):
            prompt["greedy"] = greedy(model, prompt["ids"])
        if usable([*prompts, *short_prompts]):
            break
    else:
        raise SystemExit(f"{name}: no usable weights in {ATTEMPTS} attempts")
    exact = last_logits(model, prompts)
    np.save(out / name / "last_logits.npy", exact)
    np.save(out / name / "all_logits.npy", logits_of(model, prompts[0]["ids"]).numpy())
    if short_prompts:
        np.save(out / name / "short_last_logits.npy", last_logits(model, short_prompts))
    facts = {
        "family": name,
        "computed": f"float32, eager attention, CPU, transformers {transformers.__version__}",
        "weight_attempt": attempt,
        "prompts": prompts,
        "int8_weights_reference": int8_reference(folder, prompts, exact),
    }
    write_json(out / name / "golden.json", facts | ({"short_prompts": short_prompts} if short_prompts else {}))
    size = sum(file.stat().st_size for file in (out / name).rglob("*") if file.is_file())
    print(f"{name}: attempt {attempt}, {size // 1024} KiB", flush=True)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--out", type=Path, default=Path("tests/data/goldens"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in arguments.families:
        make(arguments.out, name, FAMILIES[name])


if __name__ == "__main__":
    main()
