"""Save memory in a process that imports this module before pynvml.

pynvml imports `ctypes.util.find_library` without using it, and that import loads subprocess, shutil and
tempfile (1.7 MB). With this module, the function is imported only when it is called.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from types import ModuleType

_NAME = "ctypes.util"


def _find_library(name: str) -> str | None:
    del sys.modules[_NAME]
    found: str | None = importlib.import_module(_NAME).find_library(name)
    return found


if _NAME not in sys.modules:
    _stand_in = ModuleType(_NAME, __doc__)
    _stand_in.__dict__["find_library"] = _find_library
    sys.modules[_NAME] = vars(ctypes)["util"] = _stand_in
