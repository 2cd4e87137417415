import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smallvit.data import Loader
from smallvit.data.loader import random_keys

N = 50
PIXELS = np.arange(N, dtype=np.uint8)[:, None, None, None].repeat(3, 1).repeat(4, 2).repeat(4, 3)
LABELS = np.arange(N) % 5
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def loader(**options: object) -> Loader:
    return Loader(PIXELS, LABELS, **{"batch_size": 8, **options})


def shown(batches: Loader, step: int) -> list[int]:
    return batches.batch(step).images[:, 0, 0, 0].tolist()


def test_random_keys_are_the_same_everywhere() -> None:
    assert random_keys(0, 0, 3).tolist() == [
        2558736989570252433,
        17913671590881668180,
        5125111896206277188,
    ]
    assert len(set(random_keys(1, 2, 10_000).tolist())) == 10_000
    assert not set(random_keys(0, 0, 100).tolist()) & set(random_keys(0, 1, 100).tolist())
    assert not set(random_keys(0, 0, 100).tolist()) & set(random_keys(1, 0, 100).tolist())
    bits = np.unpackbits(random_keys(7, 7, 4096).view(np.uint8)).mean()
    assert abs(bits - 0.5) < 0.01


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("resident", [False, True])
def test_an_epoch_shows_every_image_at_most_once(device: str, resident: bool) -> None:
    batches = loader(device=device, resident=resident)
    assert batches.resident is resident
    assert batches.steps_per_epoch == 6
    for epoch in range(3):
        seen = [p for step in range(6) for p in shown(batches, 6 * epoch + step)]
        assert len(set(seen)) == len(seen) == 48
        assert seen == batches.order(epoch)[:48].tolist()
        assert sorted(batches.order(epoch).tolist()) == list(range(N))
    assert batches.order(0).tolist() != batches.order(1).tolist()
    assert loader(seed=1).order(0).tolist() != batches.order(0).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_labels_and_images_belong_together(device: str) -> None:
    for resident in (False, True):
        batch = loader(device=device, resident=resident).batch(3)
        assert batch.images.device.type == device
        assert batch.images.dtype == torch.uint8
        assert batch.labels.dtype == torch.int64
        assert (batch.images[:, 0, 0, 0] % 5 == batch.labels).all()
        assert batch.positions.tolist() == list(range(8))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("resident", [False, True])
def test_a_step_needs_no_earlier_one(device: str, resident: bool) -> None:
    batches = loader(device=device, resident=resident)
    expected = [shown(batches, step) for step in range(15)]
    assert shown(loader(device=device, resident=resident), 13) == expected[13]
    jumping = loader(device=device, resident=resident)
    for step in (14, 2, 3, 3, 9, 0, 5, 6, 7):
        assert shown(jumping, step) == expected[step]


@pytest.mark.parametrize("options", [{}, {"balanced": True}, {"repeats": 2}])
def test_ranks_share_the_same_batches(options: dict[str, object]) -> None:
    alone = loader(**options)
    ranks = [loader(rank=rank, world_size=4, **options) for rank in range(4)]
    for step in (0, 5, 6, 100):
        parts = [each.batch(step) for each in ranks]
        together = torch.cat([part.images[:, 0, 0, 0] for part in parts])
        assert together.tolist() == shown(alone, step)
        assert torch.cat([part.positions for part in parts]).tolist() == list(range(8))


@given(st.integers(1, 20), st.integers(1, 4))
def test_ordered_shows_all_with_the_tail(batch_size: int, world_size: int) -> None:
    seen: list[int] = []
    for rank in range(world_size):
        batches = loader(batch_size=12, rank=rank, world_size=world_size)
        for batch in batches.ordered(batch_size):
            assert batch.images[:, 0, 0, 0].tolist() == batch.positions.tolist()
            assert (batch.labels == batch.positions % 5).all()
            seen += batch.positions.tolist()
    assert sorted(seen) == list(range(N))


def test_ordered_needs_no_whole_batch() -> None:
    assert [len(batch.images) for batch in loader().ordered()] == [8] * 6 + [2]
    assert [len(batch.images) for batch in loader(batch_size=100).ordered()] == [50]
    with pytest.raises(ValueError, match="batch_size is 100, but there are only 50 images"):
        loader(batch_size=100).batch(0)


def test_balanced_shows_every_class_equally_often() -> None:
    labels = np.repeat([0, 1, 2], [40, 8, 2])
    batches = Loader(PIXELS, labels, batch_size=5, balanced=True)
    for epoch in range(4):
        order = batches.order(epoch)
        assert len(order) == N
        assert np.bincount(labels[order]).tolist() in ([17, 17, 16], [17, 16, 17], [16, 17, 17])
        for start in range(0, N - 5, 3):  # never far from balance, either
            assert set(labels[order[start : start + 3]]) == {0, 1, 2}
        large = order[labels[order] == 0]
        assert len(set(large.tolist())) == len(large)
    several = np.concatenate([batches.order(epoch) for epoch in range(12)])
    assert set(several.tolist()) == set(range(N))


def test_repeats_stand_in_one_batch() -> None:
    batches = loader(repeats=4, batch_size=8)
    for step in range(20):
        images, counts = np.unique(shown(batches, step), return_counts=True)
        assert len(images) == 2
        assert (counts == 4).all()
    assert batches.steps_per_epoch == loader().steps_per_epoch


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world_size": 3}, "batch_size 8 is not a multiple of world_size 3"),
        ({"repeats": 3}, "batch_size 8 is not a multiple of repeats 3"),
        ({"rank": 2, "world_size": 2}, "rank is 2: allowed is 0 up to below world_size 2"),
        ({"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_what_does_not_divide_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader(**options)


def test_it_says_where_the_images_are(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="smallvit.data.loader"):
        loader(resident=True)
        loader()
    kept, copied = caplog.messages
    assert "kept in the memory of cpu" in kept
    assert "copied batch by batch to cpu" in copied
    assert {record.levelname for record in caplog.records} == {"DEBUG"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_small_data_lies_on_the_gpu_and_large_data_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert loader(device="cuda").resident
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (PIXELS.nbytes, 10**12))
    assert not loader(device="cuda").resident


def anonymous() -> int:
    """Bytes of this process that no file backs."""
    match = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return int(match[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_larger_than_memory_is_streamed(tmp_path: Path) -> None:
    count = 4 * 1024**3 // (3 * 128 * 128)
    file = tmp_path / "large.npy"
    np.lib.format.open_memmap(file, "w+", np.uint8, (count, 3, 128, 128))
    assert file.stat().st_blocks * 512 < 1e6, "the file should be sparse"
    pixels = np.load(file, mmap_mode="r")
    batches = Loader(pixels, np.zeros(count, np.int64), batch_size=128)
    batches.batch(0)
    before, most = anonymous(), 0
    for step in range(batches.steps_per_epoch):
        assert not batches.batch(step).images[0, 0, 0, 0]
        most = max(most, anonymous())
    assert most - before < 100e6
    del batches, pixels
