"""Lets ``python -m kvpatch`` do what the ``kvpatch`` command does."""

from .cli import main

main()
