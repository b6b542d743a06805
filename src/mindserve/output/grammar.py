"""Constrained decoding: JSON answers, forced and strict tool calls, thoughts with a budget.

The only module that knows the constraint library. A grammar is compiled once, off the engine's thread, and copied for
every sequence; what is asked of it there never raises.
"""

import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from mindserve.engine.base import TokenMask
from mindserve.errors import InvalidRequest
from mindserve.output.formats.base import CallStart, ToolFormat
from mindserve.output.formats.registry import all_tags
from mindserve.output.lark import calls_grammar, json_grammar, one_call_grammar, written_prefix
from mindserve.output.lexicon import Lexicon
from mindserve.output.literals import CallableTool
from mindserve.output.masks import Bits, CallMask, Constraint, Tag, ThoughtMask, ThoughtRule, Trigger
from mindserve.output.plan import ThoughtPlan, ThoughtStart
from mindserve.output.schemas import ANY_OBJECT, Schema
from mindserve.text.base import Tokenizer

_MAX_CACHED_GRAMMARS = 32
_MAX_ERROR_LENGTH = 160
_TRIAL_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtLimits:
    """The thought that comes before a constrained answer, or that has a budget."""

    plan: ThoughtPlan
    budget_tokens: int | None = None
    """`thinking_budget`."""
    early_stopping_text: str = ""
    """What ends a thought over budget; the closing tag follows unless it is in there."""


