"""Whether a prompt fits, and what to do when it does not."""

from dataclasses import dataclass

from mindserve.engine.base import ModelInfo
from mindserve.errors import InvalidRequest, PromptTooLong
from mindserve.settings.values import ModelSettings, Truncation

MAX_PROMPT_TOKENS = 1024 * 1024
"""No configuration lifts this one (contract: messages)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLimits:
    """How long a prompt may be, and prompt and answer together."""

    max_prompt: int
    """min(maxInputTokenLen, maxSeqLen - 1)."""
    max_positions: int
    """What the model itself can place; beyond it there is no truncation."""
    max_seq_len: int
    truncation: Truncation

    @classmethod
    def of(cls, model: ModelSettings, info: ModelInfo) -> "PromptLimits":
        """The limits of a configured and loaded model."""
        return cls(
            max_prompt=min(model.max_input_len, model.max_seq_len - 1),
            max_positions=info.max_context_len,
            max_seq_len=model.max_seq_len,
            truncation=model.truncation,
        )

    def fit(self, token_ids: list[int], *, has_media: bool) -> list[int]:
        """The prompt as the engine gets it. Raises InvalidRequest or PromptTooLong.

        A prompt with media is never cut: that would tear placeholders from their features.
        """
        count = len(token_ids)
        if not 0 < count <= MAX_PROMPT_TOKENS:
            raise InvalidRequest(
                f"Messages token length must be in (0, {MAX_PROMPT_TOKENS}], but got {count}. "
                "This could be caused by invalid input format or empty content.",
                param="messages",
            )
        return self._cut(token_ids, has_media=has_media)

    def _cut(self, token_ids: list[int], *, has_media: bool) -> list[int]:
        limit = min(self.max_prompt, self.max_positions)
        if len(token_ids) <= limit:
            return token_ids
        if self.truncation is Truncation.REJECT or has_media:
            raise self._too_long(len(token_ids))
        return token_ids[:limit] if self.truncation is Truncation.CUT_RIGHT else token_ids[-limit:]

    def _too_long(self, count: int) -> PromptTooLong:
        # An engine that serves less than the model could place reports maxSeqLen as its context: no limit of the model.
        is_models_own = self.max_positions < min(count, self.max_seq_len)
        what = f"maxPositionEmbeddings {self.max_positions}" if is_models_own else str(self.max_prompt)
        return PromptTooLong(
            "Failed to enqueue inferRequest. This model's maximum input ids length cannot be greater than "
            f"{what},the input ids length is {count}",
            param="messages",
        )

    def room(self, prompt_tokens: int) -> int:
        """New tokens that fit behind a prompt; the last one needs no position of its own in the model."""
        return max(1, min(self.max_seq_len - prompt_tokens, self.max_positions - prompt_tokens))
