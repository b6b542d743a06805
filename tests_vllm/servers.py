"""Whole servers over vLLM, and over the native engine beside it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.e2e.servers import settings

from mindserve.settings.values import EngineKind, EngineSettings, Precision, Settings
from tests_vllm.engines import EAGER


def server_settings(model: Path, *, cache_bytes: int = 1 << 26, **values: Any) -> Settings:
    """float32, eager, on a free port."""
    engine = EngineSettings(kind=EngineKind.VLLM, precision=Precision.F32, cache_bytes=cache_bytes, vllm=EAGER)
    return settings(engine, path=model, **values)


def native_settings(model: Path, prepared: Path, **values: Any) -> Settings:
    """The same weights in the embedded engine, computed in float32 too."""
    asked = server_settings(model, **values)
    engine = EngineSettings(precision=Precision.F32, cache_bytes=1 << 28, prepared_dir=prepared)
    return replace(asked, engine=engine)
