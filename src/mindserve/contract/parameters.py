"""The parameters of both API modes, in the order in which they are checked.

A mode is a list of these rules and a few texts; everything else is common. Ranges and defaults: contract, Request
Parameters; decisions, Native mode.
"""

from dataclasses import dataclass, replace
from types import MappingProxyType

from mindserve.contract.fields import INT32_MAX, UINT64_MAX, Field, Kind, Scalar, StopStrings, TokenIds
from mindserve.settings.values import ApiMode

FLOAT32_MAX = (2 - 2**-23) * 2.0**127
MAX_SEQUENCES = 128
MAX_TOP_LOGPROBS = 20

IGNORE_EOS = Scalar(
    name="ignore_eos",
    kind=Kind.BOOLEAN,
    default=False,
    description="Go on after an end token, until another limit is met.",
)
STOP = StopStrings(
    max_chars=32768,
    description="Text that ends generation and is left out of the answer. Not together with function calls.",
)
STOP_TOKEN_IDS = TokenIds(
    name="stop_token_ids",
    description="Tokens that end generation and are left out of the answer. Not together with function calls.",
)
INCLUDE_STOP = Scalar(
    name="include_stop_str_in_output",
    kind=Kind.BOOLEAN,
    default=False,
    read_beside=("stop", "stop_token_ids"),
    description="Keep the matched stop text in the answer. Ignored without `stop` and `stop_token_ids`.",
)
TEMPERATURE = Scalar(
    name="temperature",
    kind=Kind.FLOAT,
    default=1.0,
    minimum=0.0,
    maximum=FLOAT32_MAX,
    range_text="Parameter temperature must be in (0.0,3.40282e+38], got {value}.",
    description="Randomness of sampling; 0 always takes the best token. Values below 0.001 are not advised.",
    example=0.7,
)
TOP_K = Scalar(
    name="top_k",
    kind=Kind.INTEGER,
    minimum=1,
    maximum=INT32_MAX,
    also_valid=-1,
    range_text="Parameter top_k must be in -1 || (0,2147483647], got {value}",
    description="Sample among the k best tokens; -1: off. Default: the model's own, else 1000.",
    example=20,
)
TOP_P = Scalar(
    name="top_p",
    kind=Kind.FLOAT,
    default=1.0,
    minimum=1e-6,
    is_minimum_excluded=True,
    maximum=1.0,
    range_text="Parameter top_p must be in (0.0,1.0], got {value}.",
    description="Sample among the best tokens whose probabilities reach this sum.",
    example=0.95,
)
SEED = Scalar(
    name="seed",
    kind=Kind.UNSIGNED,
    minimum=0,
    maximum=UINT64_MAX,
    range_text="Parameter seed must be in [0, 18446744073709551615], got {value}.",
    description="The same seed gives the same answer. Default: fresh entropy.",
    example=42,
)
REPETITION_PENALTY = Scalar(
    name="repetition_penalty",
    kind=Kind.FLOAT,
    default=1.0,
    minimum=0.0,
    is_minimum_excluded=True,
    maximum=2.0,
    range_text="Parameter 'repetition_penalty' must be in (0.0, 2], got {value}.",
    description="Divides the scores of tokens that the prompt or the answer holds already; 1 changes nothing.",
    example=1.1,
)
FREQUENCY_PENALTY = Scalar(
    name="frequency_penalty",
    kind=Kind.FLOAT,
    default=0.0,
    minimum=-2.0,
    maximum=2.0,
    range_text="Parameter frequency_penalty should be in [-2.0, 2.0], got {value}.",
    description="Lowers a token's score by this much for each time the answer holds it.",
    example=0.5,
)
PRESENCE_PENALTY = Scalar(
    name="presence_penalty",
    kind=Kind.FLOAT,
    default=0.0,
    minimum=-2.0,
    maximum=2.0,
    range_text="Parameter presence_penalty not in [-2.0, 2.0], but got {value}.",
    description="Lowers a token's score by this much once the answer holds it.",
    example=0.5,
)
SKIP_SPECIAL_TOKENS = Scalar(
    name="skip_special_tokens",
    kind=Kind.BOOLEAN,
    default=True,
    description="Leave special tokens out of the answer's text.",
)
BEST_OF = Scalar(
    name="best_of",
    kind=Kind.UNSIGNED,
    default=1,
    minimum=1,
    maximum=MAX_SEQUENCES,
    range_text="Parameter [best_of] should be in [1, 128], got {value}.",
    any_value_beside="use_beam_search",
    description="Number of answers to generate and return; at least `n`, and equal to it in a stream. "
    "More than 1 needs a temperature above 0.",
)
N = Scalar(
    name="n",
    kind=Kind.UNSIGNED,
    default=1,
    minimum=1,
    maximum=MAX_SEQUENCES,
    range_text="Parameter [n] should be in [1, 128], got {value}.",
    description="Number of answers. More than 1 needs a temperature above 0, or beam search.",
)
USE_BEAM_SEARCH = Scalar(
    name="use_beam_search",
    kind=Kind.BOOLEAN,
    default=False,
    description="Search for the `n` most probable answers instead of sampling. Not together with stop words, "
    "function calls or `response_format`.",
)
LOGPROBS = Scalar(
    name="logprobs",
    kind=Kind.BOOLEAN,
    default=False,
    description="Return the log-probability of each token. Not together with function calls.",
)
TOP_LOGPROBS = Scalar(
    name="top_logprobs",
    kind=Kind.UNSIGNED,
    default=0,
    minimum=0,
    maximum=MAX_TOP_LOGPROBS,
    range_text="Parameter top logprobs must be in [0, 20], got {value}.",
    description="Number of candidates shown with each token; turns `logprobs` on where that is left out.",
    example=5,
)
MAX_TOKENS = Scalar(
    name="max_tokens",
    kind=Kind.INTEGER,
    minimum=1,
    maximum=INT32_MAX,
    type_text="Parameter {name} not number_integer",
    range_text="Parameter max_tokens must be (0,2147483647], got {value}",
    description="Most tokens of one answer; the server's `maxIterTimes` is the default and the upper bound.",
    example=256,
)
STREAM = Scalar(
    name="stream",
    kind=Kind.BOOLEAN,
    default=False,
    description="Answer piece by piece, as server-sent events.",
)
MAX_COMPLETION_TOKENS = replace(
    MAX_TOKENS,
    name="max_completion_tokens",
    range_text="Parameter max_completion_tokens must be (0,2147483647], got {value}",
    description="Another name of `max_tokens`; where both are given this one counts.",
)
NATIVE_STOP = replace(STOP, max_chars=1024, max_items=1024)
NATIVE_TEMPERATURE = replace(
    TEMPERATURE, maximum=2.0, range_text="Parameter temperature must be in (0.0,2], got {value}."
)
NATIVE_TOP_K = replace(TOP_K, minimum=0, also_valid=None, description="Sample among the k best tokens; 0: off.")

