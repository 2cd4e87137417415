import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smallvit.data import Dataset, cache, fit_image, load_data
from smallvit.data import decoding as module

ROWS = np.random.default_rng(0).integers(0, 256, (50, 3, 8, 8), np.uint8)

KEY = "0a" * 16


def rows() -> Iterator[np.ndarray]:
    return iter(ROWS)


def test_pixels_are_the_fitted_images(dataset: Dataset) -> None:
    pixels = dataset.pixels("train")
    assert isinstance(pixels, np.memmap)
    assert not pixels.flags.writeable
    items = dataset.splits["train"]
    for index in range(len(items)):
        expected = fit_image(items.read(index, 3), (16, 16), "letterbox")
        assert (pixels[index].transpose(1, 2, 0) == expected).all()


def test_images_are_decoded_once(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    first = np.array(dataset.pixels("train"))

    def never(*_: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(module, "fit_image", never)
    assert (dataset.pixels("train") == first).all()
    with pytest.raises(AssertionError, match="decoded again"):
        dataset.pixels("val")


def test_a_few_images_tell_how_long_decoding_takes(dataset: Dataset) -> None:
    """On a clock of which every reading takes a second: so do eight images."""
    ticks = iter(range(1000))

    def clock() -> float:
        return float(next(ticks))

    count = sum(len(samples) for samples in dataset.splits.values())
    sizes = np.concatenate([each.survey.sizes for each in dataset.splits.values()]).prod(1)
    assert 1 < dataset.decoding(clock) < count / 8 * sizes.max() / sizes.min() + 1
    assert next(ticks) == 2  # the other images were not tried
    whole = dataset.decoding(clock)
    dataset.pixels("train")
    assert 0 < dataset.decoding(clock) < whole
    for split in dataset.splits:
        dataset.pixels(split)
    assert dataset.decoding(clock) == 0
    assert dataset.sized(8).decoding(clock) > 0


def test_entries_are_found_by_content(dataset: Dataset, folder: Path, tmp_path: Path) -> None:
    dataset.pixels("train")
    shutil.copytree(folder, tmp_path / "elsewhere")
    load_data(tmp_path / "elsewhere", image_size=16).pixels("train")
    assert len(cache.entries()) == 1
    for other in (dataset.sized(16, "crop"), dataset.sized(8), replace(dataset, channels=1)):
        other.pixels("train")
    assert len(cache.entries()) == 4


def test_entries_of_arrays_know_the_shape(tmp_path: Path) -> None:
    path, labels = tmp_path / "a.npz", np.arange(20) % 2
    images = np.random.default_rng(0).integers(0, 256, (20, 12, 16, 3), np.uint8)
    for shape in ((20, 12, 16, 3), (20, 16, 12, 3)):
        np.savez(path, images=images.reshape(shape), labels=labels)
        dataset = load_data(path, image_size=8, val=0, test=0)
        expected = fit_image(dataset.splits["train"].read(0, 3), (8, 8), "letterbox")
        assert (dataset.pixels("train")[0].transpose(1, 2, 0) == expected).all()


def test_entries_are_listed_and_cleared(dataset: Dataset, folder: Path) -> None:
    assert cache.entries() == []
    dataset.pixels("train")
    dataset.pixels("test")
    newest, _ = cache.entries()
    assert newest.about == {
        "source": str(folder),
        "split": "test",
        "fit": "letterbox",
        "shape": [4, 3, 16, 16],
    }
    assert newest.size == newest.path.stat().st_size >= 4 * 3 * 16 * 16
    mapped = dataset.pixels("train")
    kept = np.array(mapped)
    compiled = cache.programs() / "ab" / "program.py"
    compiled.parent.mkdir(parents=True)
    compiled.write_bytes(bytes(1000))
    assert cache.clear() > newest.size + 1000
    assert cache.entries() == []
    assert (mapped == kept).all()
    assert not [path for path in cache.directory().rglob("*") if path.is_file()]


def test_the_folder_is_chosen_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SMALLVIT_CACHE", str(tmp_path))
    assert cache.directory() == tmp_path
    monkeypatch.delenv("SMALLVIT_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache.directory() == tmp_path / "smallvit"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache.directory() == Path.home() / ".cache" / "smallvit"


def leftovers() -> list[str]:
    return [path.name for path in cache.directory().iterdir() if path.suffix in (".part", ".lock")]


def run(text: str) -> subprocess.Popen[str]:
    code = "from smallvit.data import cache\n" + textwrap.dedent(text)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_killed_build_leaves_nothing_that_is_read() -> None:
    killed = run(
        """
        import os, signal, numpy as np
        def rows():
            for k in range(50):
                if k == 30:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield np.zeros((3, 8, 8), np.uint8)
        cache.stored("0a" * 16, (50, 3, 8, 8), rows, {})
        """
    )
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert cache.entries() == []
    assert any(name.endswith(".part") for name in leftovers())
    assert (cache.stored(KEY, ROWS.shape, rows, {}) == ROWS).all()
    assert leftovers() == []


def test_builds_at_the_same_time_make_one_entry() -> None:
    text = """
        import time, numpy as np
        def rows():
            print("built", flush=True)
            for k in range(50):
                time.sleep(0.01)
                yield np.full((3, 8, 8), k, np.uint8)
        pixels = cache.stored("0a" * 16, (50, 3, 8, 8), rows, {})
        assert (pixels == np.arange(50)[:, None, None, None]).all()
        print("read", flush=True)
        """
    processes = [run(text) for _ in range(2)]
    said = sorted(process.communicate()[0].split() for process in processes)
    assert said == [["built", "read"], ["read"]]
    assert [process.returncode for process in processes] == [0, 0]
    assert leftovers() == []


def test_a_build_that_fails_leaves_nothing(dataset: Dataset) -> None:
    def failing() -> Iterator[np.ndarray]:
        yield ROWS[0]
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        cache.stored(KEY, ROWS.shape, failing, {})
    assert cache.entries() == []
    assert leftovers() == []


def test_who_waited_for_a_build_that_failed_builds_alone() -> None:
    second_began, third_ended = threading.Event(), threading.Event()
    done: dict[str, object] = {}

    def attempt(name: str, rows: Callable[[], Iterator[np.ndarray]]) -> None:
        try:
            done[name] = (cache.stored(KEY, ROWS.shape, rows, {}) == ROWS).all()
        except (OSError, RuntimeError) as error:
            done[name] = error

    def first_rows() -> Iterator[np.ndarray]:
        second.start()
        second.join(0.3)  # until it waits for the lock
        raise RuntimeError("no more")
        yield

    def second_rows() -> Iterator[np.ndarray]:
        second_began.set()
        third_ended.wait(0.5)  # it should wait until this has ended
        return rows()

    second = threading.Thread(target=attempt, args=("second", second_rows))
    attempt("first", first_rows)
    assert second_began.wait(10)
    third = threading.Thread(target=lambda: (attempt("third", rows), third_ended.set()))
    third.start()
    second.join(10)
    third.join(10)
    assert str(done["first"]) == "no more"
    assert (done["second"], done["third"]) == (True, True)
    assert leftovers() == []


def test_a_damaged_entry_is_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    cache.stored(KEY, ROWS.shape, rows, {})
    path = cache.entries()[0].path
    good = path.read_bytes()
    zeroed = good[:4000] + bytes(4800) + good[8800:]
    flipped = good[:-1] + bytes([good[-1] ^ 1])
    headers = [good[:place] + b"#" + good[place + 1 :] for place in (5, 9, 30, 60)]
    for damage in (good[:500], b"", b"rubbish" * 99, zeroed, flipped, *headers):
        caplog.clear()
        path.write_bytes(damage)
        assert (cache.stored(KEY, ROWS.shape, rows, {}) == ROWS).all()
        assert f"{path} is damaged: decoding its images again" in caplog.text


def test_an_entry_without_its_checksum_is_made_anew() -> None:
    cache.stored(KEY, ROWS.shape, rows, {})
    path = cache.entries()[0].path
    os.utime(path, (1, 1))
    for damage in ("", "[]", "{}", "[" * 30_000):
        path.with_suffix(".json").write_text(damage)
        os.utime(path, (2, 2))
        built: list[int] = []
        cache.stored(KEY, ROWS.shape, lambda built=built: (built.append(1), rows())[1], {})
        assert built


def test_a_link_is_not_an_entry(tmp_path: Path) -> None:
    cache.stored(KEY, ROWS.shape, rows, {})
    path, victim = cache.entries()[0].path, tmp_path / "mine.npy"
    path.rename(victim)
    path.symlink_to(victim)
    before = victim.read_bytes()
    assert (cache.stored(KEY, ROWS.shape, rows, {}) == ROWS).all()
    assert not path.is_symlink()
    assert victim.read_bytes() == before


@pytest.mark.parametrize("use", ["batch", "ordered", "logits"])
def test_an_entry_shortened_in_use_ends_in_a_sentence(use: str) -> None:
    """In a process of its own: touching what is gone would end it with SIGBUS."""
    process = run(
        f"""
        import os, numpy as np, torch
        from smallvit.data.loader import Loader
        from smallvit.evaluation import logits_of
        shape = (500, 3, 8, 8)
        pixels = cache.stored("0a" * 16, shape, lambda: np.ones(shape, "u1"), {{}})
        loader = Loader(pixels, np.zeros(500, np.int64), batch_size=100, ahead=0)
        model = torch.nn.Flatten()
        uses = {{
            "batch": lambda: loader.batch(1),
            "ordered": lambda: list(loader.ordered()),
            "logits": lambda: logits_of(model, pixels, mean=[0.5] * 3, std=[0.5] * 3),
        }}
        os.truncate(pixels.filename, 200)
        try:
            uses["{use}"]()
        except OSError as error:
            print(error)
        """
    )
    assert "was shortened while it was in use" in process.communicate()[0]
    assert process.returncode == 0


@pytest.mark.parametrize("place", ["link", "real"])
def test_an_entry_shortened_in_use_is_seen_wherever_the_cache_is(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMALLVIT_CACHE", place)
    pixels = cache.stored(KEY, ROWS.shape, rows, {})
    cache.refuse_truncated(pixels)
    os.truncate(tmp_path / "real" / f"{KEY}.npy", 200)
    with pytest.raises(OSError, match="was shortened while it was in use"):
        cache.refuse_truncated(pixels)


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond a few kilobytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_space_is_an_error_before_the_first_image(small_files: None) -> None:
    def never() -> Iterator[np.ndarray]:
        raise AssertionError("decoding began")
        yield

    with pytest.raises(OSError, match=r"no space for the decoded images: .*Set SMALLVIT_CACHE"):
        cache.stored(KEY, (500, 3, 8, 8), never, {})
    assert cache.entries() == []
    assert leftovers() == []


def test_a_disk_that_fills_while_caching(
    small_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file system that reserves no space.
    monkeypatch.setattr(os, "posix_fallocate", lambda file, start, size: None)
    with pytest.raises(OSError, match="no space for the decoded images"):
        cache.stored(KEY, (500, 3, 8, 8), lambda: iter([ROWS[0]] * 500), {})
    assert cache.entries() == []
    assert leftovers() == []


def test_a_real_full_disk(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a small disk here")
    try:
        monkeypatch.setenv("SMALLVIT_CACHE", str(disk))
        assert len(dataset.pixels("val")) == 2
        with pytest.raises(OSError, match="0 MB are free"):
            dataset.sized(64).pixels("train")
        assert len(cache.entries()) == 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_cannot_be_written(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMALLVIT_CACHE", "/proc/smallvit")
    if not Path("/proc/self").exists():
        pytest.skip("no /proc here")
    with pytest.raises(OSError, match="/proc/smallvit"):
        dataset.pixels("train")


def test_a_read_only_data_folder(dataset: Dataset, folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for path in (folder, *folder.iterdir()):
        path.chmod(0o555)
    dataset.pixels("train")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)


def test_a_bar_shows_the_rate(dataset: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    dataset.pixels("train", progress=True)
    shown = capsys.readouterr()
    assert "decoding train" in shown.err
    assert "images/s" in shown.err
    assert "14/14" in shown.err
    assert shown.out == ""


def test_an_interrupt_ends_a_build(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[int] = []
    real: Callable[..., np.ndarray] = module.fit_image

    def interrupted(*arguments: object) -> np.ndarray:
        fitted.append(1)
        if len(fitted) > 5:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, "fit_image", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dataset.pixels("train")
    assert cache.entries() == []
    assert leftovers() == []
    assert os.environ["SMALLVIT_CACHE"]
