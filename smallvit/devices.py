"""Where to compute."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

DeviceName = Literal["auto", "cpu", "cuda", "mps"]


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
