"""List what breaks the rules for prose in CONTRIBUTING.md: python -m tests.prose [PATH ...]."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tests.prose.files import prose_files
from tests.prose.rules import findings
from tests.prose.texts import passages


def report(*paths: Path) -> Iterator[str]:
    """Yield each finding in these files and folders (default: all), with its place."""
    for path in prose_files(*paths):
        for passage in passages(path):
            for rule, message in findings(passage):
                yield f"{path}:{passage.line}: {rule}: {message}"


def main() -> None:
    """Print the findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders (default: all)")
    for line in report(*parser.parse_args().paths):
        print(line)


if __name__ == "__main__":
    main()
