"""The command as a process: it logs its address, stops on a signal, and loses no request."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from smallvit.data import read_image
from smallvit.inference import Predictor
from smallvit.runs import Run
from smallvit.server import serve
from smallvit.server.running import listen
from tests.server.live import JPEG, PATIENCE, Gate, post, process, started, until
from tests.untrained import photo_bytes, untrained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return untrained(tmp_path_factory.mktemp("run") / "run")


def test_it_finishes_what_has_begun(run: Run) -> None:
    data = photo_bytes(3)
    with process(run.folder, "--device", "cpu") as (running, log):
        *before, address = log
        assert before == ["cct_2_3x2,", "4", "classes:"]  # and no warning
        assert address.startswith("http://127.0.0.1:")
        expected = post(address, data).json()["classes"]
        host, _, port = address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), PATIENCE) as connection:
            connection.sendall(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
                b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(data)
            )
            assert connection.recv(65_536).startswith(b"HTTP/1.1 100")  # it has begun to read
            connection.sendall(data[:500])
            running.send_signal(signal.SIGTERM)
            until(lambda: not accepts(address))
            assert running.poll() is None
            connection.sendall(data[500:])
            response = b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
        assert response.startswith("HTTP/1.1 200")
        assert f'"probability":{expected[0]["probability"]}' in response
        assert running.wait(PATIENCE) == 0
        assert running.stderr is not None
        assert running.stderr.read() == "stopped\n"


def accepts(address: str) -> bool:
    host, _, port = address.removeprefix("http://").partition(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except OSError:
        return False
    return True


def test_ctrl_c_stops_it_and_an_open_address_is_warned_of(run: Run) -> None:
    with process(run.folder, "--host", "0.0.0.0", "--seconds", 5) as (running, log):
        assert " ".join(log).startswith("other machines can reach this server: it has no authent")
        local = log[-1].replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{local}/healthz").json()["status"] == "ok"
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE) == 0


def test_what_cannot_be_served_is_a_sentence(tmp_path: Path) -> None:
    predictor = Gate().predictor
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1, port {port}: Address"):
            serve(predictor, port=port)
    with pytest.raises(OSError, match=r"cannot listen on nowhere.invalid, port 8000"):
        serve(predictor, host="nowhere.invalid")
    with pytest.raises(ValueError, match="port is 99999: allowed is 0 to 65,535"):
        serve(predictor, port=99_999)
    with pytest.raises(ValueError, match="nothing"):
        serve(tmp_path / "nothing")
    for words, sentence in {
        ("--queue", "0"): "queue is 0: allowed is 1 or more",
        ("--max-mb", "inf"): "--max-mb is inf: expected is a number of megabytes",
    }.items():
        line = [sys.executable, "-m", "smallvit", "serve", str(tmp_path), *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 2
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ImportError, match=r"serving needs uvicorn: pip install '.\[serve]'"):
        serve(Gate().predictor)


@pytest.mark.compiled
def test_an_onnx_file_is_served_without_torch(run: Run, tmp_path: Path) -> None:
    from smallvit import export

    path = export(run, tmp_path / "model.onnx")
    expected = Predictor.open(run, "cpu").predict([read_image(photo_bytes(3))])[0].max()
    (tmp_path / "torch.py").write_text("raise ImportError('there is no torch here')\n")
    script = (
        "import sys, logging; logging.basicConfig(level=logging.INFO, format='%(message)s')\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"from smallvit.server import serve; serve({str(path)!r}, port=0)"
    )
    with started("-c", script) as (running, log):
        response = httpx.post(
            f"{log[-1]}/predict?explain=true", content=photo_bytes(3), headers=JPEG
        )
        assert response.json()["map"] is None
        (best, *_) = response.json()["classes"]
        assert best["probability"] == pytest.approx(expected, abs=1e-4)
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 0
