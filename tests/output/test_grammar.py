"""Constrained decoding: random walks, thoughts, strict calls, and what cannot be enforced."""

import json

import pytest

from mindserve.engine.base import FinishReason
from mindserve.errors import InvalidRequest
from mindserve.output.formats.reasoning import THINK_TAGS
from mindserve.output.formats.registry import find_format
from mindserve.output.grammar import GrammarCompiler, ThoughtLimits
from mindserve.output.literals import CallableTool
from mindserve.output.plan import OutputPlan, ThoughtPlan, ThoughtStart, ToolPlan
from mindserve.output.schemas import closed
from tests.output.play import fold, play
from tests.output.walk import END, Walk, fits, ids_of, make_tokenizer

TOKENIZER = make_tokenizer()
END_ID = TOKENIZER.token_id(END)
FORMATS = [
    "hermes",
    "qwen3_coder",
    "qwen2",
    "chatglm3",
    "glm4",
    "llama3",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
]
WEATHER = {
    "type": "object",
    "properties": {
        "days": {"type": "integer"},
        "city": {"type": "string"},
        "unit": {"enum": ["c", "f"]},
        "detailed": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
}
SCHEMAS = {"get_weather": closed(WEATHER), "ping": closed(None)}
TOOLS = [CallableTool(name=name, schema=schema) for name, schema in SCHEMAS.items()]
STRICT = [CallableTool(name=name, schema=schema, is_strict=True) for name, schema in SCHEMAS.items()]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return make_compiler(TOKENIZER)


def make_compiler(tokenizer) -> GrammarCompiler:
    ends = frozenset({tokenizer.token_id(END)})
    return GrammarCompiler(tokenizer, eos_token_ids=ends, vocab_size=tokenizer.vocab_size)


def thought(start: ThoughtStart = ThoughtStart.ASSUMED, **limits) -> ThoughtLimits:
    return ThoughtLimits(plan=ThoughtPlan(format=THINK_TAGS, start=start), **limits)


JSON_SCHEMAS = [
    None,
    WEATHER,
    closed(WEATHER),
    {"type": "array", "items": {"type": "number"}},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {
        "properties": {"a": {"type": "object", "properties": {"b": {"type": "integer"}}}},
        "required": ["a"],
        "type": "object",
    },
]


@pytest.mark.parametrize("schema", JSON_SCHEMAS, ids=str)
def test_json_walks_are_valid_wherever_they_may_end(compiler, schema):
    mask = compiler.json_mask(schema)
    for seed in range(25):
        walk = Walk(mask.fork(), TOKENIZER, seed).run()
        assert walk.ends
        for length in walk.ends:
            assert fits(json.loads(walk.text_at(length)), schema or {"type": "object"}), walk.text


@pytest.mark.parametrize("name", FORMATS)
def test_required_calls_are_what_the_parser_reads(compiler, name):
    format_ = find_format(name)
    plan = OutputPlan(tools=ToolPlan(format=format_, parameters=SCHEMAS))
    mask, counts = compiler.calls_mask(format_, TOOLS), set()
    for seed in range(25):
        walk = Walk(mask.fork(), TOKENIZER, seed).run()
        for length in walk.ends:
            events, _ = play(plan, TOKENIZER, walk.tokens[:length], end_token=END_ID)
            answer = fold(events)
            assert (answer.content, answer.finish_reason) == ("", "tool_calls"), walk.text
            assert answer.calls
            for called, arguments in answer.calls:
                assert fits(json.loads(arguments), SCHEMAS[called]), (walk.text, arguments)
            counts.add(len(answer.calls))
    assert counts == {1} if format_.further_start is None else len(counts) > 1


def test_forced_calls_come_to_an_end(compiler):
    ping = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    walk = Walk(compiler.calls_mask(find_format("hermes"), TOOLS), TOKENIZER, 0)
    walk.say("\n".join([ping] * 8))
    assert ids_of(walk.mask, TOKENIZER.vocab_size) == {END_ID}


@pytest.mark.parametrize("name", FORMATS)
def test_a_named_choice_gives_one_call_of_that_function(compiler, name):
    format_ = find_format(name)
    plan = OutputPlan(tools=ToolPlan(format=format_, parameters=SCHEMAS))
    mask = compiler.calls_mask(format_, TOOLS[1:], is_single=True)
    walk = Walk(mask, TOKENIZER, 1).run()
    assert fold(play(plan, TOKENIZER, walk.tokens, end_token=END_ID)[0]).calls == [("ping", "{}")]


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "qwen2", "deepseek_v3", "deepseek_v31", "deepseek_v32"])
def test_strict_functions_constrain_calls_but_not_text(compiler, name):
    format_ = find_format(name)
    plan = OutputPlan(tools=ToolPlan(format=format_, parameters=SCHEMAS))
    mask = compiler.strict_mask(format_, STRICT)
    for seed in range(10):
        walk = Walk(mask.fork(), TOKENIZER, seed)
        assert walk.mask.allowed() is None
        walk.say("word { " + format_.starts[0].marker)
        assert END_ID not in (ids_of(walk.mask, TOKENIZER.vocab_size) or {END_ID})
        _walk_until_free(walk)
        walk.say(" word")
        answer = fold(play(plan, TOKENIZER, walk.tokens, end_token=END_ID)[0])
        assert answer.content == "word {" and len(answer.calls) == 1, walk.text
        assert fits(json.loads(answer.calls[0][1]), SCHEMAS[answer.calls[0][0]])


