import pytest

from mindserve.engine.base import (
    EngineStats,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    StepInfo,
    TokenEvent,
    TokenLogprob,
)
from mindserve.engine.replicas.wire import Parcel, ParcelCodec, pack_request, unpack_request
from mindserve.errors import EngineFailure, MindserveError, ModelNotFound, Overloaded, PromptTooLong

STEP = StepInfo(batch_size=7, queue_wait_us=11, time_s=123456.0000001)


def _parcel(*events: TokenEvent) -> Parcel:
    stats = EngineStats(running=3, total_blocks=100, free_blocks=40, prefix_hits=5)
    return Parcel(sent_s=0.1 + 0.2, steps=[(4, list(events)), (5, [])], stats=stats, is_healthy=True)


def _there(parcel: Parcel) -> Parcel:
    return ParcelCodec().decode(ParcelCodec().encode(parcel))


def test_events_arrive_as_they_were() -> None:
    event = TokenEvent(
        index=2,
        token_ids=(1, 150_000),
        step=STEP,
        logprobs=(TokenLogprob(logprob=-0.1, top=((1, -0.1), (2, -9999.0))), TokenLogprob(logprob=-float("inf"))),
        finish_reason=FinishReason.LENGTH,
        cached_tokens=32,
        cumulative_logprob=-3.3,
    )
    parcel = _parcel(event)
    assert _there(parcel) == parcel
    assert _there(parcel).steps[0][1][0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "error", [EngineFailure("gone"), PromptTooLong("long", param="messages"), ModelNotFound("who?", param="model")]
)
def test_errors_keep_class_message_and_field(error: MindserveError) -> None:
    event = TokenEvent(index=0, token_ids=(), step=STEP, finish_reason=FinishReason.ERROR, error=error)
    arrived = _there(_parcel(event)).steps[0][1][0].error
    assert arrived is not None
    assert (type(arrived), arrived.message, arrived.param) == (type(error), error.message, error.param)


def test_an_error_of_a_newer_replica_is_still_an_error() -> None:
    class Unheard(Overloaded):
        word = "unheard_of"

    old = ParcelCodec()
    del old._classes["unheard_of"]
    event = TokenEvent(index=0, token_ids=(), step=STEP, finish_reason=FinishReason.ERROR, error=Unheard("new"))
    arrived = old.decode(ParcelCodec().encode(_parcel(event))).steps[0][1][0].error
    assert type(arrived) is MindserveError
    assert arrived.message == "new"


def test_what_is_no_error_of_ours_has_no_place() -> None:
    event = TokenEvent(index=0, token_ids=(), step=STEP, error=ValueError("foreign"))  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="ValueError"):
        ParcelCodec().encode(_parcel(event))


def test_requests_arrive_as_they_were() -> None:
    request = GenerateRequest(
        request_id="r",
        prompt_token_ids=[1, 2, 3],
        sampling=SamplingParams(seed=2**64 - 1, stop_token_ids=frozenset({7})),
        n=3,
        adapter="poet",
    )
    assert unpack_request(pack_request(request)) == request
