"""Where to compute."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

DeviceName = Literal["auto", "cpu", "cuda", "mps"]

THREADS = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
"""Variables by which a user says how many threads compute; nothing else decides it then."""


def prefers_bf16(device: "torch.device") -> bool:
    """Whether a device is faster in bf16: a GPU that has it, a CPU with instructions for it."""
    import torch

    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)  # of AMX machines too
    return device.type == "cpu" and known is not None and bool(known())


def images_per_pass(device: "torch.device", size: tuple[int, int]) -> int:
    """How many images of a size to show at a time where no gradients are needed.

    On a CPU so few that the memory of a layer's tensors is not given back to the system and cleared
    anew each time (docs/performance.md).
    """
    if device.type != "cpu":
        return 256
    return max(8, min(64, 2**19 // (size[0] * size[1])))


def choose_device(name: str) -> "torch.device":
    """The device of that name; "auto" is a GPU if there is one.

    Raises:
        ValueError: This machine has no such device.
    """
    import torch

    there = ["cuda"] * torch.cuda.is_available() + ["mps"] * torch.backends.mps.is_available()
    there.append("cpu")
    kind, colon, number = name.partition(":") if isinstance(name, str) else (name, "", "")
    if name == "auto":
        return torch.device(there[0])
    count = torch.cuda.device_count() if kind == "cuda" else 1
    numbered = not colon or (number.isdecimal() and int(number) < count)
    if kind not in there or not numbered:
        raise ValueError(f"device is {name!r}: this machine has {', '.join(there)}")
    return torch.device(name)
