"""The promised use, word for word, in a process where torch cannot be imported."""

import ast
import subprocess
import sys
from pathlib import Path

USE = """
import jax, numpy as np
from smallvit.flax import ViT, SPT

key = jax.random.PRNGKey(0)
img = jax.random.normal(key, (4, 256, 256, 3))
v = ViT(image_size=256, patch_size=16, num_classes=1000, dim=1024, depth=6, heads=16, mlp_dim=2048, dropout=0.1, emb_dropout=0.1)
init_rngs = {'params': jax.random.PRNGKey(1), 'dropout': jax.random.PRNGKey(2), 'emb_dropout': jax.random.PRNGKey(3)}
params = v.init(init_rngs, img)
output = v.apply(params, img, rngs=init_rngs)
print(output.shape)                                     # (4, 1000)
print(sum(np.prod(x.shape) for x in jax.tree.leaves(params)))
spt = SPT(dim=1024, patch_size=16)
spt_params = spt.init(init_rngs, img)
print(spt.apply(spt_params, img, rngs=init_rngs).shape)  # (4, 256, 1024)
"""  # noqa: E501

BLOCKED = "import sys; sys.modules['torch'] = None\n"


def _count() -> int:
    """The parameters of that model, from the paper: SPT, positions, blocks, head."""
    dim, mlp, heads, classes, tokens = 1024, 2048, 16, 1000, 256
    stack = 5 * 3 * 16**2
    spt = 2 * stack + stack * dim + dim
    attention = dim * 3 * dim + dim * dim + dim + heads
    block = 2 * 2 * dim + attention + dim * mlp + mlp + mlp * dim + dim
    return spt + dim + (tokens + 1) * dim + 6 * block + 2 * dim + dim * classes + classes


def test_the_promised_use_runs_without_torch():
    checks = "assert not any(n.startswith('torch') for n, m in sys.modules.items() if m)\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKED + USE + checks],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["(4, 1000)", str(_count()), "(4, 256, 1024)"]
    assert done.stderr == ""
    assert _count() == 55_613_000


def test_the_page_shows_that_use():
    page = (Path(__file__).parents[2] / "docs" / "flax.md").read_text()
    shown = page.partition("```python\n")[2].partition("```")[0]
    assert ast.dump(ast.parse(shown)) == ast.dump(ast.parse(USE))  # formatters lay it out anew
    assert f"{_count()}" in page
