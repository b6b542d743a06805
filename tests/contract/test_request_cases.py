"""Every conformance case through validation alone; the server's tests send the same cases over HTTP."""

import json

import pytest
from tests.contract.cases import CASES_FILE, DECIDED_LATER, Case, Way, load_cases

from mindserve.contract.context import ValidationContext
from mindserve.contract.request import PartKind
from mindserve.contract.validate import parse_request
from mindserve.errors import InvalidRequest, ModelNotFound

PLACEHOLDERS = {
    "MODEL": "some-model",
    "MODEL_UPPER": "SOME-MODEL",
    "LORA": "some-adapter",
    "LOCAL_PNG": "/media/dot.png",
    "LOCAL_PNG_BASENAME": "dot.png",
    "LOCAL_SYMLINK_PNG": "/media/out.png",
    "LOCAL_INNER_SYMLINK_PNG": "/media/in.png",
    "LOCAL_PNG_41MB": "/media/large.png",
    "MEDIA_PORT": "8001",
    "MEDIA_DIR": "/media",
    **dict.fromkeys(("JPG_B64", "PNG_B64", "WAV_B64", "MP3_B64", "FLAC_B64"), "aGVsbG8="),
}
CASES = load_cases(PLACEHOLDERS)


def context_for(case: Case) -> ValidationContext:
    """What a server with the case's configuration and the abilities that it needs would know."""
    backend = case.config["BackendConfig"]
    models = backend["ModelDeployConfig"].get("ModelConfig", [{}])
    plugins = json.loads(models[0].get("plugin_params", "{}")).get("plugin_type", "")
    is_multimodal = not case.needs.isdisjoint(("vision", "video", "audio"))
    return ValidationContext(
        models={PLACEHOLDERS["MODEL"]: None, PLACEHOLDERS["LORA"]: None},
        mode=case.mode,
        plugin_types=frozenset(plugins.split(",")) - {""},
        media=frozenset(PartKind) if is_multimodal else frozenset(),
        max_n=backend["ScheduleConfig"].get("maxN", 128),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case) -> None:
    if case.status == 200 or case.is_decided_later:
        request = parse_request(case.body, context_for(case))
        assert request.stream == (case.way is Way.STREAM or b'"stream": true' in case.body)
        return
    assert case.status == 422
    with pytest.raises(InvalidRequest) as caught:
        parse_request(case.body, context_for(case))
    assert (case.error_contains or "") in caught.value.message
    assert caught.value.message
    is_unknown_model = case.error_contains == "Model not found"
    assert isinstance(caught.value, ModelNotFound) == is_unknown_model


def test_cases_are_complete() -> None:
    names = [raw["name"] for raw in json.loads(CASES_FILE.read_text(encoding="utf-8"))["cases"]]
    assert len(names) == 409
    assert {case.name for case in CASES} == set(names)
    assert len({case.id for case in CASES}) == len(CASES)


def test_only_refusals_are_decided_later() -> None:
    later = {case.name: case.status for case in CASES if case.is_decided_later}
    assert set(later) == set(DECIDED_LATER)
    assert 200 not in later.values()


def test_no_placeholder_is_left_over() -> None:
    names = json.loads(CASES_FILE.read_text(encoding="utf-8"))["meta"]["placeholders"]
    known = {name.strip("$") for key in names for name in key.split("/")}
    assert known == set(PLACEHOLDERS)
    assert not [case.id for case in CASES if b"$MODEL" in case.body or b'"$' in case.body]
