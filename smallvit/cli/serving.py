"""`smallvit serve`."""

from typing import Annotated

import typer

from smallvit.cli.app import app
from smallvit.formats import sources


@app.command()
def serve(
    source: Annotated[
        str,
        typer.Argument(metavar="RUN|FILE", help=f"What to serve: {sources()}."),
    ],
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 is all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any that is free.")] = 8000,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    max_mb: Annotated[float, typer.Option(help="Megabytes of an upload.")] = 10,
    max_pixels: Annotated[int, typer.Option(help="Pixels of an image.")] = 50_000_000,
    queue: Annotated[int, typer.Option(help="Images that may wait for the model.")] = 16,
    requests: Annotated[int, typer.Option(help="Predictions at once, uploads included.")] = 64,
    seconds: Annotated[float, typer.Option(help="Time for a request.")] = 30,
) -> None:
    """Serve a model over HTTP, with a page to try it on.

    POST /predict takes an image; GET /healthz, /metrics and /openapi.json tell the
    rest. Stop it with Ctrl+C.
    """
    from smallvit.server import Limits
    from smallvit.server import serve as run_server

    limits = Limits(
        upload=round(1e6 * max_mb),
        pixels=max_pixels,
        queue=queue,
        requests=requests,
        seconds=seconds,
    )
    try:
        run_server(source, host=host, port=port, device=device, limits=limits)
    except ImportError as error:
        raise ValueError(str(error)) from error
