"""Sound in vLLM, against transformers on the same weights.

Not images: Qwen2-VL's processor needs torchvision, which the environment cannot have.
"""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration

from mindserve.engine.base import DecodedMedia, MediaInput, MediaKind
from mindserve.errors import InvalidRequest
from mindserve.media.whisper_features import WhisperConfig, WhisperProcessor
from tests_vllm.engines import events_of, request, settings_for, started, tokens_of

GOLDEN = Path(__file__).parents[1] / "tests" / "data" / "goldens" / "qwen2-audio" / "model"
AUDIO_TOKEN = 460


def make_model(directory: Path) -> Qwen2AudioForConditionalGeneration:
    """The golden model's files around larger heads, which vLLM's CPU kernels take; returns what they describe."""
    shutil.copytree(GOLDEN, directory, dirs_exist_ok=True)
    fields = json.loads((GOLDEN / "config.json").read_text())
    fields["audio_config"] |= {"d_model": 64, "encoder_attention_heads": 2, "encoder_ffn_dim": 128}
    fields["text_config"] |= {"hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 2}
    torch.manual_seed(3)
    config = Qwen2AudioConfig.from_dict(fields)
    network = Qwen2AudioForConditionalGeneration(config).float()
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() == 2 and "embed_positions" not in name:
                weight.normal_(0, (4.0 if "lm_head" in name else 1.5) / weight.shape[1] ** 0.5)
        network.get_input_embeddings().weight.normal_(0, 1.0)
    network.save_pretrained(directory)
    for name in ("tokenizer_config.json", "generation_config.json"):
        shutil.copy(GOLDEN / name, directory)
    file = directory / "model.safetensors"
    # published checkpoints have these names
    published = {_published(name): weight for name, weight in load_file(file).items()}
    save_file(published, file, metadata={"format": "pt"})
    return network.eval()


def _published(name: str) -> str:
    return name.replace("language_model.model.model.", "language_model.model.").replace(
        "language_model.model.lm_head.", "language_model.lm_head."
    )


def sound(seconds: float, hertz: float) -> np.ndarray:
    return np.sin(np.arange(int(16_000 * seconds)) * 2 * np.pi * hertz / 16_000).astype(np.float32) * 0.5


def heard(samples: np.ndarray) -> tuple[list[int], MediaInput, dict[str, torch.Tensor]]:
    """A prompt with a sound, its media, and what transformers takes."""
    features = WhisperProcessor(WhisperConfig()).audio(samples)
    prompt = [3, 4, *[AUDIO_TOKEN] * features.tokens, 9, 10]
    item = MediaInput(
        kind=MediaKind.AUDIO,
        offset=2,
        length=features.tokens,
        features={},
        digest=samples.tobytes()[-32:],
        decoded=DecodedMedia(data=samples, rate=16_000),
    )
    inputs = {
        "input_features": torch.from_numpy(features.input_features)[None],
        "feature_attention_mask": torch.from_numpy(features.feature_attention_mask)[None],
    }
    return prompt, item, inputs


async def test_sounds_are_heard_as_transformers_hears_them(tmp_path: Path) -> None:
    reference = make_model(tmp_path)
    cases = [heard(sound(seconds, hertz)) for seconds, hertz in ((0.6, 440), (1.5, 2000), (3.0, 150))]
    expected = []
    for prompt, _, inputs in cases:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            logits = reference(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).logits[0, -1].double()
        expected.append(logits.log_softmax(0))
    assert len({int(logprobs.argmax()) for logprobs in expected}) > 1, "the sounds make a difference"
    async with started(settings_for(tmp_path)) as engine:
        assert engine.info.media == {MediaKind.AUDIO}
        asked = [request(prompt, media=(item,), max_tokens=1, logprobs=5) for prompt, item, _ in cases]
        answers = await asyncio.gather(*[events_of(engine.submit(one)) for one in asked])
        for logprobs, events in zip(expected, answers, strict=True):
            assert tokens_of(events) == [int(logprobs.argmax())]
            (entry,) = events[0].logprobs or ()
            assert [i for i, _ in entry.top] == logprobs.topk(5).indices.tolist()
            assert [value for _, value in entry.top] == pytest.approx(logprobs.topk(5).values.tolist(), abs=2e-2)
        with pytest.raises(InvalidRequest, match="image"):
            other = MediaInput(kind=MediaKind.IMAGE, offset=0, length=1, features={}, digest=b"")
            engine.submit(request([AUDIO_TOKEN], media=(other,)))
