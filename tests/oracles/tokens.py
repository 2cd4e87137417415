"""Tokenizers, merging, pooling and positions restated literally in float64."""

import numpy as np

from tests.oracles.attention import gelu, layer_norm, linear, softmax

OFFSETS = {
    "diagonal": [(-1, -1), (-1, 1), (1, -1), (1, 1)],
    "cardinal": [(-1, 0), (1, 0), (0, -1), (0, 1)],
}
OFFSETS["all"] = OFFSETS["diagonal"] + OFFSETS["cardinal"]


def shifted_stack(image, shift, directions="diagonal"):
    """(C, H, W) to (V·C, H, W): pixel by pixel, zero outside the image."""
    _, height, width = image.shape
    views = [image]
    for down, right in OFFSETS[directions]:
        view = np.zeros_like(image)
        for r in range(height):
            for c in range(width):
                row, column = r + down * shift, c + right * shift
                if 0 <= row < height and 0 <= column < width:
                    view[:, r, c] = image[:, row, column]
        views.append(view)
    return np.concatenate(views)


def patches(image, size):
    """(C, H, W) to (N, P·P·C): row, column, channel, channel fastest."""
    _, height, width = image.shape
    return np.stack(
        [
            image[:, r : r + size, c : c + size].transpose(1, 2, 0).ravel()
            for r in range(0, height, size)
            for c in range(0, width, size)
        ]
    )


def spt(image, weights, patch_size, shift, directions="diagonal"):
    stack = patches(shifted_stack(image, shift, directions), patch_size)
    return linear(layer_norm(stack, weights, "norm"), weights, "proj")


