"""The least time that each part of a training step can take, beside what it takes on a GPU.

    python -m benchmarks.floors benchmarks/results/train_step_narrow_h200.json

For every profiled row of files of `benchmarks.train_step --profile`. A part is bound by its bytes
or by its operations, whichever take longer, layer by layer; needs no GPU. Counted are, in bf16 with
narrow tokens: matrix products and convolutions forward, for the gradient of the input and for that
of the weights; norms with the residual and the branch that join them (8 bytes a number each way);
activations (4 forward, 6 backward); the last pool of a convolutional tokenizer (its map and a byte
for each pooled number, each way); q, k, v and the output of attention once forward, and these
with their gradients backward; AdamW's four numbers of each weight. What the augmentation, SPT's
stack and copies move is not counted, so elementwise parts can take longer for these.
"""

import argparse
import collections
import json
from pathlib import Path

import torch
from torch import nn

import smallvit
from smallvit.layers.attention import MultiHead
from smallvit.layers.tokenizers import ConvTokenizer

BYTES = 4.22e12  # a second, which an elementwise kernel reached (docs/performance.md)
OPERATIONS = 989e12  # a second in bf16, of the data sheet
KINDS = ("matmul", "attention", "norm", "elementwise", "convolution", "pool", "optimiser")


def floors(name):
    """Milliseconds by kind: of an image, and of a step beside its images."""
    model = smallvit.create_model(name, num_classes=100, image_size=32).train()
    image, step = collections.Counter(), collections.Counter()

    def product(kind, operations, before, after, first):
        """Forward, and backward with respect to input and weights; an image has no gradient."""
        times = 2 if first else 3
        moved = 2 * times * (before + after)
        image[kind] += max(times * operations / OPERATIONS, moved / BYTES) * 1e3

    def look(module, inputs, output):
        """Adds what one call of a module costs at least."""
        before = inputs[0].numel() if inputs else 0
        if isinstance(module, nn.Linear):
            product("matmul", 2 * before * module.out_features, before, output.numel(), False)
        elif isinstance(module, nn.Conv2d):
            per_output = 2 * module.weight[0].numel()
            first = inputs[0].shape[1] == 3
            product("convolution", per_output * output.numel(), before, output.numel(), first)
        elif isinstance(module, nn.LayerNorm):
            image["norm"] += 16 * before / BYTES * 1e3
        elif isinstance(module, nn.GELU):
            image["elementwise"] += 10 * before / BYTES * 1e3
        elif isinstance(module, ConvTokenizer):
            image["pool"] += 22 * output.numel() / BYTES * 1e3
        elif isinstance(module, MultiHead):
            tokens = before // inputs[0].shape[-1]
            width = module.num_heads * module.head_dim
            image["attention"] += 12 * 2 * tokens * width / BYTES * 1e3

    for module in model.modules():
        module.register_forward_hook(look)
    with torch.no_grad():
        model(torch.zeros(1, 3, 32, 32))
    weights = sum(p.numel() for p in model.parameters())
    step["optimiser"] = 28 * weights / BYTES * 1e3  # read weight, gradient, moments; write three
    return image, step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--model", help="of rows that are not called by their model")
    args = parser.parse_args()
    print(f"| measured ÷ floor, ms | batch | {' | '.join(KINDS)} | sum |")
    print("|---|--:|" + "--:|" * (len(KINDS) + 1))
    known = {}
    for path in args.files:
        for label, found in json.loads(path.read_text())["results"].items():
            name, batch, _ = label.rsplit(" ", 2)
            if "profile" not in found:
                continue
            model = args.model or name
            if model not in known:
                known[model] = floors(model)
            image, step = known[model]
            texts, least, whole = [], 0.0, 0.0
            for kind in KINDS:
                took = found["profile"]["ms"].get(kind, 0.0)
                bound = image[kind] * int(batch) + step[kind]
                texts.append(f"{took:.2f} ÷ {bound:.2f}" if bound and took else "")
                least, whole = least + bound, whole + took
            print(f"| {name} | {int(batch):,} | {' | '.join(texts)} | {whole:.2f} ÷ {least:.2f} |")


if __name__ == "__main__":
    main()
