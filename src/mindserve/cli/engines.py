"""Which engine the settings ask for: one in this process, or replicas on a Ray cluster."""

from mindserve.cli.operator import Report
from mindserve.engine.base import Engine
from mindserve.engine.scripted import Script, ScriptedEngine, load_script
from mindserve.engine.supervised import SupervisedEngine
from mindserve.errors import ModelLoadError
from mindserve.settings.values import EngineKind, Settings
from mindserve.text.bytes_tokenizer import ByteTokenizer


def build_engine(settings: Settings, report: Report) -> Engine:
    """What the server runs on, not started: replicas, or one engine that is replaced when it dies.

    Raises ModelLoadError, ConfigError.
    """
    if settings.engine.instances > 1:
        from mindserve.engine.replicas import ReplicaEngine  # noqa: PLC0415 - few servers have replicas

        return ReplicaEngine(settings, make=make_engine)
    if settings.engine.kind is EngineKind.SCRIPTED:
        return make_engine(settings)
    return SupervisedEngine(lambda: make_engine(settings, report))


def make_engine(settings: Settings, report: Report | None = None) -> Engine:
    """One engine for this process, not started. Replicas call it on their nodes. Raises ModelLoadError, ConfigError."""
    if settings.engine.kind is EngineKind.SCRIPTED:
        return _scripted(settings)
    if settings.engine.kind is EngineKind.VLLM:
        from mindserve.engine.vllm.engine import VllmEngine  # noqa: PLC0415

        return VllmEngine(settings)
    # The native engine's kernels take seconds to import; commands that load no model do not pay for it.
    from mindserve.engine.native.engine import NativeEngine  # noqa: PLC0415
    from mindserve.engine.native.load import load_runner  # noqa: PLC0415

    progress = report or _silent
    return NativeEngine(settings, load=lambda given: load_runner(given, progress=progress))


def _scripted(settings: Settings) -> ScriptedEngine:
    """Works without any file: every byte is a token."""
    tokenizer = ByteTokenizer()
    script = load_script(settings.engine.script) if settings.engine.script else Script()
    eos = tokenizer.token_id("<|im_end|>")
    if eos is None:
        raise ModelLoadError("The scripted engine needs a tokenizer with <|im_end|>.")
    return ScriptedEngine(script, codec=tokenizer, eos_token_id=eos)


def _silent(what: str, share: float) -> None:
    """Nobody watches the progress."""
