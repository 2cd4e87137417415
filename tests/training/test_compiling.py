"""The compiler is loaded beside the data, and only for runs that compile."""

import subprocess
import sys

import torch

from smallvit.training.muon import AdamW

CODE = """
import sys, torch
from smallvit.training.compiling import load_compiler, wait_for_compiler
wait_for_compiler()  # nothing was begun
load_compiler(False)
wait_for_compiler()
import smallvit.training.train
from smallvit.training.muon import AdamW
weight = torch.nn.Parameter(torch.ones(2, 2))
optimiser = AdamW([weight], fused=True)
weight.sum().backward()
optimiser.step()
optimiser.zero_grad()
from smallvit.training.distributed import set_determinism
set_determinism(False)  # as it is
assert "torch._dynamo" not in sys.modules
load_compiler(True)
load_compiler(True)  # once is enough
set_determinism(True)  # imports the compiler too, so it waits
assert torch.are_deterministic_algorithms_enabled()
assert "torch._inductor.compile_fx" in sys.modules
"""


def test_adamw_is_that_of_torch():
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4)) for _ in range(2)]
    for weight, kind in zip(weights, (AdamW, torch.optim.AdamW), strict=True):
        optimiser = kind([weight], lr=0.1, weight_decay=0.1, fused=True)
        for _ in range(3):
            optimiser.zero_grad()
            weight.square().sum().backward()
            optimiser.step()
    assert torch.equal(*weights)


def test_it_is_loaded_only_for_runs_that_compile():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
