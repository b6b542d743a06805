"""What a script says: answers, and the model that the engine pretends to be."""

from pathlib import Path

import msgspec

from mindserve.errors import ConfigError


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the engine does with a request. Counts are tokens per sequence."""

    match: str | None = None
    """Only for prompts that contain this text; answers without it take turns."""
    text: str = "Hello! How can I help you today?"
    token_ids: tuple[int, ...] | None = None
    """Instead of `text`; an end token follows, as it does after a text."""
    sequences: tuple[str, ...] = ()
    """Texts of sequence 0, 1, ... where they differ (again from the first when there are more)."""
    tokens_per_step: int = 1
    """More than one: as an engine with speculation answers."""
    first_delay_s: float = 0.0
    cached_tokens: int = 0
    batch_size: int | None = None
    """Figure to report instead of the true one."""
    queue_wait_us: int | None = None
    refuse: str | None = None
    """`submit` raises NotReady with this text."""
    fail_after: int | None = None
    """An error event comes after this many tokens."""
    failure: str = "The script ends here."
    hang_after: int | None = None
    """Nothing comes after this many tokens, until the request is cancelled."""


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Answers and the model that the engine pretends to be."""

    answers: tuple[Answer, ...] = (Answer(),)
    step_interval_s: float = 0.0
    """Time between steps: the token rate of every request is one per interval (0: as fast as possible)."""
    model_type: str = "scripted"
    max_context_len: int = 32768


def load_script(path: Path) -> Script:
    """Read a script from a JSON file. Raises ConfigError."""
    try:
        script = msgspec.json.decode(path.read_bytes(), type=Script)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"The script {path.name} cannot be used: {error}", param="script") from error
    if not any(answer.match is None for answer in script.answers):
        raise ConfigError("A script needs an answer without `match`, for prompts that match none.", param="answers")
    return script
