"""Where the compiler has to write a result to memory."""

from torch import Tensor


def written(x: Tensor) -> Tensor:
    """The same tensor, which a compiler may not fuse into what reads it.

    A pixel of a moved image reads many pixels of the image before: fused, each of them would be
    computed again for every reader. A view with strides needs the tensor in memory.
    """
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())
