"""`python -m smallvit` is the command line."""

from smallvit.cli import main

main()
