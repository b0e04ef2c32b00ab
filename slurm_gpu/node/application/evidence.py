"""Collect evidence of which program a process runs: its executable, script, libraries and imports.

The job's user controls all evidence, so every read is bounded, nothing is executed, and callers store only
the values that a rule names. Reads can block on a stuck process or a hung file system, so the daemon runs
them in a thread.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_gpu.node.application.pattern_cost import LONGEST_TEXT
from slurm_gpu.node.process.procfs import Processes, read

_ARGUMENTS_LIMIT = LONGEST_TEXT
# This suffices for 250-byte lines and the default maximum number of mappings (vm.max_map_count, 65,530).
_MAPS_LIMIT = 16 << 20
_SCRIPT_LIMIT = 64 << 10
_MOST_LIBRARIES = 8192
_DELETED = " (deleted)"

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[dtm]?")
_INTERPRETERS = frozenset(
    {"R", "Rscript", "julia", "perl", "ruby", "node", "bash", "sh", "dash", "zsh", "ksh", "tclsh"}
)
# Options of Python that take the next argument as their value.
_PYTHON_VALUES = frozenset({"-W", "-X", "--check-hash-based-pycs"})

# The path starts at the line's first slash. The pattern is anchored, so that no path causes backtracking.
_MAPPED_FILE = re.compile(rb"^[^/\n]*(/[^\n]*)$", re.MULTILINE)
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([A-Za-z_][A-Za-z0-9_]{0,63})[/.]")
_IMPORT = re.compile(
    r"^[ \t]{0,32}(?:from[ \t]{1,8}([A-Za-z_]\w{0,63})|import[ \t]{1,8}(.{1,512}))", re.MULTILINE
)
_MODULE = re.compile(r"\s*([A-Za-z_]\w{0,63})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEvidence:
    """The evidence of one process; file names do not include directories.

    `arguments` has at most 4,096 characters. `libraries` are mapped shared libraries, `packages` are the
    Python packages that contain mapped files, and `imports` are the packages that the script imports or `-m`
    names.
    """

    pid: int
    executable: str | None = None
    script: str | None = None
    module: str | None = None
    arguments: str = ""
    libraries: frozenset[str] = frozenset()
    packages: frozenset[str] = frozenset()
    imports: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Return whether the process is a kernel thread or a zombie, or has ended."""
        return self.executable is None and not self.arguments


def gather(processes: Processes, pid: int) -> ProcessEvidence:
    """Read the evidence of a process, leaving out the parts that cannot be read."""
    executable = _executable(processes, pid)
    words = _words(processes, pid)
    script, module = script_of(executable, words)
    libraries, packages = _mapped(processes, pid)
    imports = frozenset() if module is None else frozenset({module.partition(".")[0]})
    if script is not None and executable is not None and _PYTHON.fullmatch(executable):
        imports |= imports_in(_script_text(processes, pid, script))
    return ProcessEvidence(
        pid=pid,
        executable=executable,
        script=None if script is None else os.path.basename(script),  # noqa: PTH119
        module=module,
        arguments=" ".join(words),
        libraries=libraries,
        packages=packages,
        imports=imports,
    )


def script_of(executable: str | None, words: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the script's path, or the module (`python -m`), from an interpreter's command line."""
    if executable is None:
        return None, None
    if _PYTHON.fullmatch(executable):
        return _python_script(words[1:])
    if executable not in _INTERPRETERS:
        return None, None
    for word in words[1:]:
        if word.startswith("--file="):  # an option of R
            return word.removeprefix("--file="), None
        if word in ("-c", "-e", "-E", "--eval", "--args"):
            return None, None
        if word and not word.startswith("-"):
            return word, None
    return None, None


def _python_script(words: Sequence[str]) -> tuple[str | None, str | None]:
    position = 0
    while position < len(words):
        word = words[position]
        following = words[position + 1] if position + 1 < len(words) else None
        if word == "-m":
            return None, following
        if word == "-" or word.startswith("-c"):
            return None, None
        if word in _PYTHON_VALUES:
            position += 1
        elif not word.startswith("-"):
            return word, None
        elif len(word) > 2 and not word.startswith("--") and word.endswith("m") and word[1:].isalpha():
            return None, following  # combined options such as -um
        position += 1
    return None, None


def imports_in(text: str) -> frozenset[str]:
    """Return the top-level modules that a Python source imports."""
    found = set()
    for from_module, modules in _IMPORT.findall(text):
        if from_module:
            found.add(from_module)
        for part in modules.split(","):
            if match := _MODULE.match(part):
                found.add(match[1])
    return frozenset(found)


def files_in_maps(maps: bytes) -> frozenset[str]:
    """Return the files in /proc/PID/maps; if there are over 8,192, return only libraries and packages."""
    paths = set(_MAPPED_FILE.findall(maps))
    if len(paths) > _MOST_LIBRARIES:
        # A job may map thousands of data files.
        paths = {path for path in paths if b".so" in path or b"-packages/" in path}
        paths = set(sorted(paths)[:_MOST_LIBRARIES])
    return frozenset(path.decode("utf-8", "replace").removesuffix(_DELETED) for path in paths)


def _executable(processes: Processes, pid: int) -> str | None:
    try:
        path = os.readlink(processes.path(pid, "exe"))  # noqa: PTH115
    except OSError:
        return None
    return os.path.basename(path.removesuffix(_DELETED)) or None  # noqa: PTH119


def _words(processes: Processes, pid: int) -> Sequence[str]:
    try:
        data = read(processes.path(pid, "cmdline"), _ARGUMENTS_LIMIT)
    except OSError:
        return []
    return [word.decode("utf-8", "replace") for word in data.rstrip(b"\0").split(b"\0")]


def _mapped(processes: Processes, pid: int) -> tuple[frozenset[str], frozenset[str]]:
    try:
        paths = files_in_maps(read(processes.path(pid, "maps"), _MAPS_LIMIT))
    except OSError:
        return frozenset(), frozenset()
    libraries = frozenset(path.rpartition("/")[2] for path in paths if ".so" in path)
    packages = frozenset(match[1] for path in paths if (match := _PACKAGE.search(path)))
    return libraries, packages


def _script_text(processes: Processes, pid: int, script: str) -> str:
    """Return the first 64 KiB of a script that the process's user owns or everyone can read, else ""."""
    below = "root" if script.startswith("/") else "cwd"
    try:
        # O_PATH allows checks before the file is opened; opening a device or a pipe can have side effects.
        place = os.open(f"{processes.path(pid, below)}/{script}", os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        status = os.fstat(place)
        readable = status.st_uid == processes.uid(pid) or status.st_mode & stat.S_IROTH
        if not stat.S_ISREG(status.st_mode) or not readable:
            return ""
        return read(f"/proc/self/fd/{place}", _SCRIPT_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(place)
