"""Rewrites a GGUF file with its Q4_1 matrices as Q4_0, the format that llama.cpp is fastest with on CPUs.

usage: python -m bench.rivals.requantise SOURCE.gguf TARGET.gguf
"""

import sys
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

NOT_COPIED = {"general.architecture", "general.file_type"}
"""Set by the writer; the rest goes over as it is."""


def requantise(source: Path, target: Path) -> None:
    """Everything but Q4_1 tensors is copied. The file gets its name when it is whole."""
    reader = GGUFReader(source)
    part = target.with_suffix(".part")
    writer = GGUFWriter(part, str(reader.fields["general.architecture"].contents()))
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_0)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in NOT_COPIED:
            copy_field(writer, key, field)
    for tensor in reader.tensors:
        add_tensor(writer, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(target)


def copy_field(writer: GGUFWriter, key: str, field: Any) -> None:
    is_array = field.types[0] == GGUFValueType.ARRAY
    writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if is_array else None)


def add_tensor(writer: GGUFWriter, tensor: Any) -> None:
    if tensor.tensor_type == GGMLQuantizationType.Q4_1:
        values = dequantize(tensor.data, tensor.tensor_type)
        quantised = quantize(values, GGMLQuantizationType.Q4_0)
        writer.add_tensor(tensor.name, quantised, raw_dtype=GGMLQuantizationType.Q4_0)
    else:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)


if __name__ == "__main__":
    requantise(Path(sys.argv[1]), Path(sys.argv[2]))
