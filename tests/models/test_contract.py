"""One contract for every registered name and add-on."""

import pytest
import torch
from torch import nn

from smallvit.models.build import count_parameters
from smallvit.models.names import MODELS
from tests.models.shrunk import NAMES, shrunk, small_size


def images(model, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    return torch.randn(batch, config.in_channels, *config.image_size, generator=generator)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", NAMES)
def test_contract(name):
    model = shrunk(name).eval()
    x = images(model, batch=3)
    logits = model(x)
    assert logits.shape == (3, 3)
    assert logits.isfinite().all()
    assert model.name == name

    features = model.forward_features(x)
    assert features.grid == model.grid
    assert features.tokens.shape == (3, model.grid[0] * model.grid[1], model.dim)
    assert features.pooled.shape == (3, model.dim)
    torch.testing.assert_close(model.head(features.pooled), logits)

    alone = torch.cat([model(image[None]) for image in x])
    torch.testing.assert_close(alone, logits, rtol=1e-4, atol=1e-5)

    again = shrunk(name).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(x), logits)

    half = model.to(torch.bfloat16)(x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()


@pytest.mark.parametrize("name", MODELS)
def test_weights_fill_a_model_of_the_meta_device(name):
    model = shrunk(name).eval()
    x = images(model)
    logits, state = model(x), model.state_dict()
    with torch.device("meta"):
        assigned, copied = shrunk(name).eval(), shrunk(name).eval()
    assigned.load_state_dict(state, assign=True)
    copied.to_empty(device="cpu")
    for part in copied.buffers():  # whatever the memory held before
        part.data.fill_(7)
    copied.load_state_dict(state)
    assert torch.equal(assigned(x), logits)
    assert torch.equal(copied(x), logits)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_reaches_every_trainable_parameter(name):
    size = small_size(name)
    if name.startswith("cvt"):  # whose last tokens would share one key: all attend to it alike
        size = (4 * size[0], 4 * size[1])
    model = shrunk(name, image_size=size, drop_path=0.0, attn_dropout=0.0).train()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):  # those that start at zero let nothing through
            nn.init.ones_(part.weight)
    model(images(model, batch=4)).square().sum().backward()
    silent = {
        key
        for key, parameter in model.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    }
    # The paper's bias in front of a softmax: its gradient is zero but for rounding.
    assert silent <= {"pool.score.bias"}
    assert all(model.get_parameter(key).grad is not None for key in silent)
    frozen = {key.rpartition(".")[2] for key, p in model.named_parameters() if not p.requires_grad}
    assert frozen <= {"table", "rows"}  # sinusoids, and the performer's random rows


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("in_channels", [1, 4])
def test_rectangles_and_channels(name, in_channels):
    height, width = small_size(name)
    model = shrunk(name, image_size=(height, 2 * width), in_channels=in_channels).eval()
    assert model.grid[1] == 2 * model.grid[0]
    wide = images(model)
    assert model(wide).isfinite().all()
    tall = model.resized((2 * height, width)).eval()
    assert tall.grid == (model.grid[1], model.grid[0])
    assert tall(wide.transpose(2, 3)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_attention_maps(name):
    model = shrunk(name).eval()
    x = images(model)
    maps = model.attention_maps(x)
    layers = [m for m in model.modules() if hasattr(m, "attn_dropout") or hasattr(m, "rows")]
    assert len(maps) == len(layers)
    weights = []
    features = model.forward_features(x, weights=weights)
    torch.testing.assert_close(model.head(features.pooled), model(x), rtol=1e-4, atol=1e-5)
    if "cait" not in name:  # whose heads are mixed again after the softmax
        for part in maps:
            torch.testing.assert_close(part.sum(-1), torch.ones(part.shape[:-1]))
            square = part.shape[-1] == part.shape[-2] > 1
            linear = "t2t_14" in name and part is not maps[-1] and part is not maps[-2]
            if model.config.masked and square and not linear:
                assert (part.diagonal(dim1=-2, dim2=-1) == 0).all()


@pytest.mark.parametrize("name", MODELS)
def test_full_size_on_the_meta_device(name):
    assert count_parameters(name, num_classes=10) > 1e5


@pytest.mark.parametrize(
    ("name", "millions"),
    [("vit_base_p16", 86.6), ("vit_large_p16", 304.3), ("vit_huge_p14", 632.0)],
)
def test_standard_sizes(name, millions):
    assert round(count_parameters(name, num_classes=1000) / 1e6, 1) == millions


@pytest.mark.parametrize(
    ("name", "classes", "millions"),
    [
        ("vit_9_p4", 100, 2.7),
        ("vit_9_p4+spt+lsa", 100, 2.7),
        ("t2t_12", 100, 6.5),
        ("t2t_12+spt+lsa", 100, 6.5),
        ("cait_24_p4", 100, 9.0),
        ("cait_24_p4+spt+lsa", 100, 9.1),
        ("pit_tiny_p2", 100, 7.0),
        ("pit_tiny_p2+spt+lsa", 100, 8.7),
        ("swin_tiny_p2", 100, 7.1),
        ("swin_tiny_p2+spt+lsa", 100, 8.6),
        ("vit_lite_7_p4", 10, 3.7),
        ("compact_vit_7_p4", 10, 3.7),
        ("cct_2_3x2", 10, 0.3),
        ("cct_7_3x1", 10, 3.8),
        ("hct_xs_p8", 100, 0.3),
        ("hct_s_p8", 100, 1.0),
        ("hct_m_p4", 100, 2.5),
        ("hct_l_p4", 100, 5.3),
        ("hct2_xs_p8", 100, 0.3),
        ("hct2_s_p8", 100, 0.6),
        ("hct2_m_p4", 100, 2.2),
        ("hct2_l_p4", 100, 5.1),
        ("hct2_xl_p4", 100, 12.9),
    ],
)
def test_sizes_of_the_papers_and_ours(name, classes, millions):
    assert round(count_parameters(name, num_classes=classes) / 1e6, 1) == millions
