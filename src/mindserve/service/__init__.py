"""One request from ChatRequest to OutputEvents: admission, prompt, engine, n choices, deadlines, usage."""

from mindserve.service.admission import Admission
from mindserve.service.chat import ChatService
from mindserve.service.observer import NullObserver, Observer, Outcome, RequestTimeline
from mindserve.service.stream import ChatStream

__all__ = ["Admission", "ChatService", "ChatStream", "NullObserver", "Observer", "Outcome", "RequestTimeline"]
