"""Compares tokenizers of whole vocabularies, which are too large to keep here, with references; run by hand.

    python -m tests.text.compare_vocabularies PATH...

A path is a GGUF file with `PATH.inp` and `PATH.out` beside it (texts and the ids that they should have, as llama.cpp
keeps them with its vocabularies), or a directory with a tokenizer.json, whose tokenizer must find the same ids as the
library that it is made for, decode them alike, and load in reasonable time.
"""

import random
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer as Library

from mindserve.text.load import load_tokenizer

ALPHABET = "abcXYZ  \n\t\r'sStTllé日本語한국١٢34567890.,!?-_<>|{}[]()🙂\u00a0\u3000ßſﬁ"
SEPARATOR = "\n__ggml_vocab_test__\n"


def random_texts(count: int) -> list[str]:
    """Texts full of the characters that families cut differently."""
    rng = random.Random(1)
    return ["".join(rng.choices(ALPHABET, k=rng.randint(1, 60))) for _ in range(count)]


def compare_gguf(path: Path) -> int:
    """Number of texts whose ids differ from the file beside."""
    tokenizer = load_tokenizer(path)
    texts = Path(f"{path}.inp").read_bytes().decode().split(SEPARATOR)
    lines = Path(f"{path}.out").read_text().split("\n")
    expected = [[int(number) for number in line.split()] for line in lines[: len(texts)]]
    return sum(tokenizer.encode(text) != ids for text, ids in zip(texts, expected, strict=True))


def compare_directory(path: Path) -> int:
    """Number of texts that are encoded or decoded otherwise than by the library."""
    tokenizer, library = load_tokenizer(path), Library.from_file(str(path / "tokenizer.json"))
    wrong = 0
    for text in random_texts(3000):
        ids = library.encode(text, add_special_tokens=False).ids
        text_back = library.decode(ids, skip_special_tokens=False)
        wrong += tokenizer.encode(text) != ids or tokenizer.decode(ids, skip_special_tokens=False) != text_back
    return wrong


def main(paths: list[str]) -> int:
    """Prints one line per path; the status is 1 when anything differs."""
    total = 0
    for path in map(Path, paths):
        start = time.perf_counter()
        size = load_tokenizer(path).vocab_size
        seconds = time.perf_counter() - start
        wrong = compare_directory(path) if path.is_dir() else compare_gguf(path)
        total += wrong
        print(f"{path}: {size} tokens, loaded in {seconds:.2f} s, {wrong} texts differ")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
