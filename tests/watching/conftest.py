"""Run folders as trainings leave them, written by hand, and a server that shows them."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smallvit.server import Limits
from smallvit.server.hosts import own_hosts
from smallvit.server.running import listen, make_server, url_of
from smallvit.watching.app import Watcher, make_app
from tests.server.live import PATIENCE

INFO = {
    "format": 2,
    "status": "training",
    "config": {"schedule": {"steps": 100}},
    "model": {"name": "cct_7_3x1"},
    "data": {"source": "/data/photos"},
}


def write_run(folder: Path, done: int, *, status: str = "training", **more) -> Path:
    """A run after so many of its 100 steps, which took a second per ten."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({**INFO, "status": status, **more}))
    (folder / "log.jsonl").touch()
    for step in range(10, done + 1, 10):
        log_steps(folder, step)
    return folder


def log_steps(folder: Path, step: int) -> None:
    """Another interval of its log."""
    train = {"kind": "train", "step": step, "images": 32 * step, "loss": 2 / step}
    train |= {"images_per_second": 320.0, "seconds": 1.0}
    val = {"kind": "val", "step": step, "accuracy": step / 200, "loss": 3 / step, "seconds": 0.5}
    with (folder / "log.jsonl").open("a") as log:
        log.write(json.dumps(train) + "\n" + json.dumps(val) + "\n")


@contextmanager
def watching(root: Path, **options) -> Iterator[str]:
    """The address of a server in a thread."""
    listener = listen("127.0.0.1", 0)
    app = make_app(Watcher(root, **options), own_hosts("127.0.0.1", "127.0.0.1", ()))
    server = make_server(app, Limits())
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
