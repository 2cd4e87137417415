"""`watch`: a page of this machine's runs that keeps itself up to date. It only reads."""

from smallvit.watching.running import watch

__all__ = ["watch"]
