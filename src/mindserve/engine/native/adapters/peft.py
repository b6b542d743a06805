"""A LoRA adapter as PEFT saves it: `adapter_config.json` and `adapter_model.safetensors`.

A layer with weight W becomes W + scale * B @ A. The scale is multiplied into B here; what cannot be expressed like that
(other kinds of adapters, trained embeddings or biases) is refused by the name of its field.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from mindserve.engine.fields import Fields
from mindserve.engine.model_files import read_json
from mindserve.engine.native.models.safetensors_checkpoint import DENSE_TYPES
from mindserve.errors import ModelLoadError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 512
_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")
_UNSUPPORTED = (
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
)
"""Fields that must be absent, false or empty."""
_BASE_CHANGING = ("pissa", "olora", "corda", "loftq")
"""Initialisations (`init_lora_weights`) that leave the base model with other weights than its files have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """What is added to one matrix: `up @ down`."""

    down: NDArray[np.float32]
    """[rank, columns]; PEFT's A."""
    up: NDArray[np.float32]
    """[rows, rank]; PEFT's B, scaled."""

    @property
    def rank(self) -> int:
        """Inner size."""
        return len(self.down)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftAdapter:
    """A whole adapter."""

    source: str
    modules: Mapping[str, LowRank]
    """By module name as the base model's files have it, without `.weight`."""

    @property
    def rank(self) -> int:
        """The largest of its modules'."""
        return max(module.rank for module in self.modules.values())


def read_adapter(directory: Path) -> PeftAdapter:
    """Raises ModelLoadError."""
    config = Fields(str(directory / CONFIG), read_json(directory / CONFIG))
    _refuse_unsupported(config)
    scaling = _Scaling(config)
    modules: dict[str, LowRank] = {}
    for name, sides in _read_sides(directory / WEIGHTS).items():
        modules[name] = _low_rank(name, sides, scaling, source=str(directory / WEIGHTS))
    _check_targets(config, modules)
    return PeftAdapter(source=str(directory), modules=modules)


def _refuse_unsupported(config: Fields) -> None:
    if config.text("peft_type", "LORA") != "LORA":
        raise config.wrong("peft_type", "LORA")
    if config.text("bias", "none") != "none":
        raise config.wrong("bias", "none")
    for key in _UNSUPPORTED:
        if config.values.get(key):
            raise ModelLoadError(f"{config.source}: {key} is not supported")
    if str(config.values.get("init_lora_weights")).lower().startswith(_BASE_CHANGING):
        raise ModelLoadError(
            f"{config.source}: init_lora_weights {config.values['init_lora_weights']} is not supported: "
            "such an adapter belongs to a base model with changed weights"
        )


class _Scaling:
    """Rank and scale of each module: `r`, `lora_alpha`, their patterns, `use_rslora`."""

    def __init__(self, config: Fields) -> None:
        self._config = config
        self._rank = config.positive("r")
        self._alpha = config.number("lora_alpha", 8)
        self._ranks = config.section("rank_pattern") or Fields(config.source, {})
        self._alphas = config.section("alpha_pattern") or Fields(config.source, {})
        self._is_rank_stabilised = config.flag("use_rslora", False)

    def rank_of(self, module: str) -> int:
        """As configured."""
        key = self._key(self._ranks, module)
        return self._rank if key is None else self._ranks.positive(key)

    def scale_of(self, module: str) -> float:
        """What B @ A is multiplied by."""
        key, rank = self._key(self._alphas, module), self.rank_of(module)
        alpha = self._alpha if key is None else self._alphas.number(key)
        return alpha / (math.sqrt(rank) if self._is_rank_stabilised else rank)

    def _key(self, pattern: Fields, module: str) -> str | None:
        """The first key that is the module's name or the end of it, as a regular expression."""
        for key in pattern.values:
            if _matches(rf"(.*\.)?({key})", module, source=f"{pattern.source}: {key[:80]}"):
                return key
        return None


def _matches(expression: str, text: str, *, source: str) -> bool:
    try:
        return re.fullmatch(expression, text) is not None
    except re.error as error:
        raise ModelLoadError(f"{source} should be a regular expression: {error}") from error


def _read_sides(path: Path) -> dict[str, dict[str, NDArray[np.float32]]]:
    """Both matrices of each module, by "A" and "B"."""
    if not path.is_file():
        raise ModelLoadError(f"{path.parent}: no {WEIGHTS}")
    modules: dict[str, dict[str, NDArray[np.float32]]] = {}
    try:
        with safe_open(path, framework="np") as file:
            for name in cast("list[str]", file.keys()):
                match = _TENSOR.fullmatch(name)
                if match is None:
                    raise ModelLoadError(f"{path}: tensor {name[:200]} is not supported")
                kind = file.get_slice(name).get_dtype()
                if kind not in DENSE_TYPES:
                    raise ModelLoadError(f"{path}: tensor {name} has type {kind}, expected one of F32, F16, BF16")
                modules.setdefault(match["module"], {})[match["side"]] = file.get_tensor(name).astype(np.float32)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: {error}") from error
    if not modules:
        raise ModelLoadError(f"{path}: no tensors")
    return modules


def _low_rank(module: str, sides: dict[str, NDArray[np.float32]], scaling: _Scaling, *, source: str) -> LowRank:
    missing = [side for side in "AB" if side not in sides]
    if missing:
        raise ModelLoadError(f"{source}: {module} has no lora_{missing[0]}")
    down, up, rank = sides["A"], sides["B"], scaling.rank_of(module)
    if down.ndim != 2 or up.ndim != 2 or len(down) != rank or up.shape[1] != rank:
        shapes = f"{list(down.shape)} and {list(up.shape)}"
        raise ModelLoadError(f"{source}: {module} has matrices of {shapes}, expected rank {rank}")
    if rank > MAX_RANK:
        raise ModelLoadError(f"{source}: {module} has rank {rank}, more than {MAX_RANK}")
    if not (np.isfinite(down).all() and np.isfinite(up).all()):
        raise ModelLoadError(f"{source}: {module} holds values that are no numbers")
    return LowRank(down=down, up=up * np.float32(scaling.scale_of(module)))


def _check_targets(config: Fields, modules: Mapping[str, LowRank]) -> None:
    """A file that lacks what the configuration names is damaged. `all-linear` and expressions name nothing exactly."""
    targets = config.values.get("target_modules")
    if isinstance(targets, str):
        if targets != "all-linear" and not any(
            _matches(targets, module, source=f"{config.source}: target_modules") for module in modules
        ):
            raise ModelLoadError(f"{config.source}: target_modules {targets[:80]} matches no tensor of the file")
        return
    for target in config.texts("target_modules"):
        if not any(module == target or module.endswith("." + target) for module in modules):
            raise ModelLoadError(f"{config.source}: target_modules names {target[:80]}, but there is no tensor of it")
