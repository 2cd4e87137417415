"""Muon: matrices move by an orthogonal matrix, everything else by AdamW, which is here too.

Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024): the momentum of a
matrix U S Vᵀ is replaced by about U Vᵀ, so that all directions are learned equally fast. Weight
decay is decoupled, p ← p − lr · decay · p, and needed: without it the weights grow and learning
slows down (docs/experiments.md).

AdamW is PyTorch's without the compiler, whose import takes a second of a short run: PyTorch's own
tells the compiler not to look inside, and loads it in order to say so.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from smallvit.devices import prefers_bf16
from smallvit.models.base import Backbone
from smallvit.models.parameters import input_sizes
from smallvit.transfer.state_dicts import head_names, input_keys_of_timm

_MOMENTUM = 0.95
#: Coefficients of x ← a x + b x³ + c x⁵ on the singular values; five rounds bring them near 1.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5


def matrices(model: nn.Module) -> set[str]:
    """The parameters that Muon moves: weights of linear layers and convolutions.

    The layer that reads the image, the head, depthwise convolutions and single rows are left to
    AdamW, and so is all that is no weight of such a layer: norms, biases, positions, tokens.
    """
    if isinstance(model, Backbone):
        reading = set(input_sizes(type(model), model.config))
    else:
        reading = set(input_keys_of_timm(model))
    heads = head_names(model)
    return {
        f"{name}.weight"
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear | nn.Conv2d)
        and getattr(part, "groups", 1) == 1
        and min(part.weight.flatten(1).shape) > 1
        and f"{name}.weight" not in reading
        and not any(name == head or name.startswith(f"{head}.") for head in heads)
    }


def orthogonalised(batch: Float[Tensor, "n r c"]) -> Float[Tensor, "n r c"]:
    """Each matrix U S Vᵀ as about U Vᵀ, by five rounds of Newton and Schulz.

    Singular values end between about 0.7 and 1.2, which is near enough, and in bf16 too.
    """
    a, b, c = _QUINTIC
    standing = batch.shape[1] > batch.shape[2]
    norm = torch.linalg.vector_norm(batch, dim=(1, 2), keepdim=True, dtype=torch.float32)
    x = batch / (norm + 1e-7).to(batch.dtype)
    for _ in range(_ROUNDS):
        gram = x.mT @ x if standing else x @ x.mT
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, x, gram, beta=a) if standing else torch.baddbmm(x, gram, x, beta=a)
    return x


def _undecorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method as it was written, where PyTorch has kept it."""
    return getattr(function, "__wrapped__", function)


class AdamW(torch.optim.AdamW):
    """PyTorch's, step by step the same numbers."""

    add_param_group = _undecorated(torch.optim.AdamW.add_param_group)
    zero_grad = _undecorated(torch.optim.AdamW.zero_grad)
    step = torch.no_grad()(_undecorated(torch.optim.AdamW.step))


class Muon(AdamW):
    """AdamW whose groups with `orthogonal` take steps of Muon instead.

    The state of a matrix is its momentum; that of all others is AdamW's. Learning rates may be
    tensors, and nothing waits for a GPU, so that a CUDA graph can hold a step.
    """

    def __init__(self, groups: list[dict[str, Any]], **options: Any) -> None:
        super().__init__(groups, **options)
        self._step_supports_amp_scaling = False  # a scaler shall divide the gradients itself

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Without what AdamW does for states of older versions, in which matrices have a step."""
        torch.optim.Optimizer.__setstate__(self, state)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes a step; the closure, if there is one, computes the loss and the gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = self.param_groups
        for group in groups:
            if group["orthogonal"]:
                self._move(group)
        try:
            self.param_groups = [group for group in groups if not group["orthogonal"]]
            super().step()
        finally:
            self.param_groups = groups
        return loss

    def _move(self, group: dict[str, Any]) -> None:
        """One step of a group of matrices, those of one shape at once."""
        moved = [p for p in group["params"] if p.grad is not None]
        if not moved:
            return
        for parameter in moved:
            if not self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        momenta = [self.state[parameter]["momentum"] for parameter in moved]
        gradients = [parameter.grad for parameter in moved]
        torch._foreach_lerp_(momenta, gradients, 1 - _MOMENTUM)
        updates = torch._foreach_lerp(gradients, momenta, _MOMENTUM)  # Nesterov
        torch._foreach_mul_(moved, 1 - group["lr"] * group["weight_decay"])
        alike: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        for parameter, update in zip(moved, updates, strict=True):
            shape = (len(parameter), parameter[0].numel())
            alike.setdefault(shape, []).append((parameter, update))
        for shape, pairs in alike.items():
            self._turn(shape, pairs, group["lr"])

    def _turn(
        self, shape: tuple[int, int], pairs: list[tuple[Tensor, Tensor]], lr: float | Tensor
    ) -> None:
        """Moves parameters, all of one shape as matrices, against their updates made orthogonal."""
        device = pairs[0][0].device
        dtype = torch.bfloat16 if prefers_bf16(device) else torch.float32
        batch = torch.empty(len(pairs), *shape, device=device, dtype=dtype)
        for matrix, (parameter, update) in zip(batch, pairs, strict=True):
            _shaped_as(parameter, matrix).copy_(update)
        batch = orthogonalised(batch).float() * (lr * max(1.0, shape[0] / shape[1]) ** 0.5)
        for matrix, (parameter, _) in zip(batch, pairs, strict=True):
            parameter.sub_(_shaped_as(parameter, matrix))


def _shaped_as(parameter: Tensor, matrix: Float[Tensor, "r c"]) -> Tensor:
    """A matrix as a parameter's weights, which lie in memory as the parameter's do.

    The order of columns makes no difference to singular values, and copies in one go are faster.
    """
    if parameter.ndim == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
        _, channels, height, width = parameter.shape
        return matrix.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2)
    return matrix.unflatten(1, parameter.shape[1:])
