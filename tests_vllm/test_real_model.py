"""Real weights in vLLM: the same text as the native engine's, and constrained answers, with an adapter too.

`scripts/test-vllm` makes the Hugging Face directory of the demo model.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.e2e.demo_models import ADAPTER, MODELS, MODULES
from tests.e2e.servers import Json, Server, running
from tests.e2e.test_real_models import (  # noqa: F401 - pytest finds tests here
    PERSON,
    TOOLS,
    test_a_budget_ends_a_thought_with_the_configured_text,
    test_a_model_that_is_not_to_think_answers_at_once,
    test_a_thought_and_a_named_call,
    test_a_thought_is_split_from_the_answer,
    test_a_tools_result_is_answered,
    test_tools_are_called_by_the_models_own_choice,
)

from mindserve.settings.values import AdapterSettings
from tests_vllm.servers import native_settings, server_settings

SMOLLM2 = MODELS / "SmolLM2-135M-Instruct"
SUBJECTS = ("the sea", "a clock", "winter", "bread", "the moon", "a river", "music", "an old house", "trains", "bees")
QUESTIONS = [
    f"{start} {subject}?"
    for subject in SUBJECTS
    for start in ("What is", "How would a child describe", "Why do people like", "Where can one find", "Who invented")
]


class AdapterServer(Server):
    """Asks for the adapter."""

    def post(self, body: Json, **headers: str):
        return super().post({"model": "think-tools", **body}, **headers)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> AdapterSettings:
    """The tests' adapter as PEFT saves one, with its chat template."""
    directory = tmp_path_factory.mktemp("adapter")
    packed = np.load(ADAPTER / "adapter.npz")
    tensors: dict[str, np.ndarray] = {}
    for projection in MODULES.values():
        room = "mlp" if projection in ("gate_proj", "up_proj", "down_proj") else "self_attn"
        for side in "AB":
            matrices, scales = packed[f"{projection}.{side}"], packed[f"{projection}.{side}.scale"]
            for layer in range(len(matrices)):
                name = f"base_model.model.model.layers.{layer}.{room}.{projection}.lora_{side}.weight"
                tensors[name] = np.ascontiguousarray(matrices[layer] * scales[layer], dtype=np.float32)
    save_file(tensors, directory / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": sorted(MODULES.values()), "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(fields))
    (directory / "chat_template.jinja").write_bytes((ADAPTER / "chat_template.jinja").read_bytes())
    return AdapterSettings(name="think-tools", path=directory)


@pytest.fixture(scope="module")
def plain(adapter: AdapterSettings) -> Iterator[Server]:
    with running(server_settings(SMOLLM2, cache_bytes=1 << 29, adapters=(adapter,))) as up:
        up.client.timeout = 300
        yield up


@pytest.fixture(scope="module")
def caller(plain: Server) -> Server:
    return AdapterServer(client=plain.client, service=plain.service)


@pytest.fixture(scope="module")
def thinker(adapter: AdapterSettings) -> Iterator[Server]:
    settings = server_settings(
        SMOLLM2,
        cache_bytes=1 << 29,
        adapters=(adapter,),
        enable_reasoning=True,
        early_stopping_text="\nThat is enough.\n",
    )
    with running(settings) as up:
        up.client.timeout = 300
        yield AdapterServer(client=up.client, service=up.service)


def answers(server: Server) -> list[str]:
    def ask(question: str) -> str:
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 32}
        return server.full(body)["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(ask, QUESTIONS))


def test_the_native_engine_says_the_same(plain: Server, tmp_path: Path) -> None:
    """Greedy, 50 questions, the same float32 weights."""
    said = answers(plain)
    with running(native_settings(SMOLLM2, tmp_path)) as native:
        native.client.timeout = 300
        expected = answers(native)
    assert len(set(expected)) > 40
    assert said == expected


def ask(text: str, **fields: object) -> Json:
    return {"messages": [{"role": "user", "content": text}], **fields}


def test_answers_follow_a_schema(plain: Server) -> None:
    """Whatever is drawn. White space between the parts is free, so some draws come to no end."""
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    body = ask("Describe a person.", temperature=1.0, seed=3, n=16, response_format=wanted, max_tokens=160)
    choices = plain.full(body)["choices"]
    finished = [json.loads(c["message"]["content"]) for c in choices if c["finish_reason"] == "stop"]
    assert len(finished) >= 12
    for person in finished:
        assert sorted(person) == ["age", "hobbies", "mood", "name"]
        assert person["mood"] in ("happy", "sad", "calm")
        assert 0 <= person["age"] <= 120
        assert len(person["name"]) <= 20
        assert len(person["hobbies"]) <= 2


def draws(server: Server, body: Json, count: int) -> list[Json]:
    """The choices of several seeds, asked together."""
    with ThreadPoolExecutor(count) as pool:
        full = pool.map(server.full, [{**body, "seed": seed} for seed in range(count)])
        return [answer["choices"][0] for answer in full]


def test_a_model_must_call_where_it_has_to(caller: Server) -> None:
    """A greeting is no reason to call."""
    body = ask("Hello!", temperature=1.0, tools=TOOLS, tool_choice="required", max_tokens=120)
    called = [choice for choice in draws(caller, body, 6) if choice["finish_reason"] == "tool_calls"]
    assert len(called) >= 3
    for choice in called:
        assert choice["message"]["content"] == ""
        for call in choice["message"]["tool_calls"]:
            assert call["function"]["name"] in ("get_weather", "convert_currency")
            assert isinstance(json.loads(call["function"]["arguments"]), dict)


def test_strict_calls_have_valid_arguments(caller: Server) -> None:
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    body = ask("What is the weather in Paris?", temperature=1.0, tools=strict, max_tokens=160)
    calls = [call for choice in draws(caller, body, 8) for call in choice["message"]["tool_calls"]]
    keys = {"get_weather": ["city"], "convert_currency": ["amount", "source", "target"]}
    assert calls
    for call in calls:
        assert list(json.loads(call["function"]["arguments"])) == keys[call["function"]["name"]]
