"""A tiny random llama that vLLM's CPU kernels take (heads of 32), with two LoRA adapters, and what transformers says.

Large random weights: the answers differ from prompt to prompt, and adapters change them.
"""

import json
import shutil
from copy import deepcopy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 512
EOS = 468
TOKENIZER = Path(__file__).parents[1] / "tests" / "data" / "goldens" / "qwen2" / "model"
"""Its chat template knows tools."""
_LAYERS = 3
_SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
_PROJECTIONS = {"q_proj": (128, 128), "k_proj": (128, 64), "v_proj": (128, 64), "o_proj": (128, 128)}


def make_model(directory: Path) -> Path:
    """A Hugging Face directory, float32."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCAB,
        num_hidden_layers=_LAYERS,
        max_position_embeddings=4096,
        eos_token_id=EOS,
        bos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
        **_SIZES,
    )
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                spread = 1.0 if "embed" in name else 4.0 if "lm_head" in name else 2.0
                weight.normal_(0, spread / (1 if "embed" in name else weight.shape[1] ** 0.5))
            else:
                weight.uniform_(0.5, 1.5)
        model.lm_head.weight[EOS] = 0  # never by chance
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, directory)
    return directory


def make_adapter(directory: Path, *, rank: int, seed: int) -> Path:
    """As PEFT saves it, on the attention's projections."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(_LAYERS):
        for name, (inputs, outputs) in _PROJECTIONS.items():
            base = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{base}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) / inputs**0.5
            tensors[f"{base}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) / rank**0.5
    directory.mkdir(parents=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted(_PROJECTIONS),
        "bias": "none",
        "fan_in_fan_out": False,
        "base_model_name_or_path": None,
    }
    (directory / "adapter_config.json").write_text(json.dumps(fields))
    return directory


class Reference:
    """transformers on the same files."""

    def __init__(self, model: Path) -> None:
        torch.set_num_threads(1)  # vLLM's processes want the others; threads that wait for each other take minutes
        self._model = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()

    def logits_after(self, tokens: list[int]) -> torch.Tensor:
        """[vocab] in float64."""
        with torch.no_grad():
            return self._model(torch.tensor([tokens])).logits[0, -1].double()

    def greedy(self, prompt: list[int], count: int) -> tuple[list[int], list[float], float]:
        """Tokens, their log-probabilities, and the smallest distance between a best and a second logit."""
        with torch.no_grad():
            done = self._model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt)),
                max_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
                output_logits=True,
                return_dict_in_generate=True,
            )
        tokens = done.sequences[0, len(prompt) :].tolist()
        logits = torch.cat(done.logits).double()
        best = logits.topk(2).values
        logprobs = logits.log_softmax(-1)[range(count), tokens]
        return tokens, logprobs.tolist(), float((best[:, 0] - best[:, 1]).min())

    def with_adapter(self, adapter: Path) -> "Reference":
        """The adapter multiplied into a copy of the weights."""
        other = Reference.__new__(Reference)
        other._model = deepcopy(self._model)
        tensors = load_file(adapter / "adapter_model.safetensors")
        parameters = dict(other._model.named_parameters())
        with torch.no_grad():
            for name, up in tensors.items():
                if ".lora_B." in name:
                    down = tensors[name.replace(".lora_B.", ".lora_A.")]
                    target = name.removeprefix("base_model.model.").replace(".lora_B.", ".")
                    parameters[target] += 2.0 * up @ down
        return other
