"""The checker behind `--jaxtyping-packages`: beartype on array shapes and nothing else.

Plain values are left to the code's own checks, whose sentences the tests read.
"""

import typing

from jaxtyping import AbstractArray


def _mentions_array(hint: object) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_mentions_array(part) for part in typing.get_args(hint))


def check(function):
    from beartype import beartype  # a development dependency; unchecked runs do without

    hints = function.__annotations__
    function.__annotations__ = {name: h for name, h in hints.items() if _mentions_array(h)}
    try:
        return beartype(function)
    finally:
        function.__annotations__ = hints
