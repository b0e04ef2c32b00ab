"""`python packaging/man DIRECTORY`: write the manual pages there, in man1, man5 and man8."""

from __future__ import annotations

import datetime as dt
import os
import sys
from pathlib import Path

# Defaults in the pages must not depend on the environment of the build.
for _name in [name for name in os.environ if name.startswith("SLURM_GPU_")]:
    del os.environ[_name]

from clickpages import command_pages, links  # noqa: E402
from daemonpages import daemon_pages  # noqa: E402
from filepages import file_pages  # noqa: E402

from slurm_gpu import __version__  # noqa: E402


def main(directory: Path) -> None:
    """Write all pages, dated SOURCE_DATE_EPOCH if it is set."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    made = dt.datetime.now(tz=dt.UTC) if epoch is None else dt.datetime.fromtimestamp(int(epoch), tz=dt.UTC)
    about = __version__, made.date().isoformat()
    for page in (*command_pages(*about), *daemon_pages(*about), *file_pages(*about)):
        _write(directory / f"man{page.section}" / page.file_name, page.to_roff())
    for name, target in links():
        _write(directory / "man1" / name, f".so man1/{target}\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python packaging/man DIRECTORY")
    main(Path(sys.argv[1]))
