"""What our HTML shares: the policy of pages, and tables for notebooks."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

from smallvit.text import shown


def content_security(style: str, script: str, *more: str) -> str:
    """A Content-Security-Policy that runs a page's own style and script and nothing else.

    A browser compares inline code with these hashes, so text that comes from file names or class
    names never runs.

    Args:
        style: The exact text inside the page's only `<style>`.
        script: The exact text inside its only `<script>`.
        more: Further directives, such as "img-src data:".
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src {code_hash(style)}",
            f"script-src {code_hash(script)}",
            "base-uri 'none'",
            "form-action 'none'",
            *more,
        )
    )


def code_hash(text: str) -> str:
    """How a policy names inline code that may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def html_table(title: str, rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """A table as HTML, for notebooks; whatever its texts hold, they are text.

    Args:
        title: Above it.
        rows: Texts of each row; the first is its name.
        notes: Below it.
    """
    lines = []
    for name, *cells in rows:
        data = "".join(f"<td>{escape(shown(cell))}</td>" for cell in cells)
        lines.append(f'<tr><th scope="row">{escape(shown(name))}</th>{data}</tr>')
    caption = f"<caption><b>{escape(shown(title))}</b></caption>"
    below = "".join(f"<p>{escape(shown(note))}</p>" for note in notes)
    return f"<div><table>{caption}<tbody>{''.join(lines)}</tbody></table>{below}</div>"
