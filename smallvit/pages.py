"""What all HTML pages share: a policy under which nothing but their own code runs."""

import base64
import hashlib


def content_policy(style: str, script: str, *more: str) -> str:
    """The Content-Security-Policy of a page with one inline style and one inline script.

    Args:
        style: The text inside the page's style element.
        script: The text inside its script element.
        more: Further directives, such as "img-src data:".
    """
    return "; ".join(
        [
            "default-src 'none'",
            *more,
            f"style-src {_hash(style)}",
            f"script-src {_hash(script)}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _hash(code: str) -> str:
    """What a browser compares inline code with."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
