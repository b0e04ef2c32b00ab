"""docs/configuration.md matches the classes that decode the files."""

import runpy

from .pages import DOCS, ROOT


def test_the_reference_is_generated_from_the_settings_classes() -> None:
    page = runpy.run_path(str(ROOT / "packaging" / "configuration_page.py"))["page"]
    assert (DOCS / "configuration.md").read_text("utf-8") == page(), (
        "run: PYTHONPATH=. python packaging/configuration_page.py > docs/configuration.md"
    )
