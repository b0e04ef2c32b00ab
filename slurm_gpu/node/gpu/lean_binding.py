"""Import this before pynvml where memory counts.

pynvml imports `ctypes.util.find_library` and does not use it; with it come subprocess, shutil and tempfile,
1.7 MB in all. Here it is imported when it is called.
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