def convolve(image, kernel, bias, stride, padding, *, depthwise=False):
    """A convolution by its definition; depthwise: one input channel a group of outputs."""
    outputs, _, side, _ = kernel.shape
    image = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    rows = (image.shape[1] - side) // stride + 1
    columns = (image.shape[2] - side) // stride + 1
    result = np.zeros((outputs, rows, columns))
    per_group = outputs // len(image)
    for o in range(outputs):
        source = image[o // per_group][None] if depthwise else image
        for r in range(rows):
            for c in range(columns):
                part = source[:, r * stride : r * stride + side, c * stride : c * stride + side]
                result[o, r, c] = (part * kernel[o]).sum() + (0 if bias is None else bias[o])
    return result


def max_pool(image):
    """3×3, stride 2, padding 1."""
    image = np.pad(image, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    rows, columns = (image.shape[1] - 3) // 2 + 1, (image.shape[2] - 3) // 2 + 1
    return np.array(
        [
            [
                [m[2 * r : 2 * r + 3, 2 * c : 2 * c + 3].max() for c in range(columns)]
                for r in range(rows)
            ]
            for m in image
        ]
    )


def batch_norm(image, weights, name, eps=1e-5):
    """With the statistics that training has left."""
    mean, var = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
    scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return np.stack(
        [
            (channel - mean[i]) / np.sqrt(var[i] + eps) * scale[i] + shift[i]
            for i, channel in enumerate(image)
        ]
    )


def pool_by_two(image, of):
    """2×2 pixels, at the border of an odd map those that are there."""
    rows, columns = range(0, image.shape[1], 2), range(0, image.shape[2], 2)
    return np.array([[[of(m[r : r + 2, c : c + 2]) for c in columns] for r in rows] for m in image])


def relu(x):
    return np.maximum(x, 0)


def residual_block(image, weights, stride=1, *, padded=False, act=relu):
    """act(shortcut + branch)."""
    branch = convolve(image, weights["conv1.weight"], None, stride, 1)
    branch = act(batch_norm(branch, weights, "bn1"))
    branch = batch_norm(convolve(branch, weights["conv2.weight"], None, 1, 1), weights, "bn2")
    if padded:
        around = np.zeros_like(branch)
        around[: len(image)] = image[:, ::stride, ::stride]
    elif "shortcut.conv.weight" in weights:
        around = pool_by_two(image, np.mean) if stride == 2 else image
        around = convolve(around, weights["shortcut.conv.weight"], None, 1, 0)
        around = batch_norm(around, weights, "shortcut.bn")
    else:
        around = image
    return act(around + branch)


def conv_stem(image, weights, strides, residuals, act=relu):
    """Convolution, norm, activation; convolution, norm, pool, activation; residual blocks."""
    for number, stride in enumerate(strides, 1):
        image = convolve(image, weights[f"conv{number}.weight"], None, stride, 1)
        image = batch_norm(image, weights, f"bn{number}")
        image = act(image if number == 1 else pool_by_two(image, np.max))
    for number in range(residuals):
        prefix = f"residuals.{number}."
        inner = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        image = residual_block(image, inner, act=act)
    return image.reshape(len(image), -1).T


def pooled_block(image, weights, act):
    """Convolution, pool, norm, activation; residual blocks."""
    image = pool_by_two(convolve(image, weights["conv.weight"], None, 1, 1), np.max)
    image = act(batch_norm(image, weights, "bn"))
    for number in range(len({k.split(".")[1] for k in weights if k.startswith("residuals.")})):
        prefix = f"residuals.{number}."
        inner = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        image = residual_block(image, inner, act=act)
    return image


def conv_merging(x, weights, grid, act=relu):
    inner = {k.removeprefix("block."): v for k, v in weights.items() if k.startswith("block.")}
    image = x.T.reshape(-1, *grid)
    pooled = "conv.weight" in inner
    image = pooled_block(image, inner, act) if pooled else residual_block(image, inner, 2, act=act)
    tokens = linear(image.reshape(len(image), -1).T, weights, "proj")
    return tokens + weights["positions.table"][0]


def depthwise_mlp(x, weights, grid):
    """fc2(gelu(z + dw(z))) with z = fc1(x), every hidden channel a map of its own."""
    z = linear(x, weights, "fc1")
    image = z.T.reshape(-1, *grid)
    near = convolve(image, weights["depthwise.weight"], None, 1, 1, depthwise=True)
    return linear(gelu(z + near.reshape(len(near), -1).T), weights, "fc2")


def conv_tokenizer(image, weights, layers, stride, padding):
    for layer in range(layers):
        image = convolve(image, weights[f"convs.{layer}.weight"], None, stride, padding)
        image = max_pool(np.maximum(image, 0))
    return image.reshape(len(image), -1).T


def soft_split(image, kernel, stride, padding):
    """Overlapping patches, channel slowest."""
    image = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    return np.stack(
        [
            image[:, r : r + kernel, c : c + kernel].ravel()
            for r in range(0, image.shape[1] - kernel + 1, stride)
            for c in range(0, image.shape[2] - kernel + 1, stride)
        ]
    )


def patch_merging(x, weights, grid):
    rows, columns = grid
    merged = [
        np.concatenate(
            [x[(r + dr) * columns + c + dc] for dr, dc in ((0, 0), (1, 0), (0, 1), (1, 1))]
        )
        for r in range(0, rows, 2)
        for c in range(0, columns, 2)
    ]
    return linear(layer_norm(np.stack(merged), weights, "norm"), weights, "proj")


def pit_pooling(x, weights, grid):
    image = x[1:].T.reshape(-1, *grid)
    kernel, bias = weights["depthwise.weight"], weights["depthwise.bias"]
    image = convolve(image, kernel, bias, 2, 1, depthwise=True)
    places = linear(image.reshape(len(image), -1).T, weights, "proj")
    return np.concatenate([linear(x[:1], weights, "class_proj"), places])


def spt_pooling(x, weights, grid, prefix):
    inner = {key.removeprefix("spt."): value for key, value in weights.items()}
    places = spt(x[prefix:].T.reshape(-1, *grid), inner, 2, 1)
    if not prefix:
        return places
    return np.concatenate([linear(x[:prefix], weights, "class_proj"), places])


def seq_pool(x, weights):
    chance = softmax(linear(x, weights, "score")[:, 0])
    return sum(weight * token for weight, token in zip(chance, x, strict=True))


def sinusoid(tokens, dim):
    table = np.zeros((1, tokens, dim))
    for position in range(tokens):
        for column in range(dim):
            angle = position / 10000 ** (2 * (column // 2) / dim)
            table[0, position, column] = np.sin(angle) if column % 2 == 0 else np.cos(angle)
    return table
