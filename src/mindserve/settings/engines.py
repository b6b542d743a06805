"""Which engine a config.json asks for, how many of them, and how vLLM spreads one over devices."""

from pathlib import Path

from mindserve.settings.keys import Section, shown
from mindserve.settings.table import MAX_DEVICES
from mindserve.settings.values import CachePrecision, EngineKind, EngineSettings, ParallelSettings, Precision

GIB = 1024**3
VLLM = "vllm"
NATIVE_NAMES = ("", "mindserve_native", "mindieservice_llm_engine")
"""No name, our own, and the one in every MindIE file."""


def engine_kind(backend: Section, model: Section) -> EngineKind:
    """`backendName`, unless the model is a mock. Unknown names mean the native engine (`name_warning`)."""
    if model.text("modelInstanceType") == "StandardMock":
        return EngineKind.SCRIPTED
    return EngineKind.VLLM if backend.text("backendName") == VLLM else EngineKind.NATIVE


def name_warning(backend: Section, kind: EngineKind) -> str | None:
    """What the operator should hear where the native engine stands in for one of another name."""
    name = backend.text("backendName")
    if kind is not EngineKind.NATIVE or name == VLLM or name in NATIVE_NAMES:
        return None
    path = backend.path_of("backendName")
    return f"{path} {shown(name)} is no engine of this server (mindserve_native, vllm): the native one answers."


def read_engine(kind: EngineKind, *, backend: Section, model: Section, own: Section, home: Path) -> EngineSettings:
    """The engine's settings. Raises ConfigError where vLLM could not be spread as the file says."""
    npu_gb = model.integer("npuMemSize")
    cache_gb = own.number("cacheSizeGb") if own.gives("cacheSizeGb") else max(npu_gb, 0)
    return EngineSettings(
        kind=kind,
        precision=Precision(own.text("precision")),
        cache_precision=CachePrecision(own.text("cachePrecision")),
        threads=own.integer("threads"),
        cache_bytes=int(cache_gb * GIB),
        prepared_dir=home / own.text("preparedDir") if own.gives("preparedDir") else None,
        script=home / own.text("script") if own.gives("script") else None,
        instances=backend.integer("modelInstanceNumber"),
        parallel=_parallel(backend, model) if kind is EngineKind.VLLM else ParallelSettings(),
        vllm=own.members("vllm"),
    )


def _parallel(backend: Section, model: Section) -> ParallelSettings:
    """What is not given follows from `worldSize`, which counts the devices of one engine."""
    tensor, pipeline, data = _size(model, "tp"), _size(model, "pp") or 1, _size(model, "dp") or 1
    spans_nodes = backend.flag("multiNodesInferEnabled")
    if not model.gives("worldSize"):
        return ParallelSettings(tensor=tensor or 1, pipeline=pipeline, data=data, spans_nodes=spans_nodes)
    world = model.integer("worldSize")
    if tensor is None and world % (pipeline * data):
        raise model.refuse("worldSize", f"must be a multiple of pp times dp ({pipeline * data})")
    tensor = tensor or world // (pipeline * data)
    if tensor * pipeline * data != world:
        raise model.refuse("worldSize", f"must be tp times pp times dp ({tensor * pipeline * data})")
    return ParallelSettings(tensor=tensor, pipeline=pipeline, data=data, spans_nodes=spans_nodes)


def _size(model: Section, name: str) -> int | None:
    """None: not given, or -1, which MindIE writes for it."""
    value = model.value(name)
    if value is None or value == -1:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DEVICES:
        raise model.refuse(name, f"must be an integer in [1, {MAX_DEVICES}], or -1")
    return value
