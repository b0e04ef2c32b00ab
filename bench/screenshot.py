"""Write a screenshot of the monitoring page over a synthetic cluster: `make screenshot`.

.venv/bin/python bench/screenshot.py docs/images/page.png [--gpus 512]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.arguments import number
from bench.browser import chromium

_SIZE = {"width": 1280, "height": 800}


def main() -> None:
    """Start bench/monitor_server.py, open its page, and write a screenshot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="the PNG to write")
    parser.add_argument("--gpus", type=number(8), default=512, help="default 512")
    options = parser.parse_args()
    program = Path(__file__).with_name("monitor_server.py")
    command = [sys.executable, str(program), "--port", "0", "--gpus", str(options.gpus)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            with chromium() as browser:
                if browser is None:
                    raise SystemExit("needs Chromium and playwright: run `make setup browser`")
                page = browser.new_context(viewport=_SIZE, device_scale_factor=1.5).new_page()
                page.goto(url)
                page.locator("#frame[data-drawn]").wait_for()
                page.wait_for_timeout(6000)  # the second state: rates and trends need two
                page.screenshot(path=options.file, full_page=True)
        finally:
            server.terminate()
    print(f"{options.file}: {options.file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
