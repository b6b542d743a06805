import datetime
from typing import Any

import pytest

from mindserve.chat.bounds import RenderLimits
from mindserve.chat.template import ChatTemplate
from mindserve.errors import InvalidRequest
from mindserve.text.load import load_tokenizer
from tests.text.goldens import FAMILIES, GOLDENS, prompts


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source).render(variables)


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_renderings(family: str) -> None:
    tokenizer = load_tokenizer(GOLDENS / family / "model")
    assert isinstance(tokenizer.chat_template, str)
    template = ChatTemplate(tokenizer.chat_template)
    chats = prompts(family, "chat")
    assert chats
    for chat in chats:
        variables = {"messages": chat["messages"], "tools": chat.get("tools"), **tokenizer.special_tokens}
        assert template.render({**variables, **chat["template_kwargs"]}) == chat["rendered"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("a{% generation %}b{{ x }}{% endgeneration %}c", "abc"),
        ("{{ missing }}|{{ missing is defined }}", "|False"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{% for i in [1, 2] %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}", "1False22True2"),
        ("{% for i in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% for i in [[1, [2]]] recursive %}{{ i[0] }}{{ loop([i[1]]) if i[1] }}{% endfor %}", "12"),
        ("{% macro m(x) %}<{{ x ~ '!' }}>{% endmacro %}{{ m('a') + m('b') }}", "<a!><b!>"),
        ("{{ 'a-b' | replace('-', '+') }}{{ 'ab'.replace('b', 'c') }}{{ 'x' | center(3) }}", "a+bac x "),
        ("{% filter upper %}{% for i in 'ab' %}{{ i }}{% endfor %}{% endfilter %}", "AB"),
        ("{% filter replace('a', 'b') %}aa{% endfilter %}", "bb"),
        ("{{ '-' * 3 }}{{ 2 ** 3 }}{{ '%s!' % 'a' }}{{ '%d' | format(3) }}", "---8a!3"),
        ("{{ 'a\n\nb' | indent(2) }}", "a\n\n  b"),
        ("{{ '{}-{}'.format(1, 2) }}", "1-2"),
    ],
)
def test_what_templates_rely_on(source: str, expected: str) -> None:
    assert render(source) == expected


def test_the_date_is_there() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().year)


