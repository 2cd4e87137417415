"""What our HTML pages share: the policy under which a browser opens them."""

import base64
import hashlib


def content_security(style: str, script: str, *more: str) -> str:
    """A Content-Security-Policy that runs a page's own style and script and nothing else.

    A browser compares inline code with these hashes, so text that comes from file names or class
    names never runs.

    Args:
        style: The exact text inside the page's only `<style>`.
        script: The exact text inside its only `<script>`.
        more: Further directives, such as "img-src data:".
    """
    hashes = [hashlib.sha256(text.encode()).digest() for text in (style, script)]
    of_style, of_script = (f"'sha256-{base64.b64encode(each).decode()}'" for each in hashes)
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src {of_style}",
            f"script-src {of_script}",
            "base-uri 'none'",
            "form-action 'none'",
            *more,
        )
    )
