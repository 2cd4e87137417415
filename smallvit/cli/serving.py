"""`smallvit serve`."""

import math
from typing import Annotated

import typer

from smallvit.cli.app import app, refusal
from smallvit.formats import TRUST, sources


@app.command()
def serve(
    source: Annotated[
        str,
        typer.Argument(metavar="RUN|FILE", help=f"What to serve: {sources()}."),
    ],
    host: Annotated[
        str,
        typer.Option(help="The address to listen on; 0.0.0.0 is every address of this machine."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes any free one.")] = 8000,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    trust: Annotated[bool, typer.Option("--trust", help=TRUST)] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name under which a reverse proxy asks for it, besides this machine's own; "
            "may be repeated."
        ),
    ] = None,
    max_mb: Annotated[float, typer.Option(help="Largest upload in megabytes.")] = 10,
    max_pixels: Annotated[int, typer.Option(help="Largest image in pixels.")] = 50_000_000,
    queue: Annotated[int, typer.Option(help="Images that may wait for the model.")] = 16,
    requests: Annotated[
        int, typer.Option(help="Predictions at once, those being uploaded included.")
    ] = 64,
    seconds: Annotated[float, typer.Option(help="Longest time for one request.")] = 30,
) -> None:
    """Serve a model over HTTP, with a page to try it on.

    POST /predict takes an image; GET /healthz, /metrics and /openapi.json are for
    tools. Stop it with Ctrl+C.
    """
    from smallvit.server import Limits
    from smallvit.server import serve as run_server

    if not math.isfinite(1e6 * max_mb):
        raise refusal(f"--max-mb is {max_mb}: expected is a number of megabytes")
    limits = Limits(
        upload=round(1e6 * max_mb),
        pixels=max_pixels,
        queue=queue,
        requests=requests,
        seconds=seconds,
    )
    run_server(
        source,
        host=host,
        port=port,
        device=device,
        trust=trust,
        allow_hosts=allow_host or (),
        limits=limits,
    )
