"""Dense relative localization: the oracle, the minima, the draws."""

import math

import numpy as np
import pytest
import torch

from smallvit import DRLoc, Features
from smallvit.losses.drloc import RELEASED, pool_stride
from tests.arrays import arrays, noise, scramble
from tests.models.shrunk import shrunk
from tests.oracles import drloc as oracle


def features(grid, dim=5, batch=3):
    tokens = noise(batch, grid[0] * grid[1], dim)
    return Features(tokens, grid, tokens.mean(1))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("mode", ["l1", "ce", "cbr"])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("grid", [(4, 4), (3, 5), (14, 6), (11, 16)])
def test_loss(mode, normalised, grid):
    loss = scramble(DRLoc(5, grid, mode=mode, pairs=6, normalised=normalised, hidden=8))
    given = features(grid)
    pairs = loss.draw(3, torch.device("cpu"), seeded()).numpy()
    grids = np.stack([oracle.pooled(t.numpy(), grid, loss.stride) for t in given.tokens])
    assert grids.shape[1:3] == loss.grid
    expected = oracle.loss(grids, pairs, arrays(loss), mode, normalised=normalised)
    assert loss(given, seeded()).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("side", "stride"),
    [(1, 1), (4, 1), (7, 1), (8, 1), (10, 1), (11, 2), (14, 2), (16, 2), (28, 4)],
)
def test_pool_stride_is_the_whole_number_nearest_to_a_seventh(side, stride):
    assert pool_stride(side) == stride


def test_perfect_l1_prediction_costs_nothing():
    loss = DRLoc(4, (3, 5))
    pairs = loss.draw(2, torch.device("cpu"), seeded())
    target = loss.targets(pairs)
    assert loss.compare(target / torch.tensor([3, 5]), target) == 0
    released = DRLoc(4, (3, 5), normalised=False)
    assert released.compare(target.float(), target) == 0


@pytest.mark.parametrize(("mode", "minimum"), [("ce", 0.0), ("cbr", 2 * 1e-3 * math.log(1e-8))])
def test_classified_offsets_fall_towards_their_minimum(mode, minimum):
    loss = DRLoc(4, (3, 5), mode=mode)
    target = loss.targets(loss.draw(2, torch.device("cpu"), seeded()))
    rows, columns = torch.eye(3)[target[..., 0]], torch.eye(5)[target[..., 1]]
    sure = torch.cat([rows, columns], -1)
    values = [loss.compare(k * sure, target).item() for k in (0.0, 5.0, 10.0, 20.0, 60.0)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(minimum, abs=1e-6)


def test_targets_on_a_rectangle():
    loss = DRLoc(4, (2, 3))
    pairs = torch.tensor([[[0, 5, 2]], [[5, 0, 4]]])  # (0,0)–(1,2), (1,2)–(0,0), (0,2)–(1,1)
    assert loss.targets(pairs).tolist() == [[[1, 2], [1, 2], [1, 1]]]


def test_draws_come_from_the_generator_alone():
    loss, given = DRLoc(5, (4, 4)).double(), features((4, 4))
    torch.manual_seed(1)
    first = loss(given, seeded(3))
    state = torch.get_rng_state()
    assert loss(given, seeded(3)) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert loss(given, seeded(4)) != first


def test_draws_cover_the_grid_evenly():
    loss = DRLoc(4, (2, 3), pairs=500)
    counts = loss.draw(12, torch.device("cpu"), seeded()).flatten().bincount(minlength=6)
    assert counts.shape == (6,)
    assert counts.min() > 1800


def test_it_can_be_learned():
    torch.manual_seed(0)
    place = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)) / 4
    tokens = place.expand(8, -1, -1)
    given = Features(tokens, (4, 4), tokens.mean(1))
    loss = DRLoc(2, (4, 4))
    optimiser = torch.optim.Adam(loss.parameters(), 3e-3)
    generator = seeded()
    history = []
    for _ in range(150):
        value = loss(given, generator)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        history.append(value.item())
    assert np.mean(history[-10:]) < np.mean(history[:10]) / 3


@pytest.mark.parametrize("mode", ["l1", "ce", "cbr"])
@pytest.mark.parametrize("grid", [(7, 7), (14, 14), (11, 16), (28, 14)])
def test_the_released_form(grid, mode):
    """Targets in tokens, 3×3 windows at stride 2, two hidden layers, a spare one and classes."""
    loss = scramble(DRLoc(5, grid, mode=mode, pairs=6, hidden=8, **RELEASED))
    given = features(grid)
    pairs = loss.draw(3, torch.device("cpu"), seeded()).numpy()
    grids = np.stack([oracle.overlapped(t.numpy(), grid, loss.stride) for t in given.tokens])
    assert grids.shape[1:3] == loss.grid
    weights = arrays(loss)
    expected = oracle.loss(grids, pairs, weights, mode, normalised=False, layers=2, classes=grid)
    assert loss(given, seeded()).item() == pytest.approx(expected, rel=1e-10)


def test_swin_shows_its_tokens_before_the_final_norm():
    model = shrunk("swin_t").double().eval()
    images = noise(2, 3, *model.config.image_size)
    normed, logits = model.forward_features(images), model(images)
    model.shows_raw = True
    raw = model.forward_features(images)
    torch.testing.assert_close(model.norm(raw.tokens), normed.tokens)
    assert not torch.allclose(raw.tokens, normed.tokens)
    assert torch.equal(model(images), logits)


def test_hidden_layers_of_the_released_code():
    widths = [
        m.out_features
        for m in DRLoc(5, (4, 4), hidden_layers=2).modules()
        if hasattr(m, "out_features")
    ]
    assert widths == [512, 512, 2]
    spare = DRLoc(5, (14, 14), mode="ce", **RELEASED)
    assert [p.shape[0] for p in spare.parameters()][::2] == [512, 512, 512, 28]


def test_the_perceptron_starts_as_pytorchs_layers_or_narrow():
    torch.manual_seed(0)
    usual, narrow = DRLoc(64, (4, 4)), DRLoc(64, (4, 4), narrow=True)
    assert usual.perceptron[0].bias.abs().max() > 0
    for name, parameter in narrow.named_parameters():
        std = 0.0 if name.endswith("bias") else 0.02
        assert parameter.std(correction=0).item() == pytest.approx(std, rel=0.1), name


def test_bad_input():
    with pytest.raises(ValueError, match="'l2': allowed are l1, ce, cbr"):
        DRLoc(5, (4, 4), mode="l2")
    with pytest.raises(ValueError, match="pairs is 0: allowed is 1 to"):
        DRLoc(5, (4, 4), pairs=0)
    with pytest.raises(ValueError, match="grid holds 0: allowed is 1 to"):
        DRLoc(5, (0, 4))
    with pytest.raises(ValueError, match=r"grid of \(4, 4\) and got one of \(3, 5\)"):
        DRLoc(5, (4, 4)).double()(features((3, 5)))


def test_a_grid_may_be_a_list():
    shown, pairs = features((3, 5)), torch.zeros(2, 3, 64, dtype=torch.long)
    loss = DRLoc(5, [3, 5]).double()
    assert loss.grid == (3, 5)
    assert torch.equal(loss(shown, pairs=pairs), loss(shown._replace(grid=[3, 5]), pairs=pairs))
