"""Prepared models on disk: a second start reads the finished, compressed graph instead of building it.

One directory per model under the cache directory, named by a key of everything that the graph depends on: the source
files (path, size, modification time), the precision, this code and OpenVINO's version. It is written beside its place
and renamed, so concurrent starts and crashes leave whole entries only; a manifest with digests tells damaged ones,
which are built anew. Bounds: `MAX_BYTES` over all entries, the least recently used go first; entries of older versions
of the same model go at once; nothing is stored that would leave less than `MIN_FREE_BYTES` on the disk.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import openvino as ov

from mindserve.engine.native.models.checkpoint import model_files
from mindserve.engine.native.models.config import ModelConfig, for_context
from mindserve.engine.native.models.loader import LoadedModel, Progress, StatefulModel, build_model, paged_model
from mindserve.engine.native.models.towers.build import TowerGraphs
from mindserve.engine.native.models.towers.spec import MediaSpec
from mindserve.settings.values import Precision

MAX_BYTES = 64 << 30
MIN_FREE_BYTES = 2 << 30
STALE_S = 24 * 3600
"""Age at which an unfinished entry counts as left behind by a crash."""

MANIFEST = "manifest.json"
TEXT, VISION, AUDIO = "graph", "vision", "audio"
"""Names of the graphs' files; the towers' are there for models that have them."""
PREFIX, UNFINISHED = "model-", "unfinished-"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is known about a prepared graph without reading it."""

    model: str
    """Path and precision: what entries of other versions have in common with it."""
    digests: dict[str, str]
    """SHA-256 of each file."""
    config: ModelConfig
    windows: tuple[int | None, ...]
    media: MediaSpec | None


def prepare_model(
    path: Path, precision: Precision, *, cache_dir: Path | None, progress: Progress, max_context: int | None = None
) -> LoadedModel:
    """From the cache, or built and stored; `cache_dir` None: built. Raises ModelLoadError. `max_context`: see
    `load_model`.

    A cache that cannot be read or written costs time only.
    """
    if cache_dir is None:
        return paged_model(build_model(path, precision, progress=progress, max_context=max_context))
    entry = cache_dir / f"{PREFIX}{_key(path, precision)}"
    progress("reading prepared model", 0.0)
    model = _read(entry)
    if model is not None and model.config != for_context(model.config, max_context):
        shutil.rmtree(entry, ignore_errors=True)
        model = None
    if model is None:
        built = build_model(path, precision, progress=progress, max_context=max_context)
        progress("storing prepared model", 0.0)
        is_stored = _store(built, entry, label=f"{path.resolve()} {precision}")
        model = (_read(entry) if is_stored else None) or built
    return paged_model(model)


def _key(path: Path, precision: Precision) -> str:
    sources = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in model_files(path)]
    facts = [sources, precision, ov.get_version(), _code_digest()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _code_digest() -> str:
    """Of the modules that build graphs: a new version of them makes new graphs."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _read(entry: Path) -> StatefulModel | None:
    """None for an entry that is missing or damaged; the latter is removed."""
    if not entry.is_dir():
        return None
    try:
        manifest = _read_manifest(entry)
        if manifest.digests != {name: _digest(entry / name) for name in manifest.digests}:
            raise ValueError("its digests differ")
        model = StatefulModel(
            graph=_read_graph(entry, TEXT),
            config=manifest.config,
            windows=manifest.windows,
            towers=None if manifest.media is None else _read_towers(entry, manifest.media),
        )
        os.utime(entry)
    except (OSError, ValueError, RuntimeError, msgspec.MsgspecError) as error:
        log.warning("prepared model %s is damaged and will be built again: %s", entry.name, str(error)[:200])
        shutil.rmtree(entry, ignore_errors=True)
        return None
    return model


def _read_towers(entry: Path, spec: MediaSpec) -> TowerGraphs:
    return TowerGraphs(
        spec=spec,
        vision=None if spec.vision is None else _read_graph(entry, VISION),
        audio=None if spec.audio is None else _read_graph(entry, AUDIO),
    )


def _read_graph(entry: Path, name: str) -> ov.Model:
    return ov.Core().read_model(entry / f"{name}.xml")  # pyright: ignore[reportUnknownMemberType]


def _graphs(model: StatefulModel) -> dict[str, ov.Model]:
    towers = model.towers
    graphs = {TEXT: model.graph, VISION: towers and towers.vision, AUDIO: towers and towers.audio}
    return {name: graph for name, graph in graphs.items() if graph is not None}


def _store(model: StatefulModel, entry: Path, *, label: str) -> bool:
    """Write beside, then rename. False where the disk does not allow it."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        _remove_old(entry, label)
        if shutil.disk_usage(entry.parent).free < sum(map(_graph_bytes, _graphs(model).values())) + MIN_FREE_BYTES:
            log.warning("not enough free space in %s to store the prepared model", entry.parent)
            return False
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=entry.parent) as name:
            _write(model, Path(name) / "entry", label)
            _rename(Path(name) / "entry", entry)
        _bound(entry)
    except (OSError, RuntimeError) as error:
        log.warning("the prepared model could not be stored: %s", str(error)[:200])
        return False
    return True


def _write(model: StatefulModel, directory: Path, label: str) -> None:
    """Graph first, manifest last."""
    directory.mkdir()
    for name, graph in _graphs(model).items():
        ov.save_model(graph, directory / f"{name}.xml", compress_to_fp16=False)
    manifest = Manifest(
        model=label,
        digests={file.name: _digest(file) for file in sorted(directory.iterdir())},
        config=model.config,
        windows=model.windows,
        media=None if model.towers is None else model.towers.spec,
    )
    content = msgspec.json.encode(manifest)
    with open(directory / MANIFEST, "wb") as file:
        file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        file.flush()
        os.fsync(file.fileno())


def _read_manifest(entry: Path) -> Manifest:
    """Its first line is the digest of the rest. Raises OSError, ValueError or MsgspecError."""
    digest, _, content = (entry / MANIFEST).read_bytes().partition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise ValueError("its manifest is damaged")
    return msgspec.json.decode(content, type=Manifest)


def _rename(source: Path, entry: Path) -> None:
    """Another start may have been faster: its entry is as good."""
    try:
        source.rename(entry)
    except OSError:
        if not entry.is_dir():
            raise


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _graph_bytes(graph: ov.Model) -> int:
    constants = [node for node in graph.get_ops() if node.get_type_name() == "Constant"]
    return sum(node.get_output_tensor(0).size for node in constants)


def _remove_old(entry: Path, label: str) -> None:
    """Other versions of the same model, and what crashes left behind."""
    for other in entry.parent.glob(f"{PREFIX}*"):
        if other != entry and _label(other) == label:
            shutil.rmtree(other, ignore_errors=True)
    for unfinished in entry.parent.glob(f"{UNFINISHED}*"):
        if time.time() - unfinished.stat().st_mtime > STALE_S:
            shutil.rmtree(unfinished, ignore_errors=True)


def _label(entry: Path) -> str | None:
    try:
        return _read_manifest(entry).model
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def _bound(newest: Path) -> None:
    """Least recently used first (a use touches the directory)."""
    others = [each for each in newest.parent.glob(f"{PREFIX}*") if each != newest]
    others.sort(key=lambda each: each.stat().st_mtime)
    total = _size(newest) + sum(_size(each) for each in others)
    for each in others:
        if total <= MAX_BYTES:
            return
        total -= _size(each)
        shutil.rmtree(each, ignore_errors=True)


def _size(entry: Path) -> int:
    return sum(file.stat().st_size for file in entry.iterdir())
