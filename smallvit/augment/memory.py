"""Where the compiler has to stop and write a result down."""

from torch import Tensor


def written(x: Tensor) -> Tensor:
    """The same tensor, which a compiler may not merge into those who read it.

    A pixel of a moved image reads many pixels of the one before: merged, each of them would be
    worked out again for every reader. Changing strides needs memory to change them on.
    """
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())