def _walk_until_free(walk: Walk) -> None:
    for _ in range(400):
        allowed = ids_of(walk.mask, TOKENIZER.vocab_size)
        if allowed is None:
            return
        walk.step(walk._choose(allowed))
    raise AssertionError(walk.text)


@pytest.mark.parametrize(
    ("name", "beginning"), [("llama3", '\n{"name'), ("glm4", "ping\n"), ("chatglm3", "get_weather\n ```python\ntool")]
)
def test_strict_functions_without_a_marker_are_known_by_their_beginning(compiler, name, beginning):
    format_ = find_format(name)
    plan = OutputPlan(tools=ToolPlan(format=format_, parameters=SCHEMAS))
    mask = compiler.strict_mask(format_, STRICT)
    prose = Walk(mask.fork(), TOKENIZER, 0)
    prose.say("word " + beginning)
    assert prose.mask.allowed() is None
    walk = Walk(mask, TOKENIZER, 3)
    walk.say(beginning)
    _walk_until_free(walk)
    assert len(fold(play(plan, TOKENIZER, walk.tokens, end_token=END_ID)[0]).calls) == 1, walk.text


def test_a_mixed_list_constrains_only_by_what_each_function_says(compiler):
    loose = CallableTool(name="loose", schema={"type": "object"})
    walk = Walk(compiler.strict_mask(find_format("hermes"), [*STRICT, loose]), TOKENIZER, 0)
    walk.say('<tool_call>\n{"name": "loose", "arguments": {"x": [1]}}\n</tool_call>')
    assert walk.mask.allowed() is None


@pytest.mark.parametrize("name", ["hermes", "deepseek_v31"])
def test_a_marker_in_letters_begins_a_strict_call_too(compiler, name):
    format_ = find_format(name)
    walk = Walk(compiler.strict_mask(format_, STRICT), TOKENIZER, 2)
    for byte in format_.starts[0].marker.encode():
        (letter,) = TOKENIZER.encode_bytes(bytes([byte]))
        assert letter in (ids_of(walk.mask, TOKENIZER.vocab_size) or {letter})
        walk.step(letter)
    assert END_ID not in ids_of(walk.mask, TOKENIZER.vocab_size)
    _walk_until_free(walk)
    plan = OutputPlan(tools=ToolPlan(format=format_, parameters=SCHEMAS))
    assert len(fold(play(plan, TOKENIZER, walk.tokens, end_token=END_ID)[0]).calls) == 1


