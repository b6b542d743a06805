"""What every real engine refuses before a request runs, in the same words."""

import numpy as np

from mindserve.engine.base import GenerateRequest, ModelInfo
from mindserve.errors import InvalidRequest, NotReady, PromptTooLong
from mindserve.settings.values import ModelSettings

_MAX_ECHO = 200


def loaded(info: ModelInfo | None) -> ModelInfo:
    """`info`, once there is one. Raises NotReady."""
    if info is None:
        raise NotReady("The model is not loaded.")
    return info


def no_adapter(name: str, *, param: str) -> InvalidRequest:
    """The error for an adapter that is not there."""
    return InvalidRequest(f"There is no adapter {name[:_MAX_ECHO]}.", param=param)


def refuse_unknown(request: GenerateRequest, info: ModelInfo) -> None:
    """Raises InvalidRequest for media that the model does not take, and tokens that it does not know."""
    for media in request.media:
        if media.kind not in info.media:
            raise InvalidRequest(f"The model does not take {media.kind} input.", param="messages")
    tokens = np.asarray(request.prompt_token_ids, np.int64)
    if not len(tokens) or tokens.min() < 0 or tokens.max() >= info.vocab_size:
        raise InvalidRequest("Failed to enqueue inferRequest. Invalid Input Ids", param="messages")


def refuse_too_long(length: int, info: ModelInfo, model: ModelSettings, *, context_len: int) -> None:
    """At least one token must have room after the prompt. Raises PromptTooLong.

    `context_len`: tokens of prompt and output together that the model, the configuration and the memory allow.
    """
    positions = info.max_context_len
    if positions < model.max_seq_len and length > positions:
        limit = f"maxPositionEmbeddings {positions}"
    elif length > min(model.max_input_len, context_len - 1):
        limit = str(min(model.max_input_len, context_len - 1))
    else:
        return
    raise PromptTooLong(
        "Failed to enqueue inferRequest. This model's maximum input ids length cannot be greater than "
        f"{limit},the input ids length is {length}",
        param="messages",
    )
