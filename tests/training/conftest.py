import logging

import pytest

from tests.training.makers import arrays


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SMALLVIT_CACHE", str(tmp_path / "cache of smallvit"))


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """64 images to train on, 24 to validate, 24 to test, of three classes."""
    return arrays(tmp_path_factory.mktemp("data") / "noise.npz")


@pytest.fixture
def logged(caplog):
    """What was logged so far, from info on."""
    caplog.set_level(logging.INFO, "smallvit")
    return lambda: caplog.text
