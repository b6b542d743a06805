from mindserve.engine.base import EngineStats, StepInfo, TokenEvent, TokenLogprob
from mindserve.engine.replicas.outbox import PARCEL_TOKENS, portions
from mindserve.engine.replicas.wire import Parcel, ParcelCodec, Steps

STEP = StepInfo(batch_size=1, queue_wait_us=0, time_s=0.0)
GRPC_BYTES = 4 << 20


def _event(tokens: int, *, index: int = 0, logprobs: int = 0) -> TokenEvent:
    entry = TokenLogprob(logprob=-1.5, top=tuple((100_000 + i, -2.5) for i in range(logprobs)))
    return TokenEvent(index=index, token_ids=(150_000,) * tokens, step=STEP, logprobs=(entry,) * tokens)


def _events(steps: Steps) -> list[tuple[int, TokenEvent]]:
    return [(number, event) for number, events in steps for event in events]


def test_a_step_is_one_portion() -> None:
    steps: Steps = [(number, [_event(1), _event(1, index=1)]) for number in range(200)]
    assert list(portions(steps)) == [steps]


def test_nothing_is_one_portion_too() -> None:
    assert list(portions([])) == [[]]
    assert list(portions([(3, [])])) == [[(3, [])]]


def test_what_is_too_much_is_divided_in_order() -> None:
    beams = [_event(400, index=index, logprobs=20) for index in range(60)]
    steps: Steps = [(1, [_event(1)]), (2, beams), (3, [_event(1)]), (4, [])]
    divided = list(portions(steps))
    assert [pair for portion in divided for pair in _events(portion)] == _events(steps)
    assert divided[-1][-1] == (4, [])
    assert len(divided) > 1
    for portion in divided:
        parcel = Parcel(sent_s=0.0, steps=portion, stats=EngineStats(), is_healthy=True)
        assert len(ParcelCodec().encode(parcel)) < GRPC_BYTES
        assert sum(len(event.token_ids) for _, event in _events(portion)) < PARCEL_TOKENS + 400


def test_a_full_parcel_leaves_no_empty_one() -> None:
    assert len(list(portions([(1, [_event(PARCEL_TOKENS)])]))) == 1
