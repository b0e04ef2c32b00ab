"""A real browser for tests of pages, and checks for every page."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CONTROLS = "button, input, select, canvas:not([aria-hidden]), [role=img], [role=region], [role=application]"
# The tags of axe-core's rules for WCAG 2.2 AA.
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa"]
_CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Start a headless Chromium; skip the test if Chromium is not installed."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs the Python package playwright (extra dev)"
    )
    if _CHROMIUM is None:
        pytest.skip("needs Chromium, which packaging/install-packages installs if it is available")
    with playwright.sync_playwright() as started:
        # Chromium has no sandbox for root, and our own pages do not need one. Without --disable-gpu, a
        # process would emulate a GPU.
        browser = started.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Tab:
    """An opened page, its console messages, and the URLs that it requested."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on(
            "dialog", lambda dialog: self.said.append(f"dialog: {dialog.message}") or dialog.dismiss()
        )
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def blocks_injected_content(self) -> bool:
        """Return whether the page's policy blocks an external image, an inline style and markup from text."""
        broken = self.page.evaluate(
            """async () => {
              const rules = [];
              const note = (event) => rules.push(event.effectiveDirective);
              document.addEventListener("securitypolicyviolation", note);
              const image = document.createElement("img");
              image.src = "https://example.org/x.png";
              const styled = document.createElement("p");
              styled.setAttribute("style", "color: red");
              document.body.append(image, styled);
              try { document.body.innerHTML += "<p>"; } catch (error) { rules.push(error.name); }
              await new Promise((done) => setTimeout(done, 100));
              return rules;
            }"""
        )
        return {"img-src", "style-src-attr", "TypeError"} <= set(broken)

    def nameless_controls(self) -> int:
        """Return the number of controls and pictures without a name for screen readers."""
        return int(
            self.page.evaluate(
                """(controls) => {
                  const name = (each) => each.getAttribute('aria-label') || each.textContent.trim();
                  const all = [...document.querySelectorAll(controls)];
                  return all.filter((each) => !name(each) && !each.labels?.length).length;
                }""",
                CONTROLS,
            )
        )

    def wcag_violations(self) -> list[str]:
        """Return the violations of WCAG 2.2 AA that axe-core finds, with the elements."""
        axe = pytest.importorskip(
            "axe_playwright_python.sync_playwright", reason="needs axe-playwright-python (extra dev)"
        )
        found = axe.Axe().run(self.page, options={"runOnly": WCAG, "resultTypes": ["violations"]}).response
        return [
            f"{rule['id']}: {node['target']} {node['failureSummary']}"
            for rule in found["violations"]
            for node in rule["nodes"]
        ]

    def is_within_its_width(self, *widths: int) -> bool:
        """Return whether the page is no wider than the screen at each of these widths."""
        for width in widths:
            self.page.set_viewport_size({"width": width, "height": 800})
            if self.page.evaluate("document.documentElement.scrollWidth") > width:
                return False
        return True
