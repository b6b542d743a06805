"""Which template a request is rendered with."""

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol

from mindserve.chat.chatglm import ChatGlmTemplate
from mindserve.chat.template import ChatTemplate
from mindserve.contract.request import ChatRequest
from mindserve.errors import ConfigError, InvalidRequest
from mindserve.settings.values import ModelSettings
from mindserve.text.base import Tokenizer

_MAX_REQUEST_TEMPLATES: Final = 16
_MAX_TEMPLATE_BYTES: Final = 1 << 20


class Template(Protocol):
    """Turns a conversation into the prompt's text."""

    @property
    def source(self) -> str:
        """Its Jinja text; empty when it is none."""
        ...

    @property
    def variables(self) -> frozenset[str]:
        """Names that it reads."""
        ...

    @property
    def wants_parts(self) -> bool:
        """Whether content must be lists of parts, text-only content too."""
        ...

    def render(self, variables: Mapping[str, Any]) -> str:
        """Raises InvalidRequest when it cannot."""
        ...


class Templates:
    """The configured template, else the weights' own; a request's own where the configuration allows it."""

    def __init__(self, tokenizer: Tokenizer, settings: ModelSettings, *, model_type: str) -> None:
        """Raises ConfigError when `models.*.chat_template` is not usable. A broken template of the weights only fails
        the requests: the server may have other work."""
        self._allows_request_template = settings.allow_request_chat_template
        self._of_requests: OrderedDict[str, ChatTemplate] = OrderedDict()
        self._lock = Lock()
        self._named, self._failure = _load(tokenizer, settings, model_type)

    def find(self, request: ChatRequest, *, has_tools: bool) -> Template:
        """Raises InvalidRequest when there is none, or it does not compile."""
        if request.chat_template is not None:
            return self._of_request(request.chat_template)
        if self._failure is not None:
            raise self._failure
        preferred = self._named.get("tool_use") if has_tools else None
        found = preferred or self._named.get("default")
        if found is None:
            raise InvalidRequest(
                "The model does not appear to be a chat model because it is not configured with a `chat_template`.",
                param="messages",
            )
        return found

    def _of_request(self, source: str) -> ChatTemplate:
        if not self._allows_request_template:
            raise InvalidRequest(
                "Parameter chat_template is not allowed by the server's configuration", param="chat_template"
            )
        with self._lock:
            if source in self._of_requests:
                self._of_requests.move_to_end(source)
                return self._of_requests[source]
        compiled = ChatTemplate(source)
        with self._lock:
            self._of_requests[source] = compiled
            if len(self._of_requests) > _MAX_REQUEST_TEMPLATES:
                self._of_requests.popitem(last=False)
        return compiled


def _load(
    tokenizer: Tokenizer, settings: ModelSettings, model_type: str
) -> tuple[Mapping[str, Template], InvalidRequest | None]:
    if settings.chat_template is not None:
        return {"default": _configured(settings.chat_template)}, None
    source = tokenizer.chat_template
    if source is None:
        return {"default": ChatGlmTemplate()} if model_type == "chatglm" else {}, None
    sources = {"default": source} if isinstance(source, str) else source
    try:
        return {name: ChatTemplate(text) for name, text in sources.items()}, None
    except InvalidRequest as failure:
        return {}, failure


def _configured(path: Path) -> ChatTemplate:
    try:
        if path.stat().st_size > _MAX_TEMPLATE_BYTES:
            raise ValueError(f"larger than {_MAX_TEMPLATE_BYTES} bytes")
        return ChatTemplate(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"chat_template {path} is not readable: {error}", param="chat_template") from error
    except InvalidRequest as error:
        raise ConfigError(f"chat_template {path}: {error.message}", param="chat_template") from error
