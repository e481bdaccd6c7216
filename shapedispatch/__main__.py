"""``python -m shapedispatch`` is the command line."""

from __future__ import annotations

from .cli import main

main(prog_name="shapedispatch")
