"""The whole decoder as a stateful graph, before the paged transformation."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import openvino as ov

from mindserve.engine.native.models import ops, rope
from mindserve.engine.native.models.config import RopeKind, RopeScaling
from mindserve.engine.native.models.layers import Context, Rotation, decoder_layer, final_norm
from mindserve.engine.native.models.ops import Value
from mindserve.engine.native.models.spec import DecoderSpec
from mindserve.engine.native.models.weights import Weights


def build_decoder(spec: DecoderSpec, weights: Weights, on_layer: Callable[[int], None]) -> ov.Model:
    """Inputs `input_ids`, `attention_mask`, `position_ids` `[batch, tokens]`, `beam_idx` `[batch]`, `sample_rows` `[R]`
    (indices into the flattened tokens); output `logits` `[R, vocab_size]`.

    With media also `embeddings` `[T, hidden_size]` and `is_embedded` `[T]`, which of them replace the tokens' own, and
    with a rotary grid `rotary_positions` `[3, T]`, all over the flattened tokens.
    """
    inputs = {name: ops.parameter(name, [-1, -1], np.int64) for name in ("input_ids", "attention_mask", "position_ids")}
    inputs["beam_idx"] = ops.parameter("beam_idx", [-1], np.int32)
    inputs["sample_rows"] = ops.parameter("sample_rows", [-1], np.int64)
    inputs |= _media_inputs(spec)
    values = {name: node.output(0) for name, node in inputs.items()}
    mask = ops.unsqueeze(ops.unsqueeze(ops.to_float(values["attention_mask"]), 1), 1)
    context = Context(
        spec=spec, weights=weights, rotations=_rotations(values, spec, weights), mask=mask, beams=values["beam_idx"]
    )
    table = weights.vocabulary_matrix("model.embed_tokens.weight", spec.config.vocab_size, spec.config.hidden_size)
    x = _embedded(table, values, spec)
    for index in range(spec.config.num_layers):
        x = decoder_layer(x, index, context)
        on_layer(index)
    sampled = ops.gather_rows(ops.reshape(x, [-1, spec.config.hidden_size]), values["sample_rows"])
    logits = ops.linear(final_norm(sampled, context), _output_head(table, spec, weights), name="lm_head")
    if spec.logit_softcap is not None:
        logits = ops.softcapped(logits, spec.logit_softcap)
    return ops.model([ops.result(logits, "logits")], context.sinks, list(inputs.values()), spec.config.model_type)


def _media_inputs(spec: DecoderSpec) -> dict[str, ov.Node]:
    inputs: dict[str, ov.Node] = {}
    if spec.takes_embeddings:
        inputs["embeddings"] = ops.parameter("embeddings", [-1, spec.config.hidden_size], np.float32)
        inputs["is_embedded"] = ops.parameter("is_embedded", [-1], np.bool_)
    if spec.rotary_sections:
        inputs["rotary_positions"] = ops.parameter("rotary_positions", [3, -1], np.int64)
    return inputs


def _embedded(table: Value, values: Mapping[str, Value], spec: DecoderSpec) -> Value:
    x = ops.gather_rows(table, values["input_ids"])
    if spec.embedding_scale != 1.0:
        x = ops.multiply(x, ops.floats(spec.embedding_scale))
    if not spec.takes_embeddings:
        return x
    rows = ops.reshape(x, [-1, spec.config.hidden_size])
    chosen = ops.choose(ops.unsqueeze(values["is_embedded"], 1), values["embeddings"], rows)
    return ops.reshape_like(chosen, x)


def _output_head(table: Value, spec: DecoderSpec, weights: Weights) -> Value:
    """The embedding itself when the two are tied: stored once."""
    if spec.config.ties_embeddings:
        return table
    return weights.vocabulary_matrix("lm_head.weight", spec.config.vocab_size, spec.config.hidden_size)


def _rotations(values: Mapping[str, Value], spec: DecoderSpec, weights: Weights) -> list[Rotation]:
    """Of each layer: all share one, or those with a window have another."""
    usual = _rotation(values, spec, weights)
    if spec.windowed_rope_theta is None:
        return [usual] * spec.config.num_layers
    config = replace(spec.config, rope_theta=spec.windowed_rope_theta, rope=RopeScaling())
    windowed = _rotation(values, replace(spec, config=config), weights)
    return [usual if window is None else windowed for window in spec.windows]


def _rotation(values: Mapping[str, Value], spec: DecoderSpec, weights: Weights) -> Rotation:
    config = spec.config
    name = _frequency_divisors(config.rope)
    divisors = weights.numbers(name, config.rotary_dim // 2) if name in weights else None
    per_position = ops.floats(rope.frequencies(config, divisors)[None, None])
    half = ops.multiply(_turning_positions(values, spec), per_position)
    cos, sin = ops.cos_sin(ops.concat([half, half], -1))
    magnitude = rope.magnitude(config)
    if magnitude != 1.0:
        half_rotary, half_still = config.rotary_dim // 2, (config.head_dim - config.rotary_dim) // 2
        scale = ops.floats(([magnitude] * half_rotary + [1.0] * half_still) * 2)
        cos, sin = ops.multiply(cos, scale), ops.multiply(sin, scale)
    return Rotation(cos=ops.unsqueeze(cos, 1), sin=ops.unsqueeze(sin, 1))


def _frequency_divisors(scaling: RopeScaling) -> str:
    """The tensor in which GGUF files keep the scaling of rotary frequencies (llama3, longrope)."""
    if scaling.kind is not RopeKind.LONGROPE:
        return "rope_freqs.weight"
    return f"rope_factors_{'long' if scaling.is_beyond_original else 'short'}.weight"


def _turning_positions(values: Mapping[str, Value], spec: DecoderSpec) -> Value:
    """What the frequencies are multiplied by: `[batch, tokens, 1]`, or one number for each rotating pair."""
    if not spec.rotary_sections:
        return ops.unsqueeze(ops.to_float(values["position_ids"]), 2)
    coordinate = np.repeat(np.arange(len(spec.rotary_sections)), spec.rotary_sections)
    per_pair = ops.transpose(ops.gather_rows(ops.to_float(values["rotary_positions"]), ops.ints(coordinate)), [1, 0])
    shape = ops.concat([ops.sizes(values["input_ids"], [0, 1]), ops.ints([len(coordinate)])], 0)
    return ops.reshape_to(per_pair, shape)
