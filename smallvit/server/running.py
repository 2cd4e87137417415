"""`serve`: a server from its socket to its last response."""

import ipaddress
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from smallvit.arguments import Port, checked
from smallvit.extras import require
from smallvit.inference import Predictor
from smallvit.server.hosts import check_hosts, own_hosts
from smallvit.server.limits import Limits
from smallvit.text import shown

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from smallvit.runs.folder import Run

logger = logging.getLogger(__name__)

_CONNECTIONS = 500
"""More get a bare 503: a process may hold about a thousand files open."""


@checked
def serve(
    source: "str | os.PathLike[str] | Run | Predictor",
    *,
    host: str = "127.0.0.1",
    port: Port = 8000,
    device: str = "auto",
    trust: bool = False,
    allow_hosts: Sequence[str] = (),
    limits: Limits | None = None,
) -> None:
    """Serves a trained model over HTTP until it is told to stop.

    POST /predict takes an image, GET / is a page to try it on. SIGTERM and SIGINT stop it: no new
    connections, and every request that has begun gets its response.

    Args:
        source: A run folder, a file of `export`, or a predictor.
        host: The address to listen on; the default is reached from this machine only.
        port: 0 takes any that is free; the log says which.
        device: auto, cpu, cuda or mps; auto is a GPU if there is one.
        trust: Whether a .pt2 file, which can hold code, may be opened.
        allow_hosts: Names under which clients may ask for it, besides those of this machine: those
            of a reverse proxy. Without any, a server that other machines reach answers to every
            name.
        limits: What one request may cost.

    Raises:
        ValueError: The source is not a model, or there is no such device, port or name.
        OSError: The address is taken, or is not of this machine.
        ImportError: The packages of the extra "serve" are not installed.
    """
    require_packages("serving")
    from smallvit.server.app import make_app

    predictor = Predictor.open(source, device, trust=trust)
    check_hosts(allow_hosts)
    if not host or "\0" in host:
        raise ValueError(f"host is {host!r}: expected is a name or an address, such as 127.0.0.1")
    listener = listen(host, port)
    address = listener.getsockname()
    hosts = own_hosts(host, address[0], allow_hosts)
    limits = limits or Limits()
    server = make_server(make_app(predictor, limits, hosts=hosts), limits)
    name = shown(str(predictor.card.model.get("name")))
    if not ipaddress.ip_address(address[0]).is_loopback:
        logger.warning(
            "other machines can reach this server: it has no authentication and no encryption, so "
            "put a reverse proxy in front of it"
        )
    classes = len(predictor.classes)
    logger.info("%s, %s classes: %s", name, f"{classes:,}", url_of(listener))
    # The sender of a damaged image is told; strangers need not fill the log with them.
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    run(server, listener)
    logger.info("stopped")


def require_packages(purpose: str) -> None:
    """Refuses to begin without the packages of the extra "serve".

    Raises:
        ImportError: One is missing; the message holds the command that installs it.
    """
    for package in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        require(package, "serve", purpose)


def make_server(app: "ASGIApp", limits: Limits) -> "uvicorn.Server":
    """A server of an application, whose connections are held to the limits."""
    import uvicorn

    from smallvit.server.connections import DRAIN_SECONDS, Connection

    protocol: Any = partial(Connection, limits)
    config = uvicorn.Config(
        app,
        http=protocol,
        loop="asyncio",
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS,
        # Every connection is gone by then, whatever its client does.
        timeout_graceful_shutdown=math.ceil(limits.seconds + DRAIN_SECONDS) + 5,
    )
    return uvicorn.Server(config)


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections.

    Raises:
        OSError: The address is taken, or is not of this machine.
    """
    try:
        known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = known[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(_CONNECTIONS)  # clients may come before the server is ready
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise OSError(
            f"cannot listen on {shown(host)}, port {port}: {error.strerror or error}; choose "
            "another address or port"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The address of a socket, as a browser takes it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(server: "uvicorn.Server", listener: socket.socket) -> None:
    """Serves until a signal stops it; uvicorn sends itself that again, which must be no error."""
    main = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGTERM, signal.SIGINT) if main else ()
    before = {each: signal.signal(each, lambda *_: None) for each in signals}
    try:
        server.run([listener])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
