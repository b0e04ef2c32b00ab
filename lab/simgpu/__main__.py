"""``python -m lab.simgpu``; and what the ``simgpu`` script runs, with this directory as package simgpu."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

if __package__:
    command = importlib.import_module(".command", __package__)
else:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    command = importlib.import_module("simgpu.command")

sys.exit(command.main())