class GrammarCompiler:
    """Makes the masks of one model's requests. Thread-safe, but not for the event loop: compiling takes time."""

    def __init__(
        self, tokenizer: Tokenizer, *, eos_token_ids: frozenset[int], vocab_size: int, files: Path | None = None
    ) -> None:
        """`vocab_size` is the model's (`ModelInfo`); `files`: see Lexicon. Cheap: the vocabulary is prepared at the
        first use."""
        self._tokenizer = tokenizer
        self._files = files
        self._eos_token_ids = frozenset(i for i in eos_token_ids if i < min(vocab_size, tokenizer.vocab_size))
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._prepared: Grammars | None = None

    def warm_up(self) -> None:
        """Prepare the vocabulary now (a second or two for 150 000 tokens); best called on a thread at the start."""
        self._prepare()

    def json_mask(
        self, schema: Schema | None = None, *, is_strict: bool = False, thought: ThoughtLimits | None = None
    ) -> TokenMask:
        """For `response_format`: a JSON object, or a value of `schema`. Raises InvalidRequest."""
        schema = ANY_OBJECT if schema is None else schema
        grammar = json_grammar(schema, is_strict=is_strict, follows_thought=thought is not None)
        return self._after_thought(self._compile(grammar, param="response_format"), thought)

    def calls_mask(
        self,
        format_: ToolFormat,
        tools: Sequence[CallableTool],
        *,
        is_single: bool = False,
        thought: ThoughtLimits | None = None,
    ) -> TokenMask:
        """For `tool_choice` required (or a named one: `is_single`): nothing but calls. Raises InvalidRequest."""
        lexicon = self._prepare().lexicon
        grammar = calls_grammar(
            format_,
            tools,
            is_single=is_single,
            follows_thought=thought is not None,
            marker_ids=lexicon.marker_ids,
        )
        return self._after_thought(self._compile(grammar, param="tools"), thought)

    def strict_mask(
        self, format_: ToolFormat, tools: Sequence[CallableTool], *, thought: ThoughtLimits | None = None
    ) -> TokenMask:
        """For `strict` functions with `tool_choice` auto: free text, but every call is valid. Raises InvalidRequest."""
        lexicon = self._prepare().lexicon
        return self._after_thought(CallMask(self._triggers(format_, tools), lexicon), thought)

    def thought_mask(self, thought: ThoughtLimits) -> TokenMask:
        """For a thought with a budget before a free answer."""
        return self._thought_mask(thought, None)

    def _triggers(self, format_: ToolFormat, tools: Sequence[CallableTool]) -> list[Trigger]:
        """Markers, or where a call has none the beginning that tells it, which may differ by function."""
        triggers: list[Trigger] = []
        for start in format_.starts:
            if start.marker:
                triggers.append(Trigger(tag=self._tag(start.marker), call=self._one_call(format_, start, tools)))
                continue
            for prefix in sorted({written_prefix(start, tool) for tool in tools if tool.is_strict}):
                named = [tool for tool in tools if written_prefix(start, tool) == prefix]
                tag = replace(self._tag(prefix or "{"), is_at_start=True)
                triggers.append(Trigger(tag=tag, call=self._one_call(format_, start, named)))
        return triggers

    def _one_call(self, format_: ToolFormat, start: CallStart, tools: Sequence[CallableTool]) -> "GrammarMask":
        lexicon = self._prepare().lexicon
        grammar = one_call_grammar(format_, start, tools, marker_ids=lexicon.marker_ids)
        return self._compile(grammar, param="tools")

    def _tag(self, text: str) -> Tag:
        lexicon = self._prepare().lexicon
        return Tag(text=text.encode(), token_ids=tuple(lexicon.encode_tag(text)))

    def _after_thought(self, mask: Constraint, thought: ThoughtLimits | None) -> TokenMask:
        if thought is None or thought.plan.start is ThoughtStart.NONE:
            return mask
        return self._thought_mask(thought, mask)

    def _thought_mask(self, thought: ThoughtLimits, after: Constraint | None) -> ThoughtMask:
        lexicon = self._prepare().lexicon
        format_ = thought.plan.format
        text, _, _ = thought.early_stopping_text.partition(format_.closing)
        closing = replace(self._tag(format_.closing), token_id=lexicon.marker_ids.get(format_.closing))
        rule = ThoughtRule(
            opening=self._tag(format_.opening) if thought.plan.start is ThoughtStart.IF_OPENED else None,
            closing=closing,
            budget_tokens=thought.budget_tokens,
            forced_ids=(*lexicon.encode(text), *closing.token_ids),
        )
        return ThoughtMask(rule, lexicon, after)

    def _compile(self, grammar: str, *, param: str) -> "GrammarMask":
        return self._prepare().mask(grammar, param=param)

    def _prepare(self) -> "Grammars":
        with self._lock:
            if self._prepared is None:
                lexicon = Lexicon(
                    self._tokenizer,
                    end_token_ids=self._eos_token_ids,
                    vocab_size=self._vocab_size,
                    markers=all_tags(),
                    files=self._files,
                )
                self._prepared = Grammars(lexicon)
            return self._prepared


class Grammars:
    """The compiled grammars of one vocabulary. Thread-safe."""

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self._tokenizer = _library_tokenizer(lexicon)
        self._lock = threading.Lock()
        self._matchers: OrderedDict[str, LLMatcher] = OrderedDict()

    def mask(self, grammar: str, *, param: str) -> "GrammarMask":
        """At the grammar's beginning. Raises InvalidRequest, which names `param`."""
        with self._lock:
            matcher = self._matchers.get(grammar)
            if matcher is None:
                matcher = _new_matcher(self._tokenizer, grammar, param=param)
                self._matchers[grammar] = matcher
            self._matchers.move_to_end(grammar)
            if len(self._matchers) > _MAX_CACHED_GRAMMARS:
                self._matchers.popitem(last=False)
            return GrammarMask(matcher.deep_copy(), self.lexicon, grammar)


@lru_cache(maxsize=4)
def grammars_of(lexicon: Lexicon) -> Grammars:
    """For masks that came from another process: as lexicons do, those of one vocabulary share everything."""
    return Grammars(lexicon)


def _mask_of(lexicon: Lexicon, grammar: str) -> "GrammarMask":
    return grammars_of(lexicon).mask(grammar, param="response_format")


