"""A run to export, and photographs."""

from pathlib import Path

import pytest

from smallvit.runs import Run
from tests.untrained import save_photos, untrained


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMALLVIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_photos(tmp_path_factory.mktemp("photos"), 200)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return untrained(tmp_path_factory.mktemp("plain") / "run")