VLLM_FIELDS: tuple[Field, ...] = (
    IGNORE_EOS,
    STOP,
    STOP_TOKEN_IDS,
    INCLUDE_STOP,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    SEED,
    REPETITION_PENALTY,
    FREQUENCY_PENALTY,
    PRESENCE_PENALTY,
    SKIP_SPECIAL_TOKENS,
    BEST_OF,
    N,
    USE_BEAM_SEARCH,
    LOGPROBS,
    TOP_LOGPROBS,
    MAX_TOKENS,
    STREAM,
)
_IN_NATIVE_MODE: dict[Field, Field] = {STOP: NATIVE_STOP, TEMPERATURE: NATIVE_TEMPERATURE, TOP_K: NATIVE_TOP_K}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRules:
    """What one API mode asks that the other does not."""

    fields: tuple[Field, ...]
    unknown_model_text: str
    reads_stream_options: bool


MODE_RULES = MappingProxyType(
    {
        ApiMode.VLLM: ModeRules(fields=VLLM_FIELDS, unknown_model_text="Model not found", reads_stream_options=False),
        ApiMode.NATIVE: ModeRules(
            fields=(*(_IN_NATIVE_MODE.get(field, field) for field in VLLM_FIELDS), MAX_COMPLETION_TOKENS),
            unknown_model_text="Got model {model}, but not found in server",
            reads_stream_options=True,
        ),
    }
)
