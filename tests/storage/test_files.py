"""Files appear whole or not at all."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from dp_forward.errors import InvalidInput
from dp_forward.storage.digests import bytes_digest, file_digest, settings_digest
from dp_forward.storage.files import draft_of, lock_folder, make_secret, read_secret, write_file
from dp_forward.storage.json_files import read_json, write_json


def test_an_error_leaves_the_older_file_and_no_draft(tmp_path: Path) -> None:
    place = tmp_path / "result.json"
    write_file(place, "old")

    def fails() -> None:
        with draft_of(place) as draft:
            draft.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert place.read_text() == "old"
    assert list(tmp_path.iterdir()) == [place]


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append("sync"), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("rename"), rename(a, b)))
    write_file(tmp_path / "x", b"content")
    assert "sync" in done[: done.index("rename")]
    assert done[-1] == "sync"  # the folder


def test_a_new_file_never_takes_the_place_of_another(tmp_path: Path) -> None:
    write_file(tmp_path / "x", b"first", private=True, new=True)
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "x", b"second", private=True, new=True)
    assert (tmp_path / "x").read_bytes() == b"first"
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600


def test_a_secret_that_others_may_read_or_of_another_size_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "secret"
    make_secret(place)
    assert len(read_secret(place, remedy="Bring it back.")) == 32
    place.chmod(0o644)
    with pytest.raises(InvalidInput, match="owner"):
        read_secret(place, remedy="Bring it back.")
    place.chmod(0o600)
    place.write_bytes(b"short")
    with pytest.raises(InvalidInput, match="32 bytes"):
        read_secret(place, remedy="Bring it back.")
    with pytest.raises(InvalidInput, match="Bring it back"):
        read_secret(tmp_path / "none", remedy="Bring it back.")


def test_digests_of_bytes_files_and_settings_agree(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert bytes_digest(b"abc") == file_digest(tmp_path / "x") == known
    assert settings_digest({"a": 1, "b": 2}) == settings_digest({"b": 2, "a": 1}) != settings_digest({"a": 1})


@pytest.mark.parametrize("content", ["{", "[1]", "\x00", None])
def test_what_is_no_json_object_is_refused_without_its_content(tmp_path: Path, content: str | None) -> None:
    place = tmp_path / "plan.json"
    if content is not None:
        place.write_text(content)
    with pytest.raises(InvalidInput, match=r"hold a readable plan\.json"):
        read_json(place, name="run", remedy="Get it again.")


def test_json_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_json(tmp_path / "plan.json", {"b": 1, "a": [2.5, None]})
    assert read_json(tmp_path / "plan.json", name="run", remedy="") == {"b": 1, "a": [2.5, None]}


@pytest.mark.slow
def test_a_folder_is_held_by_one_at_a_time_and_let_go_by_a_crash(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with lock_folder(tmp_path):
            (tmp_path / "held").touch()
            time.sleep(0.3)
            (tmp_path / "done").touch()
            os._exit(9)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with lock_folder(tmp_path):
        assert (tmp_path / "done").exists()
    os.waitpid(child, 0)
