"""A server under load: which responses come, how soon, and what memory it takes.

    OMP_NUM_THREADS=1 python -m benchmarks.serve RUN
    OMP_NUM_THREADS=1 python -m benchmarks.serve            # an untrained cct_7_3x1

Clients send photographs of about 300 × 400 pixels, one after the other, over connections that they
keep. Every tenth request is malformed: a file that is cut, changed (which some images survive), too
large or not an image, a broken form, a wrong parameter. The server is a process of its own; its
resident memory is read while it runs, and at the end it is stopped in the middle of requests.
"""

import argparse
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
from PIL import Image


def photo(seed: int) -> bytes:
    """A JPEG of smooth colours with some noise."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), np.uint8))
    height, width = (int(side) for side in random.integers(240, 480, 2))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    noisy = (smooth + random.integers(-8, 9, smooth.shape)).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, "JPEG", quality=90)
    return file.getvalue()


def malformed(number: int, data: bytes) -> dict:
    """A request that is wrong in one of ten ways."""
    random = np.random.default_rng(number)
    changed = bytearray(data)
    for at in random.integers(0, len(data), 20):
        changed[at] = int(random.integers(0, 256))
    jpeg = {"Content-Type": "image/jpeg"}
    ways: list[dict] = [
        {"content": data[: len(data) // 2], "headers": jpeg},
        {"content": bytes(changed), "headers": jpeg},
        {"content": b"", "headers": jpeg},
        {"content": b"no image at all", "headers": jpeg},
        {"content": bytes(10_100_000), "headers": jpeg},
        {"content": data, "headers": {"Content-Type": "text/plain"}},
        {"files": {"photo": data}},
        {"content": b"--x\r\nno form", "headers": {"Content-Type": "multipart/form-data"}},
        {"content": data, "headers": jpeg, "params": {"top": "many"}},
        {"content": (bytes(65_536) for _ in range(160)), "headers": jpeg},
    ]
    return ways[number // 10 % len(ways)]


def resident(process: int) -> float:
    """Megabytes of memory a process holds."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1e3
    raise ValueError(f"process {process} is gone")


class Load:
    """Requests from several clients, counted together."""

    def __init__(self, address: str, process: int, marks: list[int], explained: int) -> None:
        self.client = httpx.Client(base_url=address, timeout=60)
        self.photos = [photo(seed) for seed in range(50)]
        self.process, self.marks, self.explained = process, marks, explained
        self.statuses: Counter[str] = Counter()
        self.times: list[float] = []
        self.memory: dict[int, float] = {}
        self._lock = threading.Lock()

    def ask(self, number: int) -> None:
        """Sends one request and counts its response."""
        data = self.photos[number % len(self.photos)]
        wrong = number % 10 == 3
        request = malformed(number, data) if wrong else {"files": {"image": data}}
        if not wrong and self.explained and number % self.explained == 0:
            request["params"] = {"explain": "true"}
        started = time.perf_counter()
        try:
            status = str(self.client.post("/predict", **request).status_code)
        except httpx.HTTPError as error:
            status = type(error).__name__
        seconds = time.perf_counter() - started
        with self._lock:
            self.statuses[status] += 1
            if status == "200":
                self.times.append(seconds)
            if (done := self.statuses.total()) in self.marks:
                self.memory[done] = resident(self.process)


def drain(address: str, running: "subprocess.Popen[str]", data: bytes, clients: int) -> str:
    """What becomes of requests that are on their way when the server is told to stop."""
    statuses: Counter[str] = Counter()
    begun, stopped = threading.Barrier(clients + 1), threading.Event()

    def ask() -> None:
        def body():
            yield data[:100]
            begun.wait()
            stopped.wait()
            yield data[100:]

        jpeg = {"Content-Type": "image/jpeg"}
        try:
            response = httpx.post(f"{address}/predict", content=body(), headers=jpeg, timeout=60)
            statuses[str(response.status_code)] += 1
        except httpx.HTTPError as error:
            statuses[type(error).__name__] += 1

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    begun.wait()
    time.sleep(0.25)  # what was sent arrives
    running.send_signal(signal.SIGTERM)
    time.sleep(0.25)
    stopped.set()
    for thread in threads:
        thread.join()
    counts = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
    return f"{counts}; exit code {running.wait(60)}"


def untrained(folder: Path) -> Path:
    """A run of a model with its first weights."""
    import torch
    from safetensors.torch import save_file

    from smallvit.models import create_model
    from smallvit.models.build import describe
    from smallvit.runs import Run, RunConfig

    model = create_model("cct_7_3x1", num_classes=10, image_size=32).eval()
    data = {"classes": list("abcdefghij"), "image_size": [32, 32], "channels": 3}
    info = {
        "torch": torch.__version__,
        "status": "finished",
        "data": {**data, "fit": "letterbox"},
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "temperature": 1.0,
        "model": describe(model),
    }
    run = Run.create(folder, RunConfig.from_dict({"data": {"source": "none"}}), info)
    save_file(model.state_dict(), run.folder / "weights.safetensors")
    return run.folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument(
        "--explained", type=int, default=0, help="every how many requests want a map"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = options.run or untrained(Path(folder) / "run")
        command = [sys.executable, "-m", "smallvit", "serve", str(source), "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            line = next(line for line in running.stderr if "http://" in line)
            address = line.split()[-1]
            marks = [options.requests // 4 * part for part in (1, 2, 3, 4)]
            load = Load(address, running.pid, marks, options.explained)
            for number in range(0, 20, 2):
                load.ask(number)
            load.statuses.clear()
            load.times.clear()
            before, started = resident(running.pid), time.perf_counter()
            with ThreadPoolExecutor(options.clients) as threads:
                list(threads.map(load.ask, range(options.requests)))
            seconds = time.perf_counter() - started
            load.client.close()
            drained = drain(address, running, load.photos[0], options.clients)
    print(f"{line.split(':')[0].strip()}, {options.clients} clients, {os.cpu_count()} cores\n")
    print("| response | requests |\n|---|--:|")
    for status, count in sorted(load.statuses.items()):
        print(f"| {status} | {count:,} |")
    p50, p99 = (1e3 * np.quantile(load.times, share) for share in (0.5, 0.99))
    print(f"\np50 {p50:.0f} ms, p99 {p99:.0f} ms per predicted image; ", end="")
    print(f"{options.requests / seconds:.0f} requests/s")
    counts = {0: before, **dict(sorted(load.memory.items()))}
    memory = ", ".join(f"{size:.0f} MB after {count:,}" for count, size in counts.items())
    print(
        f"resident memory: {memory}\nSIGTERM with {options.clients} uploads on their way: {drained}"
    )


if __name__ == "__main__":
    main()
