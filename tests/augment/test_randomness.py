import pytest
import torch
from torch import Tensor

from smallvit.augment.randomness import normal, uniform, whole
from smallvit.layers.kernels import philox

# From the authors' Random123 test vectors: counter, key, output.
KNOWN = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def draw(seed: int, step: int, positions: Tensor, count: int) -> Tensor:
    return uniform(torch.tensor(seed), torch.tensor(step), positions, count)


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_philox_gives_the_published_numbers(counter, key, output):
    words = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(int(word) for word in words) == output


def test_numbers_are_uniform_and_strictly_inside_the_interval():
    u = draw(3, 5, torch.arange(4096), 64).flatten()
    assert 0 < u.min() < 1e-4
    assert 1 > u.max() > 1 - 1e-4
    assert abs(u.mean() - 0.5) < 4 / (12 * len(u)) ** 0.5
    counts = torch.histc(u, 256, 0, 1)
    expected = len(u) / 256
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert 255 - 4 * 510**0.5 < chi_square < 255 + 4 * 510**0.5


def test_neighbours_in_every_direction_are_uncorrelated():
    n = 4096
    here = draw(3, 5, torch.arange(n), 8)
    others = {
        "position": draw(3, 5, torch.arange(n) + 1, 8),
        "step": draw(3, 6, torch.arange(n), 8),
        "seed": draw(4, 5, torch.arange(n), 8),
        "high word of the step": draw(3, 5 + 2**32, torch.arange(n), 8),
        "high word of the seed": draw(3 + 2**32, 5, torch.arange(n), 8),
    }
    for name, there in others.items():
        assert not torch.equal(here, there), name
        table = torch.corrcoef(torch.cat([here, there], 1).T) - torch.eye(16)
        assert table.abs().max() < 4.5 / n**0.5, name


def test_a_split_batch_draws_the_same_bits():
    whole_batch = draw(7, 123456789012, torch.arange(100), 70)
    parts = [draw(7, 123456789012, part, 70) for part in torch.arange(100).split([33, 1, 66])]
    assert torch.equal(whole_batch, torch.cat(parts))
    assert torch.equal(whole_batch[:, :9], draw(7, 123456789012, torch.arange(100), 9))


def test_whole_numbers_are_equally_likely_and_in_range():
    edge = torch.tensor([2.0**-24, 1 - 2.0**-24])
    assert whole(edge, 10_000_019).tolist() == [0, 10_000_018]
    counts = whole(draw(1, 2, torch.arange(3000), 10).flatten(), 15).bincount(minlength=15)
    assert (counts - 2000).abs().max() < 4.5 * (30_000 * 14 / 225) ** 0.5
    bounds = torch.tensor([1, 2, 3])
    assert torch.equal(whole(torch.tensor([0.99, 0.99, 0.5]), bounds), torch.tensor([0, 1, 1]))


def test_normal_numbers_have_the_quantiles_of_the_normal_distribution():
    z = normal(torch.tensor([0.00135, 0.15866, 0.5, 0.84134, 0.97725]))
    torch.testing.assert_close(z, torch.tensor([-3.0, -1, 0, 1, 2]), atol=1e-3, rtol=0)
    assert normal(torch.tensor([2.0**-24, 1 - 2.0**-24])).isfinite().all()


@pytest.mark.compiled
def test_compiled_draws_are_the_same_bits():
    compiled = torch.compile(uniform, fullgraph=True, backend="aot_eager")
    arguments = (torch.tensor(-5), torch.tensor(2**40 + 9), torch.arange(50) + 2**20)
    assert torch.equal(compiled(*arguments, 13), uniform(*arguments, 13))
