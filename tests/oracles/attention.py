"""Attention restated literally, one number after the other, in float64."""

import math

import numpy as np


def softmax(scores):
    raised = np.exp(scores - scores.max())
    return raised / raised.sum()


def linear(x, weights, name):
    bias = weights.get(f"{name}.bias", 0.0)
    return x @ weights[f"{name}.weight"].T + bias


def layer_norm(x, weights, name, eps=1e-5):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(x):
    return np.vectorize(lambda t: t * 0.5 * (1 + math.erf(t / math.sqrt(2))))(x)


def mlp(x, weights, name):
    return linear(gelu(linear(x, weights, f"{name}.fc1")), weights, f"{name}.fc2")


def heads_of(projected, num_heads, parts):
    """(N, parts·M·E) as parts arrays of (M, N, E)."""
    tokens, width = projected.shape
    head_dim = width // parts // num_heads
    cut = projected.reshape(tokens, parts, num_heads, head_dim)
    return [cut[:, part].transpose(1, 0, 2) for part in range(parts)]


def weights_of(q, k, scale, *, masked=False, bias=None, before=None, after=None):
    """Attention weights (M, n, N): every score one by one; scale a number or one a head."""
    num_heads, n, _ = q.shape
    tokens = k.shape[1]
    scale = np.broadcast_to(scale, num_heads)
    scores = np.zeros((num_heads, n, tokens))
    for head in range(num_heads):
        for i in range(n):
            for j in range(tokens):
                scores[head, i, j] = scale[head] * np.dot(q[head, i], k[head, j])
    if before is not None:
        scores = sum(before[old, :, None, None] * scores[old][None] for old in range(num_heads))
    if bias is not None:
        scores = scores + bias
    weights = np.zeros_like(scores)
    for head in range(num_heads):
        for i in range(n):
            row = scores[head, i].copy()
            if masked and n > 1:
                row[i] = -np.inf
            weights[head, i] = softmax(row)
    if after is not None:
        weights = sum(after[old, :, None, None] * weights[old][None] for old in range(num_heads))
    return weights


def attention(x, weights, num_heads, scale, *, context=None, masked=False, talking=False):
    """One image's tokens (N, D) through a multi-head attention."""
    inner = weights["qkv.weight"].shape[0] // 3
    sources = (x, x, x) if context is None else (x, context, context)
    projected = [
        source @ weights["qkv.weight"][part * inner : (part + 1) * inner].T
        + (weights["qkv.bias"][part * inner : (part + 1) * inner] if "qkv.bias" in weights else 0)
        for part, source in enumerate(sources)
    ]
    q, k, v = (heads_of(part, num_heads, 1)[0] for part in projected)
    mixing = {}
    if talking:
        mixing = {"before": weights["talking.before"], "after": weights["talking.after"]}
    attended = weights_of(q, k, scale, masked=masked, **mixing)
    y = np.concatenate([attended[head] @ v[head] for head in range(num_heads)], -1)
    return linear(y, weights, "proj")


def window_attention(x, weights, num_heads, grid, window, shift, scale, *, masked=False):
    """One image through Swin's attention: each window by its own list of places."""
    rows, columns = grid
    height, width = min(window, rows), min(window, columns)
    up = shift if rows > height else 0
    left = shift if columns > width else 0
    q, k, v = heads_of(linear(x, weights, "qkv"), num_heads, 3)
    table = weights["bias_table"]
    out = np.zeros((rows * columns, num_heads * q.shape[-1]))

    def region(place, size, side, by):
        """Which of the three bands of the rolled axis a rolled place lies in."""
        if not by:
            return 0
        return 0 if place < size - side else 1 if place < size - by else 2

    for top in range(0, rows, height):
        for start in range(0, columns, width):
            rolled = [(top + i, start + j) for i in range(height) for j in range(width)]
            tokens = [((r + up) % rows) * columns + (c + left) % columns for r, c in rolled]
            bias = np.zeros((num_heads, len(tokens), len(tokens)))
            for a, (ra, ca) in enumerate(rolled):
                for b, (rb, cb) in enumerate(rolled):
                    index = (ra - rb + height - 1) * (2 * width - 1) + (ca - cb + width - 1)
                    bias[:, a, b] = table[index]
                    same = region(ra, rows, height, up) == region(rb, rows, height, up)
                    same &= region(ca, columns, width, left) == region(cb, columns, width, left)
                    if not same:
                        bias[:, a, b] += -100.0
            qw, kw, vw = (part[:, tokens] for part in (q, k, v))
            attended = weights_of(qw, kw, scale, masked=masked, bias=bias)
            y = np.concatenate([attended[head] @ vw[head] for head in range(num_heads)], -1)
            out[tokens] = y
    return linear(out, weights, "proj")


def performer(x, weights):
    """One image through T2T's performer module."""
    width = weights["proj.weight"].shape[0]
    k, q, v = np.split(linear(layer_norm(x, weights, "norm1"), weights, "kqv"), 3, -1)
    rows = weights["rows"]

    def feature(t):
        return np.exp(rows @ t - (t @ t) / 2) / math.sqrt(len(rows))

    y = np.zeros((len(x), width))
    for i in range(len(x)):
        chance = np.array([feature(q[i]) @ feature(k[j]) for j in range(len(x))])
        y[i] = chance @ v / (chance.sum() + 1e-8)
    x = v + linear(y, weights, "proj")
    return x + mlp(layer_norm(x, weights, "norm2"), weights, "mlp")


def token_transformer(x, weights, scale, *, masked=False):
    """One image through the small T2T's module: V + proj(attention), then the MLP."""
    normed = layer_norm(x, weights, "norm1")
    inner = {key.removeprefix("attention."): value for key, value in weights.items()}
    q, k, v = heads_of(linear(normed, inner, "qkv"), 1, 3)
    attended = weights_of(q, k, scale, masked=masked)
    x = v[0] + linear(attended[0] @ v[0], inner, "proj")
    return x + mlp(layer_norm(x, weights, "norm2"), weights, "mlp")


def conv_attention(x, weights, num_heads, grid, head_dim):
    """One image through CvT's attention."""
    from tests.oracles.tokens import convolve

    image = x.T.reshape(-1, *grid)

    def project(name, stride):
        y = convolve(image, weights[f"{name}.conv.weight"], None, stride, 1, depthwise=True)
        norm = {part: weights[f"{name}.norm.{part}"] for part in ("weight", "bias")}
        mean, var = weights[f"{name}.norm.running_mean"], weights[f"{name}.norm.running_var"]
        y = (y - mean[:, None, None]) / np.sqrt(var[:, None, None] + 1e-5)
        y = y * norm["weight"][:, None, None] + norm["bias"][:, None, None]
        return linear(y.reshape(len(y), -1).T, weights, f"{name}.proj")

    (q,) = heads_of(project("q", 1), num_heads, 1)
    k, v = heads_of(project("kv", 2), num_heads, 2)
    attended = weights_of(q, k, head_dim**-0.5)
    y = np.concatenate([attended[head] @ v[head] for head in range(num_heads)], -1)
    return linear(y, weights, "proj")
