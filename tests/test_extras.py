import sys
from importlib import import_module
from pathlib import Path

import pytest

from smallvit.extras import require


def test_what_is_there_is_imported() -> None:
    assert require("json.decoder", "none").JSONDecoder


def test_what_is_missing_says_how_to_get_it() -> None:
    with pytest.raises(
        ImportError, match=r"^reading Parquet needs no_such: pip install '.\[parquet\]'"
    ):
        require("no_such.part", "parquet", "reading Parquet")


def test_a_package_that_is_broken_inside_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_inside.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        require("broken_inside", "extra")
    sys.modules.pop("broken_inside", None)


@pytest.mark.parametrize("room", ["smallvit.augment", "smallvit.data", "smallvit.runs"])
def test_rooms_load_their_names_on_first_use(room: str) -> None:
    module = import_module(room)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=f"'{room}' has no attribute 'nothing'"):
        _ = module.nothing
