"""The page a person tries the model on: one file, and the policy under which it runs."""

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from smallvit.inference import Card
from smallvit.server.limits import Limits, megabytes

_NAMED = 500
"""Classes that the page lists."""


def make_page(card: Card, limits: Limits) -> tuple[str, str]:
    """The page, and its Content-Security-Policy: only what the page itself holds may run."""
    folder = files("smallvit.server") / "files"
    text = {
        name: (folder / name).read_text(encoding="utf-8")
        for name in ("page.html", "style.css", "script.js")
    }
    style, script = text["style.css"], text["script.js"]
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(
        text["page.html"]
    )
    page = template.render(
        model=card.model.get("name") or "model",
        classes=card.classes,
        most=_NAMED,
        upload=limits.upload,
        largest=megabytes(limits.upload),
        style=Markup(style),
        script=Markup(script),
    )
    policy = [
        "default-src 'none'",
        f"script-src {_hash(script)}",
        f"style-src {_hash(style)}",
        "img-src data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    return page, "; ".join(policy)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
