"""Files that are there whole or not at all, and checkpoints made of them."""

import errno
import json
import logging
import os

import pytest
import torch

from smallvit.files import (
    images_in,
    read_json,
    read_tensors,
    tensors_to_bytes,
    walk,
    write_bytes,
    write_json,
    write_tensors,
    writing,
)
from smallvit.runs.checkpoint import Progress, Score, load_checkpoint, save_checkpoint


def refuse(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("before", [b"old", None])
def test_a_write_that_fails_changes_nothing(tmp_path, monkeypatch, call, before):
    path = tmp_path / "file"
    if before is not None:
        path.write_bytes(before)
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(path, b"new")
    assert [item.name for item in tmp_path.iterdir()] == ([] if before is None else ["file"])
    assert before is None or path.read_bytes() == before


def test_a_write_that_is_interrupted_leaves_no_part(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(path, b"new")
    assert [item.name for item in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_what_a_killed_write_left_is_no_obstacle(tmp_path):
    (tmp_path / "file.part").write_bytes(b"half of a much longer tex")
    write_bytes(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_the_bytes_are_on_disk_before_the_move(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda number: (done.append("fsync"), fsync(number))[1])
    monkeypatch.setattr(os, "replace", lambda *names: (done.append("move"), replace(*names))[1])
    write_json(tmp_path / "a.json", {"ü": 1.5})
    assert done == ["fsync", "move"]
    assert read_json(tmp_path / "a.json") == {"ü": 1.5}


def test_a_block_that_raises_leaves_no_file(tmp_path):
    def half(shared):
        with writing(tmp_path / "file", shared=shared) as file:
            file.write(b"half")
            assert len(list(tmp_path.iterdir())) == 1
            raise RuntimeError

    for shared in (False, True):
        with pytest.raises(RuntimeError):
            half(shared)
        assert not list(tmp_path.iterdir())


def test_writers_of_one_file_do_not_mix(tmp_path):
    path = tmp_path / "file"
    with writing(path, shared=True) as first, writing(path, shared=True) as second:
        first.write(b"first")
        second.write(b"second, longer")
    assert path.read_bytes() == b"first"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match=f"{name} is a device or a pipe"):
            write_bytes(tmp_path / name, b"new")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_folders_are_walked_in_order_and_never_twice_around(tmp_path, monkeypatch):
    for name in ("b.PNG", "a/2.jpg", "a/deep/1.jpeg", "a/notes.txt", ".hidden.png", ".git/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "__MACOSX" / "b.png").touch()
    (tmp_path / "a" / "deep" / "up").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    found = list(images_in(tmp_path))
    assert [item.error for item in found] == [None] * 3
    names = [os.path.relpath(item.path, tmp_path) for item in found]
    assert names == ["a/2.jpg", "a/deep/1.jpeg", "b.PNG"]
    (tmp_path / "c.HEIC").touch()  # no image that is read, and not passed over in silence
    assert [item.path for item in images_in(tmp_path)][3:] == [str(tmp_path / "c.HEIC")]
    (tmp_path / "c.HEIC").unlink()
    (loop,) = [item for item in walk(tmp_path) if item.error]
    assert loop.path == str(tmp_path / "a" / "deep" / "up")
    assert loop.error.errno == errno.ELOOP
    (tmp_path / "a" / "back").symlink_to(tmp_path)
    loops = [item.path for item in walk(tmp_path / "a", above=[tmp_path]) if item.error]
    assert loops == [str(tmp_path / "a" / "back"), str(tmp_path / "a" / "deep" / "up")]

    def locked(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", locked)
        (only,) = images_in(tmp_path)
    assert only.error.strerror == "it cannot be listed: Permission denied"


def test_damaged_files_get_a_sentence(tmp_path):
    path = tmp_path / "x"
    for text in ("{", "[1]", "", "nonsense"):
        path.write_text(text)
        with pytest.raises(ValueError, match="x is damaged"):
            read_json(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="x is damaged"):
        read_json(path)
    for data in (b"", b"12345678", b"\x10" + b"\0" * 7 + b"{}" * 8):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="damaged or not a safetensors"):
            read_tensors(path)
    with pytest.raises(ValueError, match="there is no file"):
        read_tensors(tmp_path / "nothing")


def test_tensors_may_share_memory_and_be_strided(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    tensors = {"a": whole, "b": whole[1], "c": whole.t(), "d": torch.tensor(3), "e": whole[:0]}
    write_tensors(tmp_path / "t", tensors, note="x")
    back = read_tensors(tmp_path / "t")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    assert tensors_to_bytes(tensors, {"note": "x"}) == (tmp_path / "t").read_bytes()


def checkpoint(step):
    progress = Progress(step=step, steps=99, best=Score(0.1 + 0.2, 1e-300))
    return progress, {"w": torch.full((50,), float(step)), "n": torch.tensor(step)}


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "checkpoints"
    for step in (2, 4, 6):
        save_checkpoint(folder, *checkpoint(step))
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_two_checkpoints_are_kept(saved):
    stems = ("000000004", "000000006")
    assert names(saved) == [f"{s}.{e}" for s in stems for e in ("json", "safetensors")]
    progress, tensors = load_checkpoint(saved)
    assert progress == Progress(step=6, steps=99, best=Score(0.1 + 0.2, 1e-300))
    assert progress.best.beats(Score(0.1 + 0.2, 1.0))
    assert torch.equal(tensors["w"], torch.full((50,), 6.0))


def test_no_checkpoint(tmp_path):
    assert load_checkpoint(tmp_path) is None
    assert load_checkpoint(tmp_path / "nowhere") is None


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


def remove(path):
    path.unlink()


def other(path):
    path.write_text(json.dumps([1, 2]))


def keyless(path):
    path.write_text(json.dumps({"step": 6}))


def binary(path):
    path.write_bytes(b"\xff\x00\xfe")


TENSORS = [cut, empty, flip, remove]
DESCRIPTIONS = [cut, empty, other, keyless, binary]


@pytest.mark.parametrize(
    ("name", "damage"),
    [("000000006.safetensors", damage) for damage in TENSORS]
    + [("000000006.json", damage) for damage in DESCRIPTIONS],
)
def test_a_torn_checkpoint_is_detected_and_the_one_before_it_used(saved, caplog, name, damage):
    damage(saved / name)
    with caplog.at_level(logging.WARNING):
        assert load_checkpoint(saved)[0].step == 4
    assert "damaged" in caplog.text
    assert "000000006.json" in caplog.text


def test_a_checkpoint_without_its_description_does_not_exist(saved):
    remove(saved / "000000006.json")
    assert load_checkpoint(saved)[0].step == 4


def test_all_torn(saved):
    for path in saved.glob("*.safetensors"):
        cut(path)
    assert load_checkpoint(saved) is None


@pytest.mark.parametrize("left", ["000000009.safetensors", "000000009.safetensors.part"])
def test_what_a_killed_save_left_does_not_count_as_a_checkpoint(saved, left):
    (saved / left).write_bytes(b"torn")
    assert load_checkpoint(saved)[0].step == 6
    save_checkpoint(saved, *checkpoint(7))
    damage = saved / "000000007.safetensors"
    cut(damage)
    assert load_checkpoint(saved)[0].step == 6
    save_checkpoint(saved, *checkpoint(10))
    save_checkpoint(saved, *checkpoint(11))
    assert names(saved) == [f"0000000{s}.{e}" for s in (10, 11) for e in ("json", "safetensors")]


def test_a_save_that_fails_keeps_the_old_ones(saved, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(saved, *checkpoint(8))
    assert len(names(saved)) == 4
    assert load_checkpoint(saved)[0].step == 6