WITHOUT_TAGS = make_tokenizer(without=("<think>", "</think>", "<tool_call>", "</tool_call>"))
SPECIAL_TAGS = make_tokenizer(special=("<think>", "</think>"))


@pytest.mark.parametrize("tokenizer", [TOKENIZER, WITHOUT_TAGS, SPECIAL_TAGS], ids=["token", "text", "special"])
def test_a_thought_is_free_and_cannot_end_the_answer(tokenizer):
    end = tokenizer.token_id(END)
    mask = make_compiler(tokenizer).json_mask(WEATHER, thought=thought())
    for seed in range(10):
        walk = Walk(mask.fork(), tokenizer, seed)
        walk.say("<think>word { </")
        allowed = ids_of(walk.mask, tokenizer.vocab_size)
        assert allowed is not None and end not in allowed and tokenizer.token_id("天气") in allowed
        walk.say(" word </think>")
        start = len(walk.tokens)
        walk.run()
        assert fits(json.loads(tokenizer.decode(walk.tokens[start:])), WEATHER)


def test_a_token_that_ends_the_thought_may_only_begin_the_answer_rightly():
    walk = Walk(make_compiler(WITHOUT_TAGS).json_mask(WEATHER, thought=thought()), WITHOUT_TAGS, 0)
    walk.say("</think")
    allowed = ids_of(walk.mask, WITHOUT_TAGS.vocab_size)
    assert allowed is not None
    assert {WITHOUT_TAGS.token_id(text) in allowed for text in (">", ">\n", ">{")} == {True}
    assert WITHOUT_TAGS.token_id('>"') not in allowed
    walk.say(">{")
    assert fits(json.loads(Walk.run(walk).text.partition("</think>")[2]), WEATHER)


def test_a_tag_in_letters_does_not_end_a_thought_where_a_token_exists(compiler):
    walk = Walk(compiler.json_mask(WEATHER, thought=thought()), TOKENIZER, 0)
    for byte in b"</think>":
        walk.step(TOKENIZER.encode_bytes(bytes([byte]))[0])
    assert TOKENIZER.token_id("word") in ids_of(walk.mask, TOKENIZER.vocab_size)


@pytest.mark.parametrize("tokenizer", [TOKENIZER, WITHOUT_TAGS], ids=["token", "text"])
def test_a_thought_may_be_left_out_where_the_model_opens_it_itself(tokenizer):
    mask = make_compiler(tokenizer).json_mask(WEATHER, thought=thought(ThoughtStart.IF_OPENED))
    with_thought = Walk(mask.fork(), tokenizer, 4)
    assert tokenizer.token_id("word") not in ids_of(with_thought.mask, tokenizer.vocab_size)
    with_thought.say("<think>word</think>")
    assert fits(json.loads(with_thought.run().text.partition("</think>")[2]), WEATHER)
    without = Walk(mask, tokenizer, 5)
    without.say("{")
    assert fits(json.loads(without.run().text), WEATHER)


def test_thinking_off_constrains_from_the_first_token(compiler):
    mask = compiler.json_mask(WEATHER, thought=thought(ThoughtStart.NONE))
    assert TOKENIZER.token_id("word") not in ids_of(mask, TOKENIZER.vocab_size)


def test_calls_after_a_thought(compiler):
    mask = compiler.calls_mask(find_format("hermes"), TOOLS, thought=thought())
    walk = Walk(mask, TOKENIZER, 2)
    walk.say("word</think>\n\n")
    walk.run()
    plan = OutputPlan(thought=thought().plan, tools=ToolPlan(format=find_format("hermes")))
    answer = fold(play(plan, TOKENIZER, walk.tokens, end_token=END_ID)[0])
    assert answer.reasoning == "word" and answer.calls and answer.content == ""


