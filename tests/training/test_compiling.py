"""The compiler is loaded beside the data, and only for runs that compile."""

import subprocess
import sys

CODE = """
import sys, torch
from smallvit.training.compiling import load_compiler, wait_for_compiler
wait_for_compiler()  # nothing was begun
load_compiler(torch.device("cpu"), None)
load_compiler(torch.device("cuda"), False)
wait_for_compiler()
import smallvit.training.train
assert "torch._dynamo" not in sys.modules
load_compiler(torch.device("cuda"), None)
load_compiler(torch.device("cuda"), None)  # once is enough
wait_for_compiler()
assert "torch._inductor.compile_fx" in sys.modules
"""


def test_it_is_loaded_only_for_runs_that_compile():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