def test_a_template_s_own_complaint_is_the_request_s_error() -> None:
    with pytest.raises(InvalidRequest) as caught:
        render("{{ raise_exception('roles must alternate\nsecond line') }}")
    assert caught.value.message == "[Tokenizer] encode failed. roles must alternate"


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ messages[0].role }}", "{{ 'a' + 1 }}", "{{ undefined_call() }}"])
def test_failing_templates(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^\[Tokenizer\] encode failed\. ."):
        render(source)


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ a", "{% unknown %}", "{{ x | nofilter }}", "{% include 'a' %}{% endif %}"]
)
def test_what_is_no_template(source: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid chat template syntax"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% include '/etc/passwd' %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.getcwd() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    """Unsafe attributes are undefined, so that using them raises, and printing them prints nothing."""
    try:
        assert render(source, messages=[]) == ""
    except InvalidRequest as error:
        assert error.message.startswith("[Tokenizer] encode failed.")


def growing(step: str, *, start: str = "'ab'") -> str:
    """Sixty rounds in which `n.s` becomes a multiple of itself."""
    return f"{{% set n = namespace(s={start}) %}}{{% for i in range(60) %}}{step}{{% endfor %}}"


TOO_LONG = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops over text": "{% set s = 'a' * 9999 %}{% for a in s %}{% for b in s %}{% for c in s %}" + "{% endfor %}" * 3,
    "recursive macro": "{% macro m(n) %}{{ m(n - 1) if n }}{{ m(n - 1) if n }}{% endmacro %}{{ m(60) }}",
}

TOO_MUCH = {
    "huge range": "{% for i in range(10 ** 12) %}{% endfor %}",
    "repeated text": "{{ 'a' * 10 ** 10 }}",
    "repeated list": "{{ ([0] * 10 ** 9) | length }}",
    "huge power": "{{ 9 ** (9 ** 9) }}",
    "wide format": "{{ '%999999999d' % 1 }}",
    "wide format filter": "{{ '%999999999d' | format(1) }}",
    "wide format method": "{{ '{:999999999}'.format(1) }}",
    "center": "{{ 'a' | center(10 ** 9) }}",
    "center by name": "{{ 'a' | center(width=10 ** 9) }}",
    "ljust": "{{ 'a'.ljust(10 ** 9) }}",
    "ljust of bytes": "{{ 'a'.encode().ljust(10 ** 9) }}",
    "indent": "{{ 'a\nb' | indent(10 ** 9) }}",
    "indent of many lines": "{{ ('\n' * 10 ** 6) | indent(9999) }}",
    "long replacement": "{{ ('a' * 10 ** 6) | replace('a', 'b' * 10 ** 6) }}",
    "long separator": "{{ ([1] * 10 ** 6) | join('b' * 10 ** 6) }}",
    "long separator method": "{{ ('b' * 10 ** 6).join(['1'] * 10 ** 6) }}",
    "sums": growing("{% set n.s = n.s + n.s %}"),
    "sums of lists": growing("{% set n.s = n.s + n.s %}", start="[1]"),
    "concatenations": growing("{% set n.s = n.s ~ n.s %}"),
    "replacements": growing("{% set n.s = n.s | replace('a', 'aaa') %}"),
    "replacements by method": growing("{% set n.s = n.s.replace('a', 'aaa') %}"),
    "joins": growing("{% set n.s = [n.s, n.s] | join %}"),
    "joins by method": growing("{% set n.s = ''.join([n.s, n.s]) %}"),
    "nested joins": "{{ " + "[" * 40 + "'ab'" + ", 'ab'] | join * 2" * 40 + " }}",
    "formats": growing("{% set n.s = '%s%s' % (n.s, n.s) %}"),
    "formats by filter": growing("{% set n.s = '%s%s' | format(n.s, n.s) %}"),
    "blocks": growing("{% set s %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = s %}"),
    "nested lists": growing("{% set n.s = [n.s, n.s] %}") + "{{ n.s | tojson }}",
    "nested mappings": growing("{% set n.s = {'a': n.s, 'b': n.s} %}") + "{{ n.s }}",
    "nested arguments": "{% macro m(x, n) %}{{ m([x, x], n - 1) if n else x }}{% endmacro %}{{ m(1, 60) }}",
    "macros": "{% macro m(n) %}{% set s = m(n - 1) if n else 'ab' %}{{ s }}{{ s }}{% endmacro %}{{ m(60) }}",
    "endless loop": "{% for i in [0] recursive %}{{ loop([i, i]) }}{{ loop([i, i]) }}{% endfor %}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "endless output": "{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_endless_templates_end(name: str) -> None:
    limits = RenderLimits(timeout_s=0.2)
    with pytest.raises(InvalidRequest, match=r"^\[Tokenizer\] encode failed\. the chat template takes too long$"):
        ChatTemplate(TOO_LONG[name], limits=limits).render({})


@pytest.mark.parametrize("name", TOO_MUCH)
def test_templates_that_make_too_much_are_stopped_before_they_do(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^\[Tokenizer\] encode failed\.") as caught:
        render(TOO_MUCH[name])
    assert "takes too long" not in caught.value.message


def test_size_of_source_and_prompt_are_limited() -> None:
    limits = RenderLimits(max_source_chars=100, max_output_chars=1000)
    with pytest.raises(InvalidRequest, match="too long"):
        ChatTemplate("a" * 101, limits=limits)
    template = ChatTemplate("{{ text }}{{ text }}", limits=limits)
    assert len(template.render({"text": "a" * 500})) == 1000
    with pytest.raises(InvalidRequest, match="too long a text"):
        template.render({"text": "a" * 501})
