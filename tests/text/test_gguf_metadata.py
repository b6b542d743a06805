import struct
from pathlib import Path

import gguf
import pytest

from mindserve.errors import ModelLoadError
from mindserve.text.gguf_metadata import read_metadata


def written(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("tokenizer.text", "grüße")
    writer.add_bool("tokenizer.flag", True)
    writer.add_uint32("tokenizer.number", 7)
    writer.add_float32("tokenizer.real", 0.5)
    writer.add_array("tokenizer.texts", ["a", "", "ß"])
    writer.add_array("tokenizer.numbers", [1, -2, 3])
    writer.add_string("other.key", "x")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_reads_all_kinds_of_values(tmp_path: Path) -> None:
    assert read_metadata(written(tmp_path / "a.gguf"), prefix="tokenizer.") == {
        "tokenizer.text": "grüße",
        "tokenizer.flag": True,
        "tokenizer.number": 7,
        "tokenizer.real": 0.5,
        "tokenizer.texts": ["a", "", "ß"],
        "tokenizer.numbers": [1, -2, 3],
    }


def test_without_prefix_reads_everything(tmp_path: Path) -> None:
    assert read_metadata(written(tmp_path / "a.gguf"))["other.key"] == "x"


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    data = written(tmp_path / "a.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in range(0, len(data) - 1, 7):
        cut.write_bytes(data[:size])
        with pytest.raises(ModelLoadError):
            read_metadata(cut)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"GGML" + struct.pack("<IQQ", 3, 0, 0), "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), "metadata pairs"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60), "ends too early"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99), "value type 99"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 1 << 50), "elements"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 9, 1) + bytes(16), "value type 9"),
    ],
)
def test_hostile_heads_are_errors_that_name_the_reason(tmp_path: Path, head: bytes, reason: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(head)
    with pytest.raises(ModelLoadError, match=reason):
        read_metadata(path)
