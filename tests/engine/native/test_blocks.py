from mindserve.engine.base import MediaInput, MediaKind
from mindserve.engine.native.blocks import BlockPool, PrefixHasher, blocks_for

TOKENS = list(range(200))


def keys_of(
    tokens: list[int], count: int, *, adapter: str | None = None, media: tuple[MediaInput, ...] = ()
) -> list[bytes]:
    keys: list[bytes] = []
    PrefixHasher(adapter=adapter, media=media).extend(keys, tokens, count)
    return keys


def picture(digest: bytes, *, offset: int, length: int) -> MediaInput:
    return MediaInput(kind=MediaKind.IMAGE, offset=offset, length=length, features={}, digest=digest)


def test_blocks_for() -> None:
    assert [blocks_for(n) for n in (0, 1, 32, 33)] == [0, 1, 1, 2]


def test_keys_depend_on_everything_before() -> None:
    keys = keys_of(TOKENS, 4)
    assert len(set(keys)) == 4
    assert keys_of([*TOKENS[:32], 999, *TOKENS[33:]], 4)[0] == keys[0]
    assert not set(keys_of([*TOKENS[:32], 999, *TOKENS[33:]], 4)[1:]) & set(keys)
    assert not set(keys_of(TOKENS, 4, adapter="a")) & set(keys)
    extended = keys[:2]
    PrefixHasher(adapter=None, media=()).extend(extended, TOKENS, 4)
    assert extended == keys


def test_keys_depend_on_media_from_their_place_on() -> None:
    plain = keys_of(TOKENS, 4)
    one, other = (keys_of(TOKENS, 4, media=(picture(d, offset=40, length=30),)) for d in (b"1", b"2"))
    moved = keys_of(TOKENS, 4, media=(picture(b"1", offset=41, length=30),))
    assert one[0] == other[0] == moved[0] == plain[0]
    for i in (1, 2, 3):
        assert len({plain[i], one[i], other[i], moved[i]}) == 4


def test_release_makes_free_or_cached() -> None:
    pool = BlockPool(3)
    known, unknown = pool.take(), pool.take()
    assert pool.register(known, b"k") == known
    pool.release([known, unknown])
    assert (pool.free_count, pool.cached_count, pool.available) == (2, 1, 3)
    assert pool.find([b"k", b"l"]) == [known]
    assert pool.count_cached([known]) == 1
    pool.share([known])
    assert (pool.cached_count, pool.count_cached([known])) == (0, 0)


def test_eviction_takes_the_least_recently_used_chain_from_its_tail() -> None:
    pool = BlockPool(4)
    old = [pool.register(pool.take(), key) for key in (b"a1", b"a2")]
    new = [pool.register(pool.take(), key) for key in (b"b1", b"b2")]
    pool.release(old)
    pool.release(new)
    pool.share(pool.find([b"a1", b"a2"]))  # used again: now the other chain is older
    pool.release(old)
    assert [pool.take() for _ in range(4)] == [new[1], new[0], old[1], old[0]]
    assert pool.find([b"a1"]) == []


def test_same_content_is_kept_once() -> None:
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    pool.register(first, b"k")
    assert pool.register(second, b"k") == first
    assert pool.is_shared(first)
    assert pool.free_count == 1
    assert pool.register(first, b"k") == first


def test_free_blocks_are_used_before_cached_ones() -> None:
    pool = BlockPool(2)
    block = pool.register(pool.take(), b"k")
    pool.release([block])
    pool.take()
    assert pool.find([b"k"]) == [block]
