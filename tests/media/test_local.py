import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindserve.errors import InvalidRequest
from mindserve.media import local
from mindserve.media.local import open_local
from tests.media.descriptors import open_files

NOT_ALLOWED = "Your input local file path is not allowed!please ensure your multimedia files are placed under"
IS_LINK = "The path should not be a symbolic link file."
NOT_FOUND = "Can not find the input media file."
NOT_A_FILE = "The input media file is not a regular file."


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "media"
    (directory / "deep" / "er").mkdir(parents=True)
    (directory / "a.png").write_bytes(b"inside")
    (directory / "deep" / "er" / "b.png").write_bytes(b"deep")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "media_evil").mkdir()
    (tmp_path / "media_evil" / "x.png").write_bytes(b"evil")
    return directory


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() == before


def read(path: str, root: Path) -> bytes:
    with open_local(path, root) as file:
        return file.read()


def refusal(path: str, root: Path) -> str:
    with pytest.raises(InvalidRequest) as caught:
        open_local(path, root)
    assert str(root.parent) not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("a.png", b"inside"),
        ("./a.png", b"inside"),
        ("deep/er/b.png", b"deep"),
        ("deep/../a.png", b"inside"),
        ("{root}/a.png", b"inside"),
        ("{root}/deep//er/./b.png", b"deep"),
        ("{root}/../media/a.png", b"inside"),
    ],
)
def test_inside(path: str, content: bytes, root: Path) -> None:
    assert read(path.format(root=root), root) == content


@pytest.mark.parametrize(
    "path",
    [
        "../secret.png",
        "deep/../../secret.png",
        "..",
        "../media_evil/x.png",
        "{root}/../secret.png",
        "{root}_evil/x.png",
        "{root}/deep/../../secret.png",
        "/etc/passwd",
        "//etc/passwd",
        "/proc/self/environ",
        "/dev/zero",
        "/",
        "{root}",
    ],
)
def test_outside(path: str, root: Path) -> None:
    assert NOT_ALLOWED in refusal(path.format(root=root), root)


@pytest.mark.parametrize("path", ["absent.png", "deep/absent.png", "a.png/b.png", "absent/a.png"])
def test_absent(path: str, root: Path) -> None:
    assert refusal(path, root) == NOT_FOUND


@pytest.mark.parametrize(
    "target", ["../secret.png", "/etc/passwd", "/proc/self/environ", "/dev/zero", "../media_evil/x.png"]
)
def test_links_that_leave(target: str, root: Path) -> None:
    (root / "link.png").symlink_to(target)
    (root / "chain.png").symlink_to("link.png")
    assert refusal("link.png", root) == IS_LINK
    assert refusal("chain.png", root) == IS_LINK


def test_linked_directories_that_leave(root: Path) -> None:
    (root / "out").symlink_to("..")
    (root / "fd").symlink_to("/proc/self/fd")
    assert refusal("out/secret.png", root) == IS_LINK
    assert refusal("fd/0", root) in (IS_LINK, NOT_FOUND)


def test_links_that_stay(root: Path) -> None:
    (root / "link.png").symlink_to("a.png")
    (root / "absolute.png").symlink_to(root / "deep" / "er" / "b.png")
    (root / "dir").symlink_to("deep")
    assert read("link.png", root) == b"inside"
    assert read("absolute.png", root) == b"deep"
    assert read("dir/er/b.png", root) == b"deep"


def test_links_in_a_circle(root: Path) -> None:
    (root / "loop.png").symlink_to("loop.png")
    assert refusal("loop.png", root) == NOT_FOUND


def test_linked_media_directory(root: Path, tmp_path: Path) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to(root)
    assert read("a.png", alias) == b"inside"
    assert read(f"{alias}/a.png", alias) == b"inside"
    assert read(f"{root}/a.png", alias) == b"inside"
    assert NOT_ALLOWED in refusal("../secret.png", alias)


def test_what_is_no_file(root: Path) -> None:
    """A pipe without a writer must not block either."""
    os.mkfifo(root / "pipe.png")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "s.png"))
        assert refusal("pipe.png", root) == NOT_A_FILE
        assert refusal("deep", root) == NOT_A_FILE
        assert refusal("s.png", root) in (NOT_FOUND, NOT_A_FILE)
    assert refusal(".", root) == NOT_A_FILE


def test_devices() -> None:
    assert refusal("null", Path("/dev")) == NOT_A_FILE
    assert refusal("zero", Path("/dev")) == NOT_A_FILE


def test_missing_media_directory(tmp_path: Path) -> None:
    assert refusal("a.png", tmp_path / "absent") == NOT_FOUND


def test_name_that_is_too_long(root: Path) -> None:
    assert refusal("a" * 300 + ".png", root) == NOT_FOUND
    assert refusal("a/" * 2500 + "a.png", root) == NOT_FOUND


@pytest.mark.parametrize("swapped", ["deep", "deep/er", "deep/er/b.png"])
def test_swapped_for_a_link_after_the_check(root: Path, swapped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between resolving and opening somebody puts a link out of the directory in the path's way."""
    outside = root.parent / "outside"
    (outside / "er").mkdir(parents=True)
    for secret in (outside / "b.png", outside / "er" / "b.png"):
        secret.write_bytes(b"secret")
    resolve = local._resolve

    def resolve_then_swap(relative: str, real_root: str) -> str:
        resolved = resolve(relative, real_root)
        (root / swapped).rename(root.parent / "moved")
        target = {"deep": outside, "deep/er": outside, "deep/er/b.png": outside / "b.png"}[swapped]
        (root / swapped).symlink_to(target)
        return resolved

    monkeypatch.setattr(local, "_resolve", resolve_then_swap)
    assert refusal("deep/er/b.png", root) == NOT_FOUND


def test_permissions_only_warn(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    (root / "a.png").chmod(0o644)
    read("a.png", root)
    assert not caplog.records
    (root / "a.png").chmod(0o666)
    assert read("a.png", root) == b"inside"
    assert "666" in caplog.text
