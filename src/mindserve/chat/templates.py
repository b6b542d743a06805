"""Which template a request is rendered with."""

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol, TypeAlias

from mindserve.chat.chatglm import ChatGlmTemplate
from mindserve.chat.template import ChatTemplate
from mindserve.contract.request import ChatRequest
from mindserve.errors import ConfigError, InvalidRequest
from mindserve.settings.values import ModelSettings
from mindserve.text.base import Tokenizer
from mindserve.text.huggingface import read_chat_template

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


_Named: TypeAlias = Mapping[str, Template] | InvalidRequest
"""Templates by name, or why there are none."""


class Templates:
    """The configured template, else the weights' own. Requests for an adapter that brings a template get that; a
    request's own goes first where the configuration allows it."""

    def __init__(self, tokenizer: Tokenizer, settings: ModelSettings, *, model_type: str) -> None:
        """Raises ConfigError when `models.*.chat_template` is not usable. A broken template of the weights only fails
        the requests: the server may have other work."""
        self._allows_request_template = settings.allow_request_chat_template
        self._of_requests: OrderedDict[str, ChatTemplate] = OrderedDict()
        self._lock = Lock()
        self._of_model = _load(tokenizer, settings, model_type)
        self._of_adapters: dict[str, _Named] = {}
        for adapter in settings.adapters:
            self.add_adapter(adapter.name, adapter.path)

    def add_adapter(self, name: str, directory: Path) -> None:
        """Use the directory's template, if it has one, for requests that name the adapter. Raises ModelLoadError."""
        source = read_chat_template(directory)
        if source is not None:
            self._of_adapters[name] = _compiled(source)

    def remove_adapter(self, name: str) -> None:
        """Its requests are no more."""
        self._of_adapters.pop(name, None)

    def find(self, request: ChatRequest, *, has_tools: bool) -> Template:
        """Raises InvalidRequest when there is none, or it does not compile."""
        if request.chat_template is not None:
            return self._of_request(request.chat_template)
        named = self._of_adapters.get(request.model, self._of_model)
        if isinstance(named, InvalidRequest):
            raise named
        preferred = named.get("tool_use") if has_tools else None
        found = preferred or named.get("default")
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


def _load(tokenizer: Tokenizer, settings: ModelSettings, model_type: str) -> _Named:
    if settings.chat_template is not None:
        return {"default": _configured(settings.chat_template)}
    source = tokenizer.chat_template
    if source is None:
        return {"default": ChatGlmTemplate()} if model_type == "chatglm" else {}
    return _compiled(source)


def _compiled(source: str | Mapping[str, str]) -> _Named:
    sources = {"default": source} if isinstance(source, str) else source
    try:
        return {name: ChatTemplate(text) for name, text in sources.items()}
    except InvalidRequest as failure:
        return failure


def _configured(path: Path) -> ChatTemplate:
    try:
        if path.stat().st_size > _MAX_TEMPLATE_BYTES:
            raise ValueError(f"larger than {_MAX_TEMPLATE_BYTES} bytes")
        return ChatTemplate(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"chat_template {path} is not readable: {error}", param="chat_template") from error
    except InvalidRequest as error:
        raise ConfigError(f"chat_template {path}: {error.message}", param="chat_template") from error
