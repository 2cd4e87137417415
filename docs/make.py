"""Writes what can be derived: docs/api.md from the docstrings, README's table from the models.

Run it with `make docs`; a test fails while a derived page is out of date.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import smallvit
from smallvit import augment, data, layers, models
from smallvit.models.build import count_parameters
from smallvit.models.names import find_variant

ROOT = Path(__file__).parent.parent
TABLE = re.compile(r"(<!-- models -->\n).*?(<!-- /models -->)", re.DOTALL)

#: The README's rows: a name, what to say of it, classes of the paper's first dataset.
ROWS = [
    ("vit_9_p4", "ViT", 100),
    ("vit_9_p4+spt+lsa", "SL-ViT", 100),
    ("cait_24_p4+spt+lsa", "SL-CaiT", 100),
    ("pit_tiny_p2+spt+lsa", "SL-PiT", 100),
    ("swin_tiny_p2+spt+lsa", "SL-Swin", 100),
    ("t2t_12+spt+lsa", "SL-T2T", 100),
    ("vit_lite_7_p4", "ViT-Lite-7/4", 10),
    ("compact_vit_7_p4", "CVT-7/4", 10),
    ("cct_2_3x2", "CCT-2/3×2", 10),
    ("cct_7_3x1", "CCT-7/3×1", 10),
    ("cct_14_7x2", "CCT-14/7×2", 1000),
    ("swin_t", "Swin-T", 100),
    ("t2t_14", "T2T-ViT-14", 100),
    ("cvt_13", "CvT-13", 100),
    ("vit_base_p16", "ViT-Base", 1000),
    ("vit_large_p16", "ViT-Large", 1000),
    ("vit_huge_p14", "ViT-Huge", 1000),
]


def models_table() -> str:
    """The README's table."""
    lines = [
        "| name | known as | parameters | classes | pixels | paper |",
        "|---|---|--:|--:|--:|---|",
    ]
    for name, known, classes in ROWS:
        variant = find_variant(name)
        millions = f"{count_parameters(name, num_classes=classes) / 1e6:.2f} M"
        cells = [
            f"`{name}`",
            known,
            millions,
            f"{classes:,}",
            str(variant.image_size),
            variant.paper,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def readme() -> str:
    """The README with its table up to date."""
    text = (ROOT / "README.md").read_text()
    return TABLE.sub(lambda match: match[1] + models_table() + match[2], text)


def signature(thing: Any) -> str:
    """A signature without the types, which stand in the code."""
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return ""
    parameters = []
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.name != "self":
            parameters.append(parameter.replace(annotation=inspect.Parameter.empty))
    return str(inspect.Signature(parameters))


def methods(thing: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties a class writes itself."""
    for name, member in vars(thing).items():
        member = getattr(member, "fget", member)
        member = getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(member) and member.__doc__:
            yield name, member


def prose(thing: Any) -> str:
    """A docstring as Markdown: the lists of arguments and the like as lists."""
    text = inspect.getdoc(thing) or ""
    text = re.sub(r"^(Args|Attributes|Raises):$", r"\1:\n", text, flags=re.MULTILINE)
    text = re.sub(r"\n {8,}", " ", text)
    return re.sub(r"^ {4}(\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)


def entry(name: str, thing: Any) -> list[str]:
    """One name with its docstring and, for a class, its methods."""
    lines = [f"### `{name}{signature(thing)}`", "", prose(thing), ""]
    if inspect.isclass(thing) and issubclass(thing, tuple):
        return lines
    if inspect.isclass(thing):
        written = [
            f"- `{method}{signature(function)}`: {(inspect.getdoc(function) or '').splitlines()[0]}"
            for method, function in methods(thing)
        ]
        lines += ["Methods:", "", *written, ""] if written else []
    return lines


def room(module: ModuleType, title: str, skip: set[str]) -> list[str]:
    """All public names of a room."""
    lines = [f"## {title}", "", inspect.getdoc(module) or "", ""]
    for name in module.__all__:
        thing = getattr(module, name)
        if name not in skip and (inspect.isclass(thing) or inspect.isfunction(thing)):
            lines += entry(name, thing)
    return lines


def api() -> str:
    """The whole page."""
    lines = ["# API", "", "Made from the docstrings by `make docs`; edit those, not this page.", ""]
    lines += room(smallvit, "smallvit", set())
    lines += room(models, "smallvit.models", set(smallvit.__all__))
    lines += room(layers, "smallvit.layers", set(smallvit.__all__))
    lines += room(data, "smallvit.data", set(smallvit.__all__))
    lines += room(augment, "smallvit.augment", set())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "api.md").write_text(api())
    (ROOT / "README.md").write_text(readme())
