"""Compilers and exporters: each family with each add-on, and Inductor once a family."""

import shutil

import pytest
import torch

from smallvit.models.names import MODELS
from tests.models.shrunk import FAMILIES, FULL, shrunk

pytestmark = pytest.mark.compiled

CASES = [
    name + addon
    for name in FAMILIES
    for addon in ("", "+spt", "+lsa", "+spt+lsa")
    if MODELS[name].model.takes_lsa or "lsa" not in addon
]


def prepare(name):
    torch.manual_seed(0)
    depth = {"depth": 1} if "depth" in MODELS[name.partition("+")[0]].options else {}
    model = shrunk(name, **depth).eval()
    return model, torch.randn(3, 3, *model.config.image_size)


@pytest.mark.parametrize("name", CASES)
def test_compile_in_one_graph(name):
    model, x = prepare(name)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["vit_9_p4+lsa", "swin_tiny_p2+lsa", "hct_s_p8"])
def test_compile_a_training_pass_in_bf16(name):
    """Attention takes another path there on a CPU."""
    torch.manual_seed(0)
    model = shrunk(name, drop_path=0.0).train()
    x = torch.randn(3, 3, *model.config.image_size)

    def gradient(forward):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = forward(x).float().square().sum()
        loss.backward()
        return model.head.weight.grad.clone()

    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradient(compiled), gradient(model), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", CASES)
def test_export_and_onnx_with_a_dynamic_batch(name, tmp_path):
    import onnxruntime

    model, x = prepare(name)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    wide = torch.randn(5, *x.shape[1:])
    for given in (x, wide):
        torch.testing.assert_close(program.module()(given), model(given), rtol=1e-4, atol=1e-5)

    file = tmp_path / "model.onnx"
    torch.onnx.export(program, (x,), file, dynamo=True, external_data=False, verbose=False)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for given in (x, wide):
        (logits,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), model(given), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_inductor(name):
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("Inductor needs a C++ compiler (g++ or clang++), and none was found")
    model, x = prepare(name)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-4)
    compiled(x).sum().backward()
