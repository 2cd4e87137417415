"""A server in a thread, one per module."""

from collections.abc import Iterator

import httpx
import pytest

from smallvit.inference import Predictor
from smallvit.server import Limits
from tests.server.live import PATIENCE, served
from tests.untrained import untrained

LIMITS = Limits(upload=300_000, pixels=200_000)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    run = untrained(tmp_path_factory.mktemp("run") / "run", sharpness=30)
    return Predictor.open(run, "cpu")


@pytest.fixture(scope="module")
def address(predictor: Predictor) -> Iterator[str]:
    with served(predictor, LIMITS) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=PATIENCE) as client:
        yield client
