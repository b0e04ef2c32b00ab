"""The page's script is all of its parts, each once, in a scope of its own."""

from importlib.resources import files

from slurm_gpu.reports.page.script import PARTS, page_script


def test_every_part_is_in_the_script_once():
    there = {
        path.name for path in files("slurm_gpu.reports.page.script").iterdir() if path.name.endswith(".js")
    }
    assert sorted(PARTS) == sorted(there)
    script = page_script()
    for name in PARTS:
        text = files("slurm_gpu.reports.page.script").joinpath(name).read_text("utf-8")
        assert script.count(text) == 1


def test_nothing_of_it_is_seen_outside():
    script = page_script()
    assert script.startswith('"use strict";\n(() => {\n')
    assert script.endswith("\n})();\n")
