"""Run ``python -m lab.simgpu`` or the script ``simgpu``, which imports this directory as simgpu."""

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
