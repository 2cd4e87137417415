"""Philox4x32-10 (Salmon et al., 2011) in plain integer tensors."""

from torch import Tensor

WORD = 0xFFFFFFFF
_HALF = 0xFFFF
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def multiply(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low half of a 32×32-bit product, by half words so that int64 never overflows."""
    low = word * (factor & _HALF)
    high = word * (factor >> 16) + (low >> 16)
    return high >> 16, ((high & _HALF) << 16) | (low & _HALF)


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random 32-bit words for each counter; all words are int64 tensors that broadcast."""
    a, b, c, d = counter
    low_key, high_key = key
    for _ in range(_ROUNDS):
        a_high, a_low = multiply(a, _FACTORS[0])
        c_high, c_low = multiply(c, _FACTORS[1])
        a, b, c, d = c_high ^ b ^ low_key, c_low, a_high ^ d ^ high_key, a_low
        low_key, high_key = (low_key + _WEYL[0]) & WORD, (high_key + _WEYL[1]) & WORD
    return a, b, c, d
