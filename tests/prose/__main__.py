"""List what breaks docs/glossary.md: python -m tests.prose [PATH ...] [--count | --update]."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.prose.counts import record, today
from tests.prose.files import prose_files
from tests.prose.rules import findings
from tests.prose.texts import passages


def main() -> None:
    """Print each finding with its place, or their number by section and rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders (default: all)")
    parser.add_argument("--count", action="store_true", help="print the numbers of all files by section")
    parser.add_argument("--update", action="store_true", help="record the numbers of all files")
    arguments = parser.parse_args()
    if arguments.count or arguments.update:
        counts = today()
        if arguments.update:
            record(counts)
        for key, n in sorted(counts.items()):
            print(f"{n:6} {key}")
        print(f"{sum(counts.values()):6} findings")
        return
    for path in prose_files(*arguments.paths):
        for passage in passages(path):
            for rule, message in findings(passage):
                print(f"{path}:{passage.line}: {rule}: {message}")


if __name__ == "__main__":
    main()
