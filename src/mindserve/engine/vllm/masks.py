"""What is done to the logits of single requests, inside vLLM's worker processes.

vLLM imports this module there by its name (`options.PROCESSORS`). A request brings what it needs in `extra_args`.
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false

import logging
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from mindserve.engine.base import TokenMask
from mindserve.engine.vllm.sampling import EXTRA

logger = logging.getLogger(__name__)


class Constraints(AdapterLogitsProcessor):
    """Masks, and the penalties of beam search. Comes before temperature and vLLM's own penalties."""

    def is_argmax_invariant(self) -> bool:
        """See LogitsProcessor."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> "Row | None":
        """Called again with all tokens so far when a request comes back after a preemption."""
        extra = _extra(params)
        return Row(extra) if "mask" in extra or "penalties" in extra else None


class Heat(AdapterLogitsProcessor):
    """Temperatures beyond vLLM's range: what its own division leaves to do, before top_k and top_p."""

    def is_argmax_invariant(self) -> bool:
        """See LogitsProcessor."""
        return True

    def new_req_logits_processor(self, params: SamplingParams) -> "Any | None":
        """See AdapterLogitsProcessor."""
        heat = _extra(params).get("heat")
        if heat is None:
            return None

        def cool(_output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            return logits.div_(heat)

        return cool


class Row:
    """One request's logits."""

    def __init__(self, extra: Mapping[str, Any]) -> None:
        self._data: bytes | None = extra.get("mask")
        self._ends: Sequence[int] = extra.get("ends", ())
        self._generated: int = extra.get("generated", 0)
        """How many of the prompt's last tokens count as generated."""
        self._penalties: Sequence[float] | None = extra.get("penalties")
        self._mask: TokenMask | None = None
        self._followed: list[int] = []
        """What the mask has been told."""
        self._is_broken = False

    def __call__(self, prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        """`logits`: [vocab_size], changed in place."""
        begin = len(prompt_ids) - self._generated
        generated = [*prompt_ids[begin:], *output_ids] if self._generated else output_ids
        if self._data is not None:
            self._constrain(generated, logits)
        if self._penalties is not None:
            _penalise(logits, prompt_ids[:begin], generated, self._penalties)
        return logits

    def _constrain(self, generated: Sequence[int], logits: torch.Tensor) -> None:
        try:
            bits = None if self._is_broken else self._follow(generated).allowed()
        except Exception:  # a mask is foreign code, and must not end the engine
            logger.exception("The output's constraint failed; the answer ends")
            self._is_broken = True
            bits = None
        if self._is_broken:
            _allow_only(logits, self._ends)
        elif bits is not None:
            self._allow(bits, logits)

    def _follow(self, generated: Sequence[int]) -> TokenMask:
        """The mask after these tokens; from the beginning if they are not what it has been told so far."""
        known = len(self._followed)
        if self._mask is None or self._followed != generated[:known]:
            self._mask, self._followed, known = cast("TokenMask", pickle.loads(self._data or b"")), [], 0
        for token_id in generated[known:]:
            self._mask.advance(token_id)
            self._followed.append(token_id)
        return self._mask

    def _allow(self, bits: NDArray[np.uint32], logits: torch.Tensor) -> None:
        flags = np.unpackbits(bits.view(np.uint8), bitorder="little")[: len(logits)]
        if not flags.any():
            _allow_only(logits, self._ends)
            return
        forbidden = torch.ones(len(logits), dtype=torch.bool)
        forbidden[: len(flags)] = torch.from_numpy(flags == 0)
        logits.masked_fill_(forbidden.to(logits.device), float("-inf"))


def _allow_only(logits: torch.Tensor, token_ids: Sequence[int]) -> None:
    """All, where none are named: something has to be chosen."""
    if token_ids:
        kept = torch.tensor(list(token_ids), device=logits.device)
        values = logits[kept]
        logits.fill_(float("-inf"))
        logits[kept] = values


def _penalise(logits: torch.Tensor, prompt: list[int], generated: Sequence[int], penalties: Sequence[float]) -> None:
    """Repetition counts the prompt too, frequency and presence what was generated only."""
    repetition, frequency, presence = penalties
    if repetition != 1:
        seen = torch.tensor(sorted({*prompt, *generated}), device=logits.device)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / repetition, values * repetition)
    if generated and (frequency or presence):
        ids, counts = np.unique(np.asarray(generated), return_counts=True)
        amounts = torch.from_numpy(frequency * counts + presence).to(logits)
        logits[torch.from_numpy(ids).to(logits.device)] -= amounts


def _extra(params: SamplingParams) -> Mapping[str, Any]:
    return (params.extra_args or {}).get(EXTRA, {})
