"""Adapters beside a model: which modules they may change, what that changes, and when a graph is compiled."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from peft_files import random_pair, write_adapter
from safetensors.numpy import load_file, save_file

from mindserve.engine.native.adapters.loaded import MAX_TOTAL_RANK, BaseModel, NativeAdapters
from mindserve.engine.native.adapters.peft import LowRank, PeftAdapter
from mindserve.engine.native.adapters.places import Place, fit
from mindserve.engine.native.blocks import blocks_for
from mindserve.engine.native.compiled import CompiledModel
from mindserve.engine.native.kernels import EXACT
from mindserve.engine.native.models.families.registry import FAMILIES
from mindserve.engine.native.models.loader import load_model, read_spec
from mindserve.engine.native.step import StepBatch
from mindserve.errors import ModelLoadError
from mindserve.settings.values import Precision

GOLDENS = Path(__file__).parents[3] / "data" / "goldens"
IDS = [5, 9, 13, 60, 61, 62, 63]
Pairs = Mapping[str, tuple[NDArray[Any], NDArray[Any]]]


class Beside:
    """A model and its adapters, with a record of what was compiled."""

    def __init__(self, model: Path) -> None:
        self._path = model
        self._core = ov.Core()
        self.compiled: list[CompiledModel] = []
        self.base = self._compile(self._open().graph)
        self.adapters = NativeAdapters(self._open, self._compile)

    def _open(self) -> BaseModel:
        graph = load_model(self._path, Precision.F32, progress=lambda what, share: None).graph
        return BaseModel(graph, *read_spec(self._path))

    def _compile(self, graph: ov.Model) -> CompiledModel:
        model = CompiledModel(self._core, graph, EXACT, threads=1)
        model.allocate_cache(16)
        self.compiled.append(model)
        return model

    def add(self, key: str, path: Path) -> None:
        self.adapters.add(key, path)()

    def logits(self, *keys: str | None, ids: list[int] = IDS) -> NDArray[np.float32]:
        """Of the last of the tokens, once per key, in one batch."""
        batch = batch_of(keys, ids)
        tensor = self.adapters.infer(batch) if batch.adapters else self.base.infer(batch)
        return tensor.data.copy()


def batch_of(keys: tuple[str | None, ...], ids: list[int]) -> StepBatch:
    count, each = len(keys), len(ids)
    blocks = blocks_for(each)
    return StepBatch(
        token_ids=np.array(ids * count, np.int64),
        positions=np.array([*range(each)] * count, np.int64),
        past_lens=np.zeros(count, np.int32),
        subsequence_begins=np.arange(count + 1, dtype=np.int32) * each,
        block_indices=np.arange(count * blocks, dtype=np.int32),
        block_indices_begins=np.arange(count + 1, dtype=np.int32) * blocks,
        max_context_len=each,
        sample_rows=np.arange(1, count + 1, dtype=np.int64) * each - 1,
        inverse_temperature=np.ones(count, np.float32),
        adapters=() if all(key is None for key in keys) else keys,
    )


@pytest.fixture(scope="module")
def llama() -> Beside:
    return Beside(GOLDENS / "llama" / "model")


@pytest.fixture
def beside() -> Beside:
    return Beside(GOLDENS / "llama" / "model")


def shapes(model: Path) -> dict[str, tuple[int, int]]:
    """Rows and columns of each kind of module."""
    config = read_spec(model)[0].config
    hidden, wide, head = config.hidden_size, config.intermediate_size, config.head_dim
    return {
        "self_attn.q_proj": (config.num_heads * head, hidden),
        "self_attn.k_proj": (config.num_kv_heads * head, hidden),
        "self_attn.v_proj": (config.num_kv_heads * head, hidden),
        "self_attn.o_proj": (hidden, config.num_heads * head),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }


def pairs(family: str, *roles: str, rank: int = 2, layer: int = 0) -> Pairs:
    sizes = shapes(GOLDENS / family / "model")
    return {f"model.layers.{layer}.{role}": random_pair(*sizes[role], rank=rank, seed=len(role)) for role in roles}


def merged_logits(family: str, changes: Pairs, scale: float, folder: Path) -> NDArray[np.float32]:
    """What the model answers with the change in its weights."""
    shutil.copytree(GOLDENS / family / "model", folder, copy_function=shutil.copyfile)
    file = folder / "model.safetensors"
    weights = {name: array.astype(np.float32) for name, array in load_file(file).items()}
    for name, (a, b) in changes.items():
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + np.float32(scale) * b @ a
    file.unlink()
    save_file(weights, file)
    return Beside(folder).logits(None)


@pytest.mark.parametrize(
    ("family", "role"),
    [
        *(("llama", f"self_attn.{letter}_proj") for letter in "qkvo"),
        *(("llama", f"mlp.{role}_proj") for role in ("gate", "up", "down")),
        *(("glm", f"self_attn.{letter}_proj") for letter in "qkv"),
    ],
)
def test_one_module_changes_as_its_weight_would(family: str, role: str, tmp_path: Path) -> None:
    """glm turns neighbouring dimensions: its graph has the rows of q and k in another order than its files."""
    changes = pairs(family, role)
    model = Beside(GOLDENS / family / "model")
    model.add("a", write_adapter(tmp_path / "adapter", changes))
    found = model.logits("a", None)
    expected = merged_logits(family, changes, 2.0, tmp_path / "merged")
    assert np.abs(found[0] - expected[0]).max() < 2e-3
    assert np.abs(found[1] - model.logits(None)[0]).max() < 1e-4
    assert np.abs(found[0] - found[1]).max() > 0.01


@pytest.mark.parametrize(
    ("family", "file", "tolerance"),
    [("llama", "model", 2e-3), ("qwen2", "model", 2e-3), ("llama", "llama.f16.gguf", 0.05)],
)
def test_logits_meet_the_reference(family: str, file: str, tolerance: float) -> None:
    """GGUF files have the rows of q and k in another order than the files that adapters are made for."""
    folder = GOLDENS / family
    facts = json.loads((folder / "golden.json").read_text())
    prompts = {prompt["name"]: prompt["ids"] for prompt in facts["prompts"]}
    model = Beside(folder / file)
    for name in ("lora-r4", "lora-r8"):
        model.add(name, folder / name)
    for name, lora in facts["lora"].items():
        expected = np.load(folder / lora["last_logits"])
        for prompt, row in zip(lora["prompts"], expected, strict=True):
            found = model.logits(None, name, ids=prompts[prompt])
            assert np.abs(found[1] - row).max() < tolerance
            assert np.abs(found[0] - row).max() > 1


def test_ranks_and_targets_may_differ_in_one_batch(beside: Beside, tmp_path: Path) -> None:
    beside.add("a", write_adapter(tmp_path / "a", pairs("llama", "self_attn.q_proj", "mlp.down_proj")))
    alone = beside.logits("a")[0]
    wide = pairs("llama", "self_attn.k_proj", "mlp.gate_proj", rank=5, layer=1)
    beside.add("b", write_adapter(tmp_path / "b", wide, r=5))
    found = beside.logits("b", None, "a")
    assert np.abs(found[2] - alone).max() < 1e-4
    assert np.abs(found[1] - beside.logits(None)[0]).max() < 1e-4
    assert np.abs(found[0] - found[1]).max() > 0.01
    beside.adapters.remove("a")()
    assert np.abs(beside.logits("b")[0] - found[0]).max() < 1e-4


def test_a_graph_is_compiled_only_where_an_adapter_needs_new_places(beside: Beside, tmp_path: Path) -> None:
    first = write_adapter(tmp_path / "a", pairs("llama", "self_attn.q_proj", "mlp.up_proj"))
    same_places = write_adapter(tmp_path / "b", pairs("llama", "self_attn.k_proj", "mlp.gate_proj"))
    more = write_adapter(tmp_path / "c", pairs("llama", "mlp.down_proj"))
    counts: list[int] = []
    for key, path in (("a", first), ("b", same_places), ("c", more)):
        beside.add(key, path)
        counts.append(len(beside.compiled))
    assert counts == [2, 2, 3]


def test_a_change_counts_from_when_it_is_put_to_use(beside: Beside, tmp_path: Path) -> None:
    beside.add("a", write_adapter(tmp_path / "a", pairs("llama", "mlp.down_proj")))
    before = beside.logits("a")
    use = beside.adapters.add("b", write_adapter(tmp_path / "b", pairs("llama", "mlp.up_proj", rank=3), r=3))
    assert np.array_equal(beside.logits("a"), before)
    use()
    assert np.abs(beside.logits("a") - before).max() < 1e-4


def test_all_ranks_together_are_bounded(beside: Beside, tmp_path: Path) -> None:
    large = write_adapter(tmp_path / "a", pairs("llama", "mlp.down_proj", rank=512), r=512)
    for key in range(MAX_TOTAL_RANK // 512):
        beside.add(str(key), large)
    with pytest.raises(ModelLoadError, match="1024"):
        beside.add("more", write_adapter(tmp_path / "b", pairs("llama", "mlp.down_proj")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.layers.99.mlp.up_proj": random_pair(4, 4)}, "layers.99.mlp.up_proj is no module"),
        ({"model.layers.0.mlp.experts.0.up_proj": random_pair(4, 4)}, "no module"),
        ({"lm_head": random_pair(4, 4)}, "lm_head is no module"),
        ({"model.layers.0.mlp.up_proj": random_pair(4, 4)}, "for a matrix of"),
    ],
)
def test_an_adapter_for_another_model_is_refused(llama: Beside, changes: Pairs, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=message):
        llama.add("a", write_adapter(tmp_path, changes))
    assert len(llama.compiled) == 1


def test_families_with_names_of_their_own_are_understood() -> None:
    changes = {"transformer.encoder.layers.3.self_attention.query_key_value": random_pair(12, 4)}
    low_rank = {name: LowRank(down=a, up=b) for name, (a, b) in changes.items()}
    place = Place(name="model.layers.3.self_attn.qkv_proj", columns=4, parts=(("q", 6), ("k", 3), ("v", 3)))
    fitted = fit(PeftAdapter(source="a", modules=low_rank), {place.name: place}, FAMILIES["chatglm"])
    assert list(fitted.modules) == [place.name]


def test_joined_modules_are_adapted_whole_or_in_parts(beside: Beside, tmp_path: Path) -> None:
    wide, hidden = shapes(GOLDENS / "llama" / "model")["mlp.gate_proj"]
    a, b = random_pair(2 * wide, hidden)
    name = "model.layers.0.mlp."
    whole = {name + "gate_up_proj": (a, b)}
    parts = {name + "gate_proj": (a, b[:wide]), name + "up_proj": (a, b[wide:])}
    beside.add("whole", write_adapter(tmp_path / "whole", whole))
    beside.add("parts", write_adapter(tmp_path / "parts", parts))
    found = beside.logits("whole", "parts")
    assert np.abs(found[0] - found[1]).max() < 1e-4
    assert np.abs(found[0] - beside.logits(None)[0]).max() > 0.01
    with pytest.raises(ModelLoadError, match="adapted twice"):
        beside.add("both", write_adapter(tmp_path / "both", {**whole, name + "up_proj": (a, b[wide:])}))
