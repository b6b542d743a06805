"""From a valid request to what the engine and the assembler get: tokens, media, output plan, mask."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from mindserve.chat.constraints import Constraints
from mindserve.chat.messages import STANDARD_ROLES, TemplateTaste, media_parts, message_text, template_messages
from mindserve.chat.templates import Template, Templates
from mindserve.chat.thinking import Thinking
from mindserve.chat.tools import ToolFormats, offered_tools
from mindserve.contract.request import ChatRequest, MediaPart, Tool
from mindserve.engine.base import MediaInput, ModelInfo, TokenMask
from mindserve.errors import InvalidRequest
from mindserve.output.grammar import GrammarCompiler
from mindserve.output.plan import OutputPlan, ThoughtPlan, ToolPlan
from mindserve.settings.values import ModelSettings
from mindserve.text.base import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Everything that a request becomes before the engine sees it."""

    token_ids: Sequence[int]
    text: str
    """As rendered, media placeholders not yet expanded."""
    plan: OutputPlan
    media: tuple[MediaInput, ...] = ()
    mask: TokenMask | None = None


class MediaReader(Protocol):
    """Makes a model's inputs of media parts."""

    def read(self, parts: Sequence[MediaPart], token_ids: list[int]) -> tuple[list[int], tuple[MediaInput, ...]]:
        """Fetch and decode `parts`, and expand each one's placeholder in the prompt to its number of tokens.

        Placeholders and parts come in the same order. Raises InvalidRequest, also when their numbers differ.
        """
        ...


class PromptBuilder:
    """Makes prompts for one model. Thread-safe; blocks on media downloads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        model_settings: ModelSettings,
        model_info: ModelInfo,
        *,
        media: MediaReader | None = None,
        reports_full_text: bool = False,
    ) -> None:
        """Raises ConfigError when a configured template is not usable."""
        self._tokenizer = tokenizer
        self._templates = Templates(tokenizer, model_settings, model_type=model_info.model_type)
        self._thinking = Thinking(tokenizer, model_settings, model_type=model_info.model_type)
        self._compiler = GrammarCompiler(
            tokenizer,
            eos_token_ids=model_info.eos_token_ids,
            vocab_size=model_info.vocab_size,
            files=model_settings.path if model_settings.path.exists() else None,
        )
        self._constraints = Constraints(self._compiler, early_stopping_text=model_settings.early_stopping_text)
        self._tool_formats = ToolFormats(model_settings, model_type=model_info.model_type)
        self._media = media
        self._reports_full_text = reports_full_text

    def build(self, request: ChatRequest) -> Prompt:
        """Raises InvalidRequest."""
        tools = offered_tools(request)
        template = self._templates.find(request, has_tools=bool(tools))
        text = self._render(request, template, tools)
        thought = self._thinking.plan(request, template, text)
        plan = self._plan(request, thought, self._tool_formats.plan(tools, template))
        mask = self._constraints.mask(request, tools, plan)
        token_ids, media = self._tokens(request, text)
        return Prompt(token_ids=token_ids, text=text, media=media, plan=plan, mask=mask)

    def warm_up(self) -> None:
        """Prepare the vocabulary for constrained decoding now rather than at the first request that needs it."""
        self._compiler.warm_up()

    def add_adapter(self, name: str, directory: Path) -> None:
        """Requests that name the adapter get its directory's chat template, if it has one. Raises ModelLoadError."""
        self._templates.add_adapter(name, directory)

    def remove_adapter(self, name: str) -> None:
        """The adapter cannot be named any more."""
        self._templates.remove_adapter(name)

    def _render(self, request: ChatRequest, template: Template, tools: Sequence[Tool]) -> str:
        text = self._rendered(request, template, tools)
        if tools and not self._shows_tools(request, template, text):
            raise InvalidRequest(f"The model {request.model} does not support function call.", param="tools")
        _check_custom_roles(request, text)
        return text

    def _rendered(self, request: ChatRequest, template: Template, tools: Sequence[Tool]) -> str:
        """Some templates can only join the arguments of earlier calls as strings."""
        taste = TemplateTaste(wants_parts=template.wants_parts)
        try:
            return template.render(self._variables(request, tools, taste))
        except InvalidRequest:
            if not any(message.tool_calls for message in request.messages):
                raise
            return template.render(self._variables(request, tools, replace(taste, wants_objects=False)))

    def _variables(self, request: ChatRequest, tools: Sequence[Tool], taste: TemplateTaste) -> dict[str, Any]:
        return {
            "documents": None,
            **self._thinking.variables(request),
            **self._tokenizer.special_tokens,
            "messages": template_messages(request.messages, taste),
            "tools": [tool.raw for tool in tools] or None,
            "add_generation_prompt": True,
        }

    def _shows_tools(self, request: ChatRequest, template: Template, text: str) -> bool:
        """Whether the prompt differs from the one without tools (decisions: tools for a model that cannot)."""
        if "tools" not in template.variables:
            return False
        try:
            return self._rendered(request, template, ()) != text
        except InvalidRequest:
            return True

    def _tokens(self, request: ChatRequest, text: str) -> tuple[list[int], tuple[MediaInput, ...]]:
        """Templates write the tokens that start a text themselves, so none are added."""
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        parts = media_parts(request.messages)
        if not parts:
            return token_ids, ()
        if self._media is None:
            raise InvalidRequest(f"The model {request.model} takes text only.", param="messages")
        return self._media.read(parts, token_ids)

    def _plan(self, request: ChatRequest, thought: ThoughtPlan | None, tools: ToolPlan | None) -> OutputPlan:
        return OutputPlan(
            skip_special_tokens=request.skip_special_tokens,
            stop=request.stop,
            stop_token_ids=frozenset(request.stop_token_ids),
            include_stop=request.include_stop,
            reports_full_text=self._reports_full_text,
            thought=thought,
            tools=tools,
        )


def _check_custom_roles(request: ChatRequest, text: str) -> None:
    """Templates that do not know a role often leave its message out without a word (decisions: custom roles)."""
    for message in request.messages:
        if message.role not in STANDARD_ROLES and message_text(message).strip() not in text:
            raise InvalidRequest(f"The chat template does not support the role {message.role[:40]}.", param="messages")
