"""Recognise slurm-gpu's hooks among the files that Prolog and Epilog match, by their content."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.files.source_root import SOURCE_ROOT

# The directory of the packaged hooks, and of the command `place`, which installs them for Slurm.
PACKAGED = Path("/usr/libexec/slurm-gpu/hooks")
# The file names that `place` gives the hooks: our prolog runs last, our epilog first.
NAME_OF = {"Prolog": "10-slurm-gpu", "Epilog": "90-slurm-gpu"}

# The second line of a hook; its verb depends on the release.
_HEAD = re.compile(r"#!.*\n# Slurm (?:prolog|epilog): (?:\w+ slurm-gpud |(?P<stub>slurm-gpu was removed ))")
_EVENT = re.compile(r"^event=(prolog|epilog)\s*(?:#.*)?$", re.MULTILINE)
_WRITES = 'mv -f -- "$jobs/.$file" "$jobs/$file"'
_ENDS = re.compile(r"^(?:exit|return|exec)\b", re.MULTILINE)
_COMMENT = re.compile(r"^\s*#.*\n?", re.MULTILINE)
_PATH = re.compile(r"(?<![\w$}./-])/[^\s;|&()<>\"'$`]+")
_READ_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True)
class HookFile:
    """A file that a pattern of Prolog or Epilog in slurm.conf matches."""

    path: Path
    text: str
    """The first bytes of the file as text; "" if it cannot be read."""

    @property
    def is_ours(self) -> bool:
        """Return whether the file is slurm-gpu's by name or content, or the stub that a removal left.

        A site may name its own hook 50-slurm-gpu-health, or run our hook from its own file 10-slurm-gpu.
        """
        return self.path.name in NAME_OF.values() or _HEAD.match(self.text) is not None

    @property
    def is_stub(self) -> bool:
        """Return whether the file is the stub that a removal left."""
        match = _HEAD.match(self.text)
        return match is not None and match["stub"] is not None

    @property
    def event(self) -> str | None:
        """Return the event that this file, or a file that it runs, writes: "prolog", "epilog" or None."""
        if (own := _written(self.text)) is not None:
            return own
        named = (Path(name) for name in _PATH.findall(_COMMENT.sub("", self.text)))
        written = (_written(hook_file(path).text) for path in named if path.is_file())
        return next((event for event in written if event is not None), None)


def hook_file(path: Path) -> HookFile:
    """Read the beginning of a hook."""
    try:
        with path.open("rb") as file:
            return HookFile(path, file.read(_READ_BYTES).decode("utf-8", "replace"))
    except OSError:
        return HookFile(path, "")


def is_readable(path: Path) -> bool:
    """Return whether the caller may read the file."""
    return os.access(path, os.R_OK)


def has_package() -> bool:
    """Return whether a package installed our hooks on this host."""
    return PACKAGED.is_dir()


def source_of(kind: str) -> Path | None:
    """Return the path of this version's prolog or epilog on this host; None if there is none."""
    if has_package():
        return PACKAGED / kind.lower()
    path = SOURCE_ROOT / kind.lower() / "10-slurm-gpu"
    return path if path.is_file() else None


def _written(text: str) -> str | None:
    """Return the event that a script itself writes; None if it writes no event, or exits before it does."""
    code = _COMMENT.sub("", text)
    found, at = _EVENT.search(code), code.find(_WRITES)
    if found is None or at < found.end():
        return None
    ends = _ENDS.search(code)
    return None if ends is not None and ends.start() < at else found[1]
