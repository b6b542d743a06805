"""Bodies of the small endpoints: tokenizer, ending a request, adapters. Unknown keys are ignored here too."""

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from mindserve.contract.context import MAX_MESSAGES_CHARS
from mindserve.contract.failure import MAX_ECHO_CHARS
from mindserve.contract.json_body import decode_body
from mindserve.contract.json_values import is_object
from mindserve.errors import InvalidRequest

REQUEST_ID_PATTERN = "^[a-zA-Z0-9_-]{1,256}$"
MODEL_NAME_PATTERN = "^[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,254}[a-zA-Z0-9])?$"
"""Of the model and its adapters: a letter or digit at both ends."""

NOT_OBJECT = "The request body must be a JSON object"

_REQUEST_ID = re.compile(REQUEST_ID_PATTERN.strip("^$"))
_MODEL_NAME = re.compile(MODEL_NAME_PATTERN.strip("^$"))

RequestId = Annotated[str, Meta(extra_json_schema={"pattern": REQUEST_ID_PATTERN})]
AdapterName = Annotated[str, Meta(extra_json_schema={"pattern": MODEL_NAME_PATTERN})]


class TokenizerRequest(Struct, frozen=True, kw_only=True):
    """`POST /v1/tokenizer`."""

    inputs: Annotated[str, Meta(min_length=1, max_length=MAX_MESSAGES_CHARS)]
    do_decode: bool | None = True
    """Whether the answer spells the tokens out besides counting them."""


class TokenizerResponse(Struct, kw_only=True):
    """How many tokens `inputs` has, and their texts."""

    token_number: int
    tokens: list[str]


class StopRequest(Struct, frozen=True, kw_only=True):
    """`POST /v2/models/{model}/stopInfer`; the answer repeats it."""

    id: RequestId

    def __post_init__(self) -> None:
        if not is_request_id(self.id):
            raise ValueError(f"id must match {REQUEST_ID_PATTERN}")


class UnloadAdapterRequest(Struct, frozen=True, kw_only=True):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: AdapterName

    def __post_init__(self) -> None:
        if not _MODEL_NAME.fullmatch(self.lora_name):
            raise ValueError(f"lora_name must match {MODEL_NAME_PATTERN}")


class LoadAdapterRequest(UnloadAdapterRequest, frozen=True, kw_only=True):
    """`POST /v1/load_lora_adapter`."""

    lora_path: Annotated[str, Meta(min_length=1, max_length=4096)]


_Body = TypeVar("_Body", bound=Struct)


def parse_body(body: bytes, kind: type[_Body], *, max_json_depth: int) -> _Body:
    """The body as one of the types above. Raises InvalidRequest, whose text names the key."""
    document: Any = decode_body(body, max_depth=max_json_depth)
    if not is_object(document):
        raise InvalidRequest(NOT_OBJECT)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)[:MAX_ECHO_CHARS]) from None


def is_request_id(text: str) -> bool:
    """Whether a request may be called so (stopInfer; header `req-id`)."""
    return _REQUEST_ID.fullmatch(text) is not None
