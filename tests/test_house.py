"""The plan of the house: which way rooms look, what importing does, what names mean."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import smallvit

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "smallvit"
MODULES = sorted(PACKAGE.rglob("*.py"))

#: Each level may import those before it; rooms of one level do not look at each other.
LEVELS = (
    {"text", "arguments", "flax"},
    {"files", "pages", "config_io", "extras", "devices", "sizes"},
    {"layers"},
    {"losses"},
    {"models"},
    {"augment"},
    {"data"},
    {"evaluation"},
    {"runs"},
    {"interop"},
    {"transfer"},
    {"training"},
    {"formats"},
    {"inference"},
    {"explaining"},
    {"reporting"},
    {"server"},
    {"recipes"},
    {"experiments"},
    {"watching"},
    {"cli"},
)
LOOKS_AT: dict[str, set[str]] = {}
for _number, _rooms in enumerate(LEVELS):
    for _room in _rooms:
        LOOKS_AT[_room] = set().union(*LEVELS[:_number]) - {"flax"}
LOOKS_AT["__init__"] = set().union(*LEVELS) - {"cli"}
LOOKS_AT["__main__"] = {"cli"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [module]
            if module == "smallvit":
                names = [f"smallvit.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("smallvit."):
                rooms.add(name.split(".")[1])
    return rooms


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    room = room_of(path)
    assert imported_rooms(path) - {room} <= LOOKS_AT[room]


def test_no_room_is_called_utils_or_like_a_public_function():
    rooms = {room_of(path) for path in MODULES}
    assert "utils" not in {path.stem for path in MODULES}
    assert not rooms & set(smallvit.__all__)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_library_never_prints(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not [call for call in calls if getattr(call.func, "id", "") == "print"]


def modules_after(code: str) -> set[str]:
    """The top-level modules a fresh process has after running code that must say nothing."""
    script = f"{code}\nimport sys\nsys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    assert not done.stdout
    return {name.partition(".")[0] for name in done.stderr.split()}


HEAVY = {"torch", "torchvision", "timm", "numpy", "jax", "flax", "PIL", "pyarrow"}


def test_importing_smallvit_imports_nothing_heavy():
    assert not modules_after("import smallvit; dir(smallvit)") & HEAVY


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["audit", "--help"]])
def test_help_does_not_import_torch(words):
    code = (
        "import sys, io, contextlib\nfrom smallvit.cli import app\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    app({words}, standalone_mode=False)"
    )
    assert not modules_after(code) & HEAVY


def test_models_need_torch_alone():
    late = HEAVY - {"torch", "numpy"}
    code = "import smallvit; smallvit.create_model; smallvit.load_reference; smallvit.DRLoc"
    assert not modules_after(code) & late


def test_importing_draws_no_random_number():
    code = (
        "import torch\nbefore = torch.get_rng_state()\n"
        "from smallvit import create_model, load_reference, DRLoc\n"
        "assert torch.equal(before, torch.get_rng_state())"
    )
    modules_after(code)


def test_public_names_load_and_are_known_to_type_checkers():
    block = next(
        n for n in ast.parse((PACKAGE / "__init__.py").read_text()).body if isinstance(n, ast.If)
    )
    typed = {alias.name for node in block.body for alias in node.names}
    assert typed == set(smallvit.__all__)
    for name in smallvit.__all__:
        assert getattr(smallvit, name) is not None
        assert name in dir(smallvit)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = smallvit.nothing
    assert (PACKAGE / "py.typed").exists()


def test_extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {"onnx", "serve", "tensorboard", "parquet", "scipy-datasets", "tiff", "flax"}
    extras |= {"ray", "dev"}
    assert set(project["optional-dependencies"]) == extras
    core = {item.partition(">")[0] for item in project["dependencies"]}
    assert core == {
        *("torch", "torchvision", "timm", "numpy", "pillow", "safetensors", "pyyaml"),
        *("jinja2", "rich", "typer", "jaxtyping"),
    }