@pytest.mark.parametrize("tokenizer", [TOKENIZER, WITHOUT_TAGS], ids=["token", "text"])
def test_a_thought_over_budget_is_ended_by_force(tokenizer):
    mask = make_compiler(tokenizer).thought_mask(thought(budget_tokens=3, early_stopping_text="\nword.\n"))
    walk = Walk(mask.fork(), tokenizer, 0)
    walk.say("word" * 2)
    assert walk.mask.allowed() is None
    walk.say("word")
    while (allowed := ids_of(walk.mask, tokenizer.vocab_size)) is not None:
        assert len(allowed) == 1
        walk.step(allowed.pop())
    assert walk.text == "wordwordword\nword.\n</think>"
    early = Walk(mask, tokenizer, 0)
    early.say("word</think>")
    early.say("word" * 5)
    assert early.mask.allowed() is None


def test_a_budget_and_a_grammar_together(compiler):
    walk = Walk(compiler.json_mask(WEATHER, thought=thought(budget_tokens=2)), TOKENIZER, 1)
    walk.say("wordword")
    assert ids_of(walk.mask, TOKENIZER.vocab_size) == {TOKENIZER.token_id("</think>")}
    walk.say("</think>")
    assert fits(json.loads(walk.run().text.partition("</think>")[2]), WEATHER)


def test_forks_go_their_own_ways(compiler):
    mask = compiler.json_mask({"enum": [12, "word"]})
    first, second = mask.fork(), mask.fork()
    first.advance(TOKENIZER.token_id("12"))
    assert ids_of(first, TOKENIZER.vocab_size) == {END_ID}
    assert TOKENIZER.token_id('"') in ids_of(second, TOKENIZER.vocab_size)
    thinking = compiler.json_mask(WEATHER, thought=thought())
    other = thinking.fork()
    other.advance(TOKENIZER.token_id("</think>"))
    assert TOKENIZER.token_id("word") in ids_of(thinking, TOKENIZER.vocab_size)
    assert TOKENIZER.token_id("word") not in ids_of(other, TOKENIZER.vocab_size)


def test_a_dead_end_allows_only_end_tokens(compiler):
    for wrong in (TOKENIZER.token_id("word"), 10**6, TOKENIZER.vocab_size):
        mask = compiler.json_mask(WEATHER)
        mask.advance(wrong)
        mask.advance(wrong)
        assert ids_of(mask, TOKENIZER.vocab_size) == {END_ID}
        assert ids_of(mask.fork(), TOKENIZER.vocab_size) == {END_ID}


def test_after_the_end_only_the_end(compiler):
    mask = compiler.json_mask({"enum": [12]})
    for token_id in (TOKENIZER.token_id("12"), END_ID, END_ID):
        mask.advance(token_id)
        assert ids_of(mask, TOKENIZER.vocab_size) == {END_ID}


def test_a_model_with_more_rows_than_tokens_and_one_without_an_end():
    size = TOKENIZER.vocab_size + 100
    padded = GrammarCompiler(TOKENIZER, eos_token_ids=frozenset({END_ID, size - 1}), vocab_size=size)
    assert max(ids_of(padded.json_mask(WEATHER), size)) < TOKENIZER.vocab_size
    endless = GrammarCompiler(TOKENIZER, eos_token_ids=frozenset(), vocab_size=TOKENIZER.vocab_size)
    mask = endless.json_mask({"enum": [12]})
    assert END_ID not in ids_of(mask, TOKENIZER.vocab_size)
    mask.advance(TOKENIZER.token_id("12"))
    assert mask.allowed() is None


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "not": {}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "strange"}, "strange"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"$ref": "#/nowhere"}, "nowhere"),
        ({"$ref": "https://example.com/schema"}, "example.com"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(compiler, schema, named):
    with pytest.raises(InvalidRequest) as caught:
        compiler.json_mask(schema, is_strict=True)
    assert named in caught.value.message and caught.value.param == "response_format"
    tool = CallableTool(name="f", schema=closed({"properties": {"x": schema}}), is_strict=True)
    with pytest.raises(InvalidRequest):
        compiler.calls_mask(find_format("hermes"), [tool])


def test_patterns_that_explode_are_refused_before_the_engine_sees_them(compiler):
    exploding = {"type": "string", "pattern": "^(a{1000}){1000}$"}
    schema = {"type": "object", "properties": {"x": exploding}, "required": ["x"]}
    with pytest.raises(InvalidRequest, match="not supported"):
        compiler.json_mask(schema)


def test_hundreds_of_optional_properties(compiler):
    schema = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(500)}}
    for seed in range(3):
        walk = Walk(compiler.json_mask(schema).fork(), TOKENIZER, seed).run(4000)
        assert isinstance(json.loads(walk.text), dict)


