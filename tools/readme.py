"""The README's table of models, made from the models, and the README as the site's front page.

    python tools/readme.py      # writes the table; a test fails while it is out of date

mkdocs.yml names this file as a hook.
"""

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"
TABLE = re.compile(r"(<!-- models -->\n).*?(<!-- /models -->)", re.DOTALL)

ROWS = [
    ("hct2_s_p4", "HCT2-S/4", 10),
    ("hct2_s_p16", "HCT2-S/16", 10),
    ("hct2_xl_p4", "HCT2-XL/4", 100),
    ("hct_s_p8", "HCT-S/8", 10),
    ("hct_l_p4", "HCT-L/4", 100),
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
"""Name, what the paper calls it, classes of the paper's first dataset; ours have no paper."""


def models_table() -> str:
    """The table."""
    from smallvit.models.build import count_parameters
    from smallvit.models.names import find_variant

    lines = [
        "| name | known as | parameters | classes | pixels | paper |",
        "|---|---|--:|--:|--:|---|",
    ]
    for name, known_as, classes in ROWS:
        variant = find_variant(name)
        millions = f"{count_parameters(name, num_classes=classes) / 1e6:.2f} M"
        cells = (f"`{name}`", known_as, millions, f"{classes:,}", variant.image_size, variant.paper)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def readme() -> str:
    """The README with its table up to date."""
    return TABLE.sub(lambda match: match[1] + models_table() + match[2], README.read_text())


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Mkdocs's hook: the front page is the README, with links as they are within docs/."""
    if page.file.src_uri != "index.md":
        return markdown
    text = README.read_text().replace("](docs/", "](")
    return text.replace("[CONTRIBUTING.md](CONTRIBUTING.md)", "CONTRIBUTING.md")


if __name__ == "__main__":
    README.write_text(readme())
