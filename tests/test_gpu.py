"""On a GPU: the same numbers as on the CPU, half precision, and Inductor. Skipped without one."""

import pytest
import torch

from smallvit import DRLoc
from tests.models.shrunk import FULL, shrunk

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none"),
]


def prepare(name):
    torch.manual_seed(0)
    model = shrunk(name).eval()
    return model, torch.randn(4, 3, *model.config.image_size)


@pytest.mark.parametrize("name", FULL)
def test_same_numbers_as_on_the_cpu(name):
    model, x = prepare(name)
    expected = model(x)
    torch.testing.assert_close(model.cuda()(x.cuda()).cpu(), expected, rtol=1e-3, atol=1e-3)
    maps = model.attention_maps(x.cuda())
    assert all(part.is_cuda for part in maps)


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name, dtype):
    model, x = prepare(name)
    model, x = model.cuda().train(), x.cuda()
    with torch.autocast("cuda", dtype):
        loss = model(x).float().square().sum()
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert model.to(dtype).eval()(x.to(dtype)).isfinite().all()


@pytest.mark.filterwarnings("ignore::UserWarning")  # Inductor gives advice on speed
@pytest.mark.parametrize("name", FULL)
def test_inductor(name):
    model, x = prepare(name)
    model, x = model.cuda(), x.cuda()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)
    compiled(x).sum().backward()


def test_drloc_draws_on_the_cpu_are_the_same():
    model, x = prepare("vit_9_p4")
    loss = DRLoc(model.dim, model.grid)
    here = loss(model.forward_features(x), torch.Generator().manual_seed(0))
    there = loss.cuda()(model.cuda().forward_features(x.cuda()), torch.Generator().manual_seed(0))
    torch.testing.assert_close(there.cpu(), here, rtol=1e-3, atol=1e-3)