def test_keywords_that_cannot_be_enforced_are_ignored_unless_strict(compiler):
    mask = compiler.json_mask({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    assert isinstance(json.loads(Walk(mask, TOKENIZER, 0).run().text), list)


@pytest.mark.parametrize("name", ["qwen3_coder", "deepseek_v32", "chatglm3"])
def test_bare_values_are_held_to_their_type_only(compiler, name):
    schema = closed({"properties": {"x": {"type": "string", "maxLength": 3}}, "required": ["x"]})
    compiler.calls_mask(find_format(name), [CallableTool(name="f", schema=schema)])
    with pytest.raises(InvalidRequest, match="maxLength"):
        compiler.calls_mask(find_format(name), [CallableTool(name="f", schema=schema, is_strict=True)])


@pytest.mark.parametrize("name", ["hermes", "deepseek_v3"])
def test_references_within_a_tools_schema_still_lead_home(compiler, name):
    schema = closed(
        {
            "type": "object",
            "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
            "properties": {"at": {"type": "object", "properties": {"p": {"$ref": "#/$defs/point"}}, "required": ["p"]}},
            "required": ["at"],
        }
    )
    format_ = find_format(name)
    plan = OutputPlan(tools=ToolPlan(format=format_, parameters={"f": schema}))
    mask = compiler.calls_mask(format_, [CallableTool(name="f", schema=schema, is_strict=True)], is_single=True)
    walk = Walk(mask, TOKENIZER, 6).run()
    ((_, arguments),) = fold(play(plan, TOKENIZER, walk.tokens, end_token=END_ID)[0]).calls
    assert list(json.loads(arguments)["at"]["p"]) == ["x"]


def test_tool_parameters_are_closed_unless_they_say_otherwise():
    inner = {"type": "object", "properties": {"a": {"type": "string"}}}
    schema = closed({"properties": {"o": inner, "free": {"type": "object"}}})
    assert schema["type"] == "object" and schema["additionalProperties"] is False
    assert schema["properties"]["o"]["additionalProperties"] is False
    assert "additionalProperties" not in schema["properties"]["free"]
    assert closed({"type": "object", "additionalProperties": {"type": "integer"}})["additionalProperties"]
    assert closed(None) == {"type": "object", "additionalProperties": False}
    assert "additionalProperties" not in closed({"allOf": [inner]})


def test_compiled_grammars_are_kept_and_masks_are_fresh(compiler):
    first, second = compiler.json_mask(WEATHER), compiler.json_mask(WEATHER)
    first.advance(TOKENIZER.token_id("{"))
    assert TOKENIZER.token_id("{") in ids_of(second, TOKENIZER.vocab_size)


def test_a_cut_off_walk_never_announces_half_a_call(compiler):
    format_ = find_format("hermes")
    plan = OutputPlan(tools=ToolPlan(format=format_, parameters=SCHEMAS))
    walk = Walk(compiler.calls_mask(format_, TOOLS), TOKENIZER, 8).run()
    for length in range(1, len(walk.tokens)):
        answer = fold(play(plan, TOKENIZER, walk.tokens[:length], finish=FinishReason.LENGTH)[0])
        for called, arguments in answer.calls:
            assert fits(json.loads(arguments), SCHEMAS[called])