class GrammarMask:
    """A grammar at one place in one sequence. After a dead end only end tokens are allowed."""

    def __init__(self, matcher: LLMatcher, lexicon: Lexicon, grammar: str) -> None:
        self._matcher = matcher
        self._lexicon = lexicon
        self._grammar = grammar

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as it begins."""
        return _mask_of, (self._lexicon, self._grammar)

    @property
    def is_done(self) -> bool:
        """See Constraint."""
        return self._matcher.is_stopped()

    def accepts(self, token_ids: Sequence[int]) -> bool:
        """See Constraint."""
        return self._matcher.validate_tokens(list(token_ids)) == len(token_ids)

    def allowed(self) -> Bits | None:
        """See TokenMask."""
        if self._matcher.is_stopped():
            return self._only_ends()
        bits = self._lexicon.known_bits.copy()
        found = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint32)[: len(bits)]
        bits[: len(found)] &= found
        return bits if bits.any() else self._only_ends()

    def advance(self, token_id: int) -> None:
        """See TokenMask."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(min(token_id, len(self._lexicon.tokens)))  # ids without text fit nowhere

    def fork(self) -> "GrammarMask":
        """See TokenMask."""
        return GrammarMask(self._matcher.deep_copy(), self._lexicon, self._grammar)

    def _only_ends(self) -> Bits | None:
        """None for a model without end tokens: something has to be sampled until the length ends it."""
        return self._lexicon.bits(self._lexicon.end_token_ids) if self._lexicon.end_token_ids else None


class _Vocabulary:
    """What the library wants of a tokenizer."""

    bos_token_id = None

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon
        self.tokens = [*lexicon.tokens, b""]
        pseudo_end = len(lexicon.tokens)
        """The library cannot do without an end token; a model may have none."""
        self.end_token_ids = sorted(lexicon.end_token_ids) or [pseudo_end]
        self.eos_token_id = self.end_token_ids[0]
        self.special_token_ids = sorted({*lexicon.special_ids, *lexicon.marker_ids.values(), pseudo_end})

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):  # the library tries whether these are welcome
            raise TypeError("text is wanted")
        return self._lexicon.encode(text)


def _library_tokenizer(lexicon: Lexicon) -> LLTokenizer:
    vocabulary = _Vocabulary(lexicon)
    return LLTokenizer(TokenizerWrapper(vocabulary), eos_token=vocabulary.end_token_ids)


def _new_matcher(tokenizer: LLTokenizer, grammar: str, *, param: str) -> LLMatcher:
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=_limits())
    message = matcher.get_error() or _trial_error(matcher.deep_copy())
    if message:
        raise InvalidRequest(f"The JSON schema in {param} is not supported: {_reason(message)}", param=param)
    return matcher


def _limits() -> LLParserLimits:
    """Wide enough for hundreds of optional properties, tight enough that no pattern holds up the engine for long."""
    return LLParserLimits(max_items_in_row=20_000, step_max_items=200_000, initial_lexer_fuel=500_000)


def _trial_error(matcher: LLMatcher) -> str:
    """The error of the first few steps, if any: what explodes does so here rather than on the engine's thread."""
    for _ in range(_TRIAL_STEPS):
        allowed = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_stopped():
            break
        first = int(np.flatnonzero(allowed)[0])
        matcher.consume_token(first * 8 + (int(allowed[first]) & -int(allowed[first])).bit_length() - 1)
    return matcher.get_error()


_CONTEXT = re.compile(r"\s*\d+ \||<state>")


def _reason(message: str) -> str:
    """The library's reason, without the place in a grammar that no client has seen."""
    own = itertools.takewhile(lambda line: not _CONTEXT.match(line), message.strip().splitlines())
    _, _, reason = " ".join(" ".join(own).split()).rpartition("failed to compile JSON schema: ")
    return reason[:_MAX_ERROR_LENGTH] or "it cannot be compiled"
