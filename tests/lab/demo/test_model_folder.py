"""A model's folder is written whole, once, and its files are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from autellix_backend.engines.base import StateFolderError
from autellix_lab.demo.model_folder import MARKER, ModelFolderError, build_once

IDENTITY = {"model": "a-model", "version": 1}


def write(folder: Path) -> None:
    (folder / "weights").write_bytes(b"1 2 3")


def write_again(folder: Path) -> None:
    raise AssertionError("it was there")


def test_a_folder_that_was_written_is_kept(tmp_path: Path) -> None:
    folder = build_once(tmp_path / "model", IDENTITY, write)
    assert sorted(path.name for path in folder.iterdir()) == [MARKER, "weights"]
    assert (folder.stat().st_mode & 0o777, (folder / "weights").stat().st_mode & 0o777) == (0o755, 0o644)
    assert build_once(folder, IDENTITY, write_again) == folder


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """The next start writes it."""

    def fail(folder: Path) -> None:
        write(folder)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        build_once(tmp_path / "model", IDENTITY, fail)
    assert list(tmp_path.iterdir()) == []
    build_once(tmp_path / "model", IDENTITY, write)


def test_a_folder_that_cannot_be_made_is_named_with_the_remedy() -> None:
    """As in a container whose home is no folder of the user's."""
    with pytest.raises(
        StateFolderError, match=r"/proc/nobody cannot be written \(.+\); .* AUTELLIX_CACHE_DIR"
    ):
        build_once(Path("/proc/nobody/model"), IDENTITY, write_again)


def test_another_process_may_write_it_meanwhile(tmp_path: Path) -> None:
    def write_both(folder: Path) -> None:
        write(folder)
        build_once(tmp_path / "model", IDENTITY, write)

    assert build_once(tmp_path / "model", IDENTITY, write_both) == tmp_path / "model"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("content", [b"1 2 4", None])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    """One that is cut off or changed would make an engine that answers noise."""
    folder = build_once(tmp_path / "model", IDENTITY, write)
    (folder / "weights").unlink()
    if content is not None:
        (folder / "weights").write_bytes(content)
    with pytest.raises(ModelFolderError, match=r"a-model: .*/model is damaged: weights .* deleted"):
        build_once(folder, IDENTITY, write_again)


@pytest.mark.parametrize("marker", ["", "[]", "{}", '{"model": "a-model", "version": 0, "sha256": {}}'])
def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, marker: str) -> None:
    """A folder that holds something else, or another version, is refused."""
    (tmp_path / MARKER).write_text(marker)
    with pytest.raises(ModelFolderError, match="is not empty and holds no a-model of this version"):
        build_once(tmp_path, IDENTITY, write_again)
    assert [path.name for path in tmp_path.iterdir()] == [MARKER]
