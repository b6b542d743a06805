import numpy as np
import pytest

from mindserve.engine.base import GenerateRequest, MediaInput, MediaKind
from mindserve.engine.replicas.affinity import MAX_KEYS, MAX_PREFIXES, SHORTEST_PREFIX, SLACK, Affinity, prefix_keys


def _request(tokens: list[int], **fields: object) -> GenerateRequest:
    return GenerateRequest(request_id="r", prompt_token_ids=tokens, **fields)  # type: ignore[arg-type]


def _image(digest: bytes, offset: int) -> MediaInput:
    return MediaInput(
        kind=MediaKind.IMAGE, offset=offset, length=4, features={"pixel_values": np.zeros(1)}, digest=digest
    )


def test_the_least_loaded_replica_comes_first() -> None:
    assert Affinity().rank((1, 2), {"a": 3, "b": 1, "c": 2}) == ["b", "c", "a"]
    assert Affinity().rank((), {}) == []


def test_a_known_beginning_outweighs_a_little_load() -> None:
    affinity = Affinity()
    affinity.record((1,), "a")
    assert affinity.rank((1,), {"a": SLACK, "b": 0}) == ["a", "b"]
    assert affinity.rank((1,), {"a": SLACK + 1, "b": 0}) == ["b", "a"]
    assert affinity.rank((1,), {"a": 50, "b": 40}) == ["a", "b"]
    assert affinity.rank((1,), {"a": 51, "b": 40}) == ["b", "a"]
    assert affinity.rank((2,), {"a": 1, "b": 0}) == ["b", "a"]


def test_the_longest_known_beginning_counts() -> None:
    affinity = Affinity()
    affinity.record((1,), "a")
    affinity.record((2, 1), "b")
    assert affinity.rank((3, 2, 1), {"a": 0, "b": 1}) == ["b", "a"]
    assert affinity.rank((4, 1), {"a": 2, "b": 1}) == ["b", "a"], "both know it: the less loaded one"


def test_replicas_that_are_gone_are_forgotten() -> None:
    affinity = Affinity()
    affinity.record((1,), "a")
    affinity.record((1,), "b")
    affinity.keep(["b", "c"])
    assert affinity.rank((1,), {"a": 0, "b": 2, "c": 1}) == ["b", "a", "c"]


def test_its_memory_is_bounded() -> None:
    affinity = Affinity()
    affinity.record((-1,), "a")
    for key in range(MAX_KEYS - 1):
        affinity.record((key,), "a")
    affinity.record((-1,), "a")
    affinity.record((MAX_KEYS,), "a")
    assert affinity.rank((-1,), {"a": 1, "b": 0}) == ["a", "b"], "used last"
    assert affinity.rank((0,), {"a": 1, "b": 0}) == ["b", "a"], "unused longest"


def test_equal_beginnings_have_equal_keys() -> None:
    first = prefix_keys(_request([*range(300), 7]))
    second = prefix_keys(_request([*range(300), 8, 9]))
    assert len(first) == 3, "64, 128 and 256 tokens"
    assert first == second
    third = prefix_keys(_request([*range(200), *range(200)]))
    assert (third[-1], third[-2]) == (first[-1], first[-2])
    assert third[0] != first[0]


@pytest.mark.parametrize(("length", "count"), [(SHORTEST_PREFIX - 1, 0), (SHORTEST_PREFIX, 1), (10**5, MAX_PREFIXES)])
def test_the_number_of_keys_is_bounded(length: int, count: int) -> None:
    assert len(prefix_keys(_request([1] * length))) == count


def test_adapters_and_media_make_other_beginnings() -> None:
    tokens = [5] * 150
    plain = prefix_keys(_request(tokens))
    assert not set(plain) & set(prefix_keys(_request(tokens, adapter="poet")))
    cat, dog = (prefix_keys(_request(tokens, media=(_image(digest, 100),))) for digest in (b"cat", b"dog"))
    assert cat[-1] == dog[-1] == plain[-1], "the image comes later"
    assert cat[0] != dog[0]
