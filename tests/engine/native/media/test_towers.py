"""Towers make of pixels and spectrograms what the reference implementation makes of them."""

from threading import Event, Thread

import numpy as np
import pytest
from references import GOLDENS, TOLERANCE, cases

from mindserve.engine.base import MediaInput, MediaKind
from mindserve.engine.native.kernels import EXACT, Kernels
from mindserve.engine.native.models.loader import LoadedModel, load_model
from mindserve.engine.native.models.towers.grid import grid_inputs
from mindserve.engine.native.models.towers.spec import VisionSpec
from mindserve.engine.native.towers import NativeTowers
from mindserve.errors import EngineFailure
from mindserve.settings.values import Precision

FAMILIES = ["qwen2-vl", "qwen2.5-vl", "qwen2-audio"]


def load(family: str, precision: Precision = Precision.F32) -> LoadedModel:
    return load_model(GOLDENS / family / "model", precision, progress=lambda _what, _share: None)


def towers_of(model: LoadedModel, kernels: Kernels = EXACT) -> NativeTowers:
    assert model.towers is not None
    return NativeTowers(model.towers, kernels, threads=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tower_meets_its_reference_numbers(family: str) -> None:
    towers = towers_of(load(family))
    seen = set[MediaKind]()
    for case in cases(family):
        for media, expected in zip(case.media, case.embeddings, strict=True):
            assert np.abs(towers.encode(media) - expected).max() < TOLERANCE, case.name
            seen.add(media.kind)
    assert seen == ({MediaKind.AUDIO} if family == "qwen2-audio" else {MediaKind.IMAGE, MediaKind.VIDEO})


@pytest.mark.parametrize("family", ["qwen2-vl", "qwen2.5-vl"])
def test_positions_meet_the_reference(family: str) -> None:
    towers = towers_of(load(family))
    for case in cases(family):
        positions = towers.positions(len(case.ids), case.media)
        assert positions is not None
        assert (positions == case.arrays["position_ids"]).all(), case.name
        if case.media:
            assert positions.max() + 1 - len(case.ids) == case.facts["mrope_position_delta"]


def test_sounds_have_plain_positions() -> None:
    towers = towers_of(load("qwen2-audio"))
    assert all(towers.positions(len(case.ids), case.media) is None for case in cases("qwen2-audio"))


@pytest.mark.parametrize("family", FAMILIES)
def test_eight_bits_and_bfloat16_are_near(family: str) -> None:
    """What the server runs by default; on processors without bfloat16 only the weights are rounded."""
    towers = towers_of(load(family, Precision.INT8), Kernels(quantised_group=32))
    for case in cases(family):
        for media, expected in zip(case.media, case.embeddings, strict=True):
            error = np.abs(towers.encode(media) - expected).mean()
            assert 0 < error < 0.05 * np.abs(expected).mean(), case.name


def test_features_that_do_not_fit_the_prompt_are_a_failure() -> None:
    (case,) = (each for each in cases("qwen2-vl") if each.name == "image_exact")
    (image,) = case.media
    wrong = MediaInput(kind=image.kind, offset=0, length=image.length + 1, features=image.features, digest=image.digest)
    with pytest.raises(EngineFailure, match="makes 6 tokens where the prompt has 7"):
        towers_of(load("qwen2-vl")).encode(wrong)


def test_every_patch_is_in_one_window() -> None:
    """Also at the ragged edges of a grid that windows do not divide."""
    spec = VisionSpec(depth=1, hidden_size=32, num_heads=2, intermediate_size=8, output_size=8, window=4)
    inputs = grid_inputs(spec, 6, 10)
    rows, mask, places = (np.asarray(inputs[f"window_{name}"]) for name in ("rows", "mask", "places"))
    used = mask.reshape(rows.shape) == 0
    assert sorted(rows[used].tolist()) == list(range(60))
    assert (rows.reshape(-1)[places.astype(np.int64)] == np.arange(60)).all()
    assert rows.shape == (2 * 3, 16)
    assert used.sum(axis=1).tolist() == [16, 16, 8, 8, 8, 4]


def test_models_without_media_have_no_towers() -> None:
    model = load("qwen2")
    assert model.towers is None
    names = {name for each in model.graph.inputs for name in each.get_names()}
    assert not names & {"embeddings", "is_embedded", "rotary_positions"}


def test_a_tower_that_is_interrupted_fails_and_can_go_on() -> None:
    """Interrupting one that does nothing has no effect on what it does next."""
    towers = towers_of(load("qwen2-vl"))
    rng = np.random.default_rng(0)
    side = 60
    pixels = rng.standard_normal((side * side, 1176)).astype(np.float32)
    features = {"pixel_values": pixels, "grid_thw": np.array([1, side, side])}
    image = MediaInput(kind=MediaKind.IMAGE, offset=0, length=side * side // 4, features=features, digest=b"")
    towers.interrupt()
    whole = towers.encode(image)
    stop = Event()
    thread = Thread(target=lambda: [towers.interrupt() for _ in iter(stop.is_set, True)])
    thread.start()
    with pytest.raises(EngineFailure, match="could not read the image"):
        towers.encode(image)
    stop.set()
    thread.join()
    assert (towers.encode(image) == whole).all()
