"""The error tree: whose fault, and a stable machine word.

No HTTP statuses here: `server.errors` owns the table from these classes to statuses and body shapes, and uses the same
table before the status line and inside a stream.
"""

from typing import ClassVar


class MindserveError(Exception):
    """Base of everything that is reported to a client or an operator; `message` is safe to show to either."""

    word: ClassVar[str] = "error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        """Name of the request field or configuration key at fault, if one is."""


class InvalidRequest(MindserveError):
    """The request breaks a rule of the contract."""

    word = "invalid_request"


class ModelNotFound(InvalidRequest):
    """`model` names neither a served model nor an adapter."""

    word = "model_not_found"


class PromptTooLong(MindserveError):
    """The tokenised prompt exceeds the configured limits."""

    word = "prompt_too_long"


class PayloadTooLarge(MindserveError):
    """The HTTP body exceeds maxRequestLength."""

    word = "payload_too_large"


class NotFound(MindserveError):
    """No such path or resource."""

    word = "not_found"


class MethodNotAllowed(MindserveError):
    """The path exists, the method does not."""

    word = "method_not_allowed"


class Unauthorized(MindserveError):
    """An API key is configured and the request does not carry it."""

    word = "unauthorized"


class Overloaded(MindserveError):
    """More requests than maxLinkNum running and its bounded queue waiting."""

    word = "overloaded"


class EngineFailure(MindserveError):
    """The engine could not go on with a request, or at all."""

    word = "engine_failure"


class GenerationTimeout(MindserveError):
    """tokenTimeout or e2eTimeout passed."""

    word = "timeout"


class DuplicateRequest(MindserveError):
    """The `req-id` of this request is running already."""

    word = "duplicate_request"


class NotReady(MindserveError):
    """The server is starting or stopping."""

    word = "not_ready"


class ConfigError(MindserveError):
    """A configuration key has a wrong type or range, or is missing; `param` is the key's path."""

    word = "config"


class ModelLoadError(MindserveError):
    """The model's files are missing, damaged or of a kind that is not supported."""

    word = "model_load"
