"""Names under which a server may be asked for.

A page of another site can make a browser send requests to this machine, and by changing the address
of its own name even read the answers (DNS rebinding). It cannot change the name that the browser
then sends as the Host. So a server on loopback answers to names of this machine only.
"""

import ipaddress
import re
from collections.abc import Sequence

_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def host_name(header: str) -> str:
    """The name in a Host header, without its port, in one spelling."""
    if header.startswith("["):
        name = header[1:].partition("]")[0]
    else:
        name = header if header.count(":") > 1 else header.partition(":")[0]
    return name.rstrip(".").lower()


def check_hosts(names: Sequence[str]) -> None:
    """Refuses what is not the name of a host.

    Raises:
        ValueError: It is an address with more in it, or nothing.
    """
    for name in names:
        if not _NAME.fullmatch(name.lower()) and not _is_address(name):
            raise ValueError(
                f"allow_hosts holds {name!r}: expected is a name such as birds.example, without "
                "http:// and without a port"
            )


def own_hosts(host: str, address: str, allowed: Sequence[str]) -> frozenset[str] | None:
    """The names that a server answers to; None for every name.

    Args:
        host: Where it was told to listen.
        address: Where it listens.
        allowed: Further names.
    """
    if not allowed and not ipaddress.ip_address(address).is_loopback:
        return None
    return frozenset(map(host_name, ("localhost", "127.0.0.1", "::1", host, address, *allowed)))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
