"""Reference cases of the media families, as requests: features from their files, placeholders already expanded."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.base import MediaInput, MediaKind

GOLDENS = Path(__file__).parents[3] / "data" / "goldens"
TOLERANCE = 2e-3
PARTS = {"image": MediaKind.IMAGE, "video": MediaKind.VIDEO, "audio": MediaKind.AUDIO}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One conversation of a family."""

    name: str
    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    media: tuple[MediaInput, ...]
    embeddings: tuple[NDArray[np.float32], ...]
    """What the towers make of each of `media`."""

    @property
    def ids(self) -> list[int]:
        return self.facts["ids"]

    @property
    def greedy(self) -> list[int]:
        return self.facts["greedy"]["ids"]


def cases(family: str) -> list[Case]:
    """All of a family's."""
    facts = json.loads((GOLDENS / family / "golden.json").read_text())
    return [_case(GOLDENS / family, each) for each in facts["cases"]]


def case(family: str, name: str) -> Case:
    (found,) = (each for each in cases(family) if each.name == name)
    return found


def _case(folder: Path, facts: dict[str, Any]) -> Case:
    with np.load(folder / f"{facts['name']}.npz") as stored:
        arrays = dict(stored)
    placeholders = _placeholders(folder / "model")
    runs = list(_runs(facts["ids"], placeholders))
    features = {kind: _features(arrays, facts, kind) for kind in MediaKind}
    tower = {kind: arrays.get(f"{kind}_embeds") for kind in MediaKind}
    used = dict.fromkeys(MediaKind, 0)
    media: list[MediaInput] = []
    embeddings: list[NDArray[np.float32]] = []
    for kind in _kinds(facts["messages"]):
        values = next(features[kind])
        length = _tokens(values)
        offset = _take(runs, placeholders[kind], length)
        digest = hashlib.sha256(b"".join(each.tobytes() for each in values.values())).digest()
        for array in values.values():
            array.setflags(write=False)  # as the media room hands them on, for parts with equal content share them
        media.append(MediaInput(kind=kind, offset=offset, length=length, features=values, digest=digest))
        rows = tower[kind]
        assert rows is not None
        embeddings.append(rows[used[kind] : used[kind] + length])
        used[kind] += length
    assert not any(length for _, _, length in runs), "a placeholder without media"
    return Case(name=facts["name"], facts=facts, arrays=arrays, media=tuple(media), embeddings=tuple(embeddings))


def _placeholders(model: Path) -> dict[MediaKind, int]:
    config = json.loads((model / "config.json").read_text())
    keys = {
        MediaKind.IMAGE: "image_token_id",
        MediaKind.VIDEO: "video_token_id",
        MediaKind.AUDIO: "audio_token_index",
    }
    return {kind: config[key] for kind, key in keys.items() if key in config}


def _runs(ids: list[int], placeholders: dict[MediaKind, int]) -> Iterator[list[int]]:
    """Token, offset and length of each run of placeholders."""
    tokens = set(placeholders.values())
    begin = 0
    for index in range(1, len(ids) + 1):
        if index == len(ids) or ids[index] != ids[begin]:
            if ids[begin] in tokens:
                yield [ids[begin], begin, index - begin]
            begin = index


def _take(runs: list[list[int]], token: int, length: int) -> int:
    """The offset of the next placeholders; media may stand side by side in one run."""
    run = next(each for each in runs if each[0] == token and each[2])
    offset = run[1]
    run[1] += length
    run[2] -= length
    assert run[2] >= 0
    return offset


def _kinds(messages: list[dict[str, Any]]) -> list[MediaKind]:
    contents = [message["content"] for message in messages if isinstance(message["content"], list)]
    return [PARTS[part["type"]] for content in contents for part in content if part["type"] in PARTS]


def _features(
    arrays: dict[str, NDArray[Any]], facts: dict[str, Any], kind: MediaKind
) -> Iterator[dict[str, NDArray[Any]]]:
    if kind is MediaKind.AUDIO:
        pairs = zip(arrays.get("input_features", ()), arrays.get("feature_attention_mask", ()), strict=True)
        yield from ({"input_features": each, "feature_attention_mask": mask} for each, mask in pairs)
        return
    is_video = kind is MediaKind.VIDEO
    pixels = arrays.get("pixel_values_videos" if is_video else "pixel_values")
    begin = 0
    for index, grid in enumerate(arrays.get(f"{kind}_grid_thw", ())):
        assert pixels is not None
        count = int(grid.prod())
        values: dict[str, NDArray[Any]] = {"pixel_values": pixels[begin : begin + count], "grid_thw": grid}
        if is_video:
            values["second_per_grid"] = np.array(facts.get("second_per_grid_ts", [1.0])[index], np.float32)
        yield values
        begin += count


def _tokens(features: dict[str, NDArray[Any]]) -> int:
    if "grid_thw" in features:
        return int(features["grid_thw"].prod()) // 4
    columns = int(features["feature_attention_mask"].sum())
    return ((columns - 1) // 2 + 1 - 2) // 2 + 1
