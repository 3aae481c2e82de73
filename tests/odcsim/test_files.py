"""Files: read with errors that name them, written whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from odcsim.errors import InputError
from odcsim.files import read_text, require_output_folder, write_atomically, write_together


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_text_is_read_as_utf8(tmp_path):
    path = tmp_path / "a"
    path.write_bytes("5 µs\r\n".encode())
    assert read_text(path, what="thing") == "5 µs\n"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda _: None, "no such file; give the path of a thing"),
        (lambda path: path.mkdir(), "is a folder; give the path of a thing"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is not UTF-8 text; give the path of a thing"),
        (
            lambda path: path.symlink_to(path),
            "cannot be read (Too many levels of symbolic links); give the path of a thing",
        ),
    ],
    ids=["missing", "folder", "not utf-8", "loop"],
)
def test_what_cannot_be_read_is_named(tmp_path, make, problem):
    path = tmp_path / "a"
    make(path)
    with pytest.raises(InputError) as caught:
        read_text(path, what="thing", key="the.key")
    assert str(caught.value) == f"{path}: the.key: {problem}"


def test_a_file_below_a_file_cannot_be_read(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(InputError, match=r"a/b: cannot be read \(Not a directory\); give the path of a thing"):
        read_text(tmp_path / "a" / "b", what="thing")


def test_written_whole_in_folders_made_for_it(tmp_path):
    path = tmp_path / "new" / "folder" / "a.json"
    write_atomically(path, "5 µs\n")
    assert path.read_bytes() == "5 µs\n".encode()
    write_atomically(path, "6")
    assert contents(tmp_path) == {"new/folder/a.json": "6"}


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_others_may_read_what_the_umask_allows(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "a", "x")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, error):
    path = tmp_path / "a"
    path.write_text("old")

    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("odcsim.files.os.fdopen", fail)
    with pytest.raises((InputError, KeyboardInterrupt)) as caught:
        write_atomically(path, "new")
    if isinstance(error, OSError):
        assert str(caught.value) == f"{path}: cannot write here (No space left on device)"
    assert contents(tmp_path) == {"a": "old"}


def test_text_that_utf8_cannot_hold_leaves_nothing(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "a", "\ud800")
    assert contents(tmp_path) == {}


def test_several_files_change_together_or_not_at_all(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    write_together({first: "1", second: "2"})
    assert contents(tmp_path) == {"a": "1", "b": "2"}
    with pytest.raises(UnicodeEncodeError):
        write_together({first: "3", second: "\ud800"})
    assert contents(tmp_path) == {"a": "1", "b": "2"}


def test_a_folder_in_the_place_of_one_file_stops_all(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="b: is a folder; a file is to be written here"):
        write_together({tmp_path / "a": "1", tmp_path / "b": "2"})
    assert contents(tmp_path) == {}


def test_a_file_in_the_place_of_a_folder(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(InputError, match=r"a/b: cannot write here \(File exists\)"):
        write_atomically(tmp_path / "a" / "b", "new")
    assert contents(tmp_path) == {"a": "old"}


def test_an_output_folder_may_be_missing_and_is_not_made_early(tmp_path):
    require_output_folder(tmp_path, key="--out")
    require_output_folder(tmp_path / "new" / "folder", key="--out")
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    require_output_folder(tmp_path.__class__("new"), key="--out")


@pytest.mark.parametrize("below", ["", "sub", "sub/sub"])
def test_an_output_folder_is_no_file(tmp_path, below):
    (tmp_path / "a").write_text("")
    folder = tmp_path / "a" / below
    with pytest.raises(InputError) as caught:
        require_output_folder(folder, key="--out")
    what = f"{tmp_path / 'a'} is no folder" if below else "is no folder"
    assert str(caught.value) == f"--out: '{folder}': {what}; allowed: a folder, which is made if missing"


def test_an_output_folder_can_be_written_to(tmp_path, monkeypatch):
    # Whoever runs the tests may be allowed everything.
    monkeypatch.setattr("odcsim.files.os.access", lambda path, _: path != tmp_path)
    with pytest.raises(InputError) as caught:
        require_output_folder(tmp_path / "new", key="--out")
    assert str(caught.value) == f"--out: '{tmp_path / 'new'}': cannot write to {tmp_path}"
