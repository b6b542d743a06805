"""Prepared models: a second start reads them, and nothing damaged is ever served."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from paged_driver import PagedDriver, golden, quiet

from mindserve.engine.native.models import prepared
from mindserve.engine.native.models.prepared import prepare_model
from mindserve.errors import ModelLoadError
from mindserve.settings.values import Precision

REFERENCE = golden("mistral")
"""Has a sliding window, which the saved graph does not carry by itself."""
IDS = max(REFERENCE.prompts, key=len)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REFERENCE.folder / "model", tmp_path / "model"))


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def start(model_dir: Path, cache_dir: Path | None, precision: Precision = Precision.F32) -> tuple[np.ndarray, bool]:
    """Last logits of the longest prompt, and whether the graph had to be built."""
    stages: list[str] = []
    model = prepare_model(model_dir, precision, cache_dir=cache_dir, progress=lambda what, _: stages.append(what))
    return PagedDriver(model).step(IDS, 0, [len(IDS) - 1]), "building" in stages


def entries(cache_dir: Path) -> list[Path]:
    return sorted(cache_dir.iterdir())


def is_right(logits: np.ndarray) -> bool:
    row = REFERENCE.prompts.index(IDS)
    return bool(np.abs(logits[0] - REFERENCE.array("last_logits.npy")[row]).max() < 2e-3)


def test_the_second_start_reads_what_the_first_stored(model_dir: Path, cache_dir: Path) -> None:
    first, first_built = start(model_dir, cache_dir)
    second, second_built = start(model_dir, cache_dir)
    assert (first_built, second_built) == (True, False)
    assert is_right(first) and (first == second).all()
    assert [each.name for each in entries(entries(cache_dir)[0])] == ["graph.bin", "graph.xml", "manifest.json"]


def test_the_configuration_comes_back_whole(model_dir: Path, cache_dir: Path) -> None:
    first = prepare_model(model_dir, Precision.INT8, cache_dir=cache_dir, progress=quiet)
    second = prepare_model(model_dir, Precision.INT8, cache_dir=cache_dir, progress=quiet)
    assert first.config == second.config
    assert (first.config.sliding_window, first.config.eos_token_ids, first.config.default_top_k) == (16, {2}, 20)


def test_without_a_cache_directory_nothing_is_stored(model_dir: Path, tmp_path: Path) -> None:
    logits, built = start(model_dir, None)
    assert built and is_right(logits)
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["graph.bin", "graph.xml", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "delete", "empty"])
def test_damage_is_noticed_and_repaired(model_dir: Path, cache_dir: Path, name: str, damage: str) -> None:
    start(model_dir, cache_dir)
    file = entries(cache_dir)[0] / name
    data = bytearray(file.read_bytes())
    if damage == "delete":
        file.unlink()
    elif damage == "flip":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    else:
        file.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    logits, built = start(model_dir, cache_dir)
    assert built and is_right(logits)
    again, built = start(model_dir, cache_dir)
    assert not built and is_right(again)


def test_changed_sources_are_built_anew_and_replace_the_old(model_dir: Path, cache_dir: Path) -> None:
    start(model_dir, cache_dir)
    old = entries(cache_dir)
    config = model_dir / "config.json"
    config.chmod(0o644)
    config.write_text(config.read_text().replace('"sliding_window": 16', '"sliding_window": null'))
    logits, built = start(model_dir, cache_dir)
    assert built and not is_right(logits)
    assert len(entries(cache_dir)) == 1 and entries(cache_dir) != old


def test_touched_sources_are_not_trusted(model_dir: Path, cache_dir: Path) -> None:
    start(model_dir, cache_dir)
    os.utime(next(model_dir.glob("*.safetensors")), (1, 1))
    assert start(model_dir, cache_dir)[1]


def test_each_precision_has_its_own_entry(model_dir: Path, cache_dir: Path) -> None:
    start(model_dir, cache_dir)
    assert start(model_dir, cache_dir, Precision.INT8)[1]
    assert len(entries(cache_dir)) == 2
    assert not start(model_dir, cache_dir)[1]


def test_starts_at_the_same_time_do_not_disturb_each_other(model_dir: Path, cache_dir: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: start(model_dir, cache_dir), range(4)))
    assert all(is_right(logits) for logits, _ in results)
    assert len(entries(cache_dir)) == 1
    assert not start(model_dir, cache_dir)[1]


def test_a_cache_that_cannot_be_written_costs_time_only(model_dir: Path, cache_dir: Path) -> None:
    cache_dir.write_text("a file where the directory should be")
    logits, built = start(model_dir, cache_dir)
    assert built and is_right(logits)


def test_a_nearly_full_disk_is_left_alone(model_dir: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "MIN_FREE_BYTES", 1 << 62)
    logits, _ = start(model_dir, cache_dir)
    assert is_right(logits)
    assert entries(cache_dir) == []


def test_the_least_recently_used_go_when_the_cache_is_full(
    model_dir: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(model_dir, cache_dir, Precision.F32)
    start(model_dir, cache_dir, Precision.F16)
    f32, f16 = sorted(entries(cache_dir), key=lambda each: -(each / "graph.bin").stat().st_size)
    os.utime(f32, (2, 2))
    os.utime(f16, (1, 1))
    size = sum(file.stat().st_size for entry in (f32, f16) for file in entry.iterdir())
    monkeypatch.setattr(prepared, "MAX_BYTES", size)
    start(model_dir, cache_dir, Precision.INT8)
    assert f32.is_dir() and not f16.is_dir() and len(entries(cache_dir)) == 2


def test_what_a_crash_left_is_removed_in_time(model_dir: Path, cache_dir: Path) -> None:
    old, recent = cache_dir / "unfinished-old", cache_dir / "unfinished-recent"
    for each in (old, recent):
        (each / "entry").mkdir(parents=True)
    os.utime(old, (1, 1))
    start(model_dir, cache_dir)
    assert not old.exists() and recent.exists()


def test_a_model_that_does_not_load_leaves_no_entry(model_dir: Path, cache_dir: Path) -> None:
    next(model_dir.glob("*00002*.safetensors")).unlink()
    with pytest.raises(ModelLoadError, match="model-00002-of-00003"):
        start(model_dir, cache_dir)
    assert not cache_dir.exists() or entries(cache_dir) == []


def test_a_longrope_model_is_built_anew_for_another_served_context(cache_dir: Path) -> None:
    def built(max_context: int) -> bool:
        stages: list[str] = []
        prepare_model(
            golden("phi3").folder / "model",
            Precision.F32,
            cache_dir=cache_dir,
            progress=lambda what, _: stages.append(what),
            max_context=max_context,
        )
        return "building" in stages

    assert [built(context) for context in (48, 20, 49, 4096, 48)] == [True, False, True, False, True]
    assert len(entries(cache_dir)) == 1
