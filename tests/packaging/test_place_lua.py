"""job_submit.lua is removed; slurmctld can start at every moment, and no script of the site is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_gpu.policy.lua.bundle import MARK
from slurm_gpu.policy.lua.installed import read_chain, read_policy_in_force

from .placing import PLACE_LUA, SHELLS, Tree, changed, inside, mode
from .scripts import SITES, apply, keep, own_script, submitted

READERS = tuple(PLACE_LUA.read_text().partition("for program in ")[2].partition(";")[0].split())
LUAC = """\
#!/bin/sh
if grep -n oops "$3" >/dev/null; then
    echo "luac: $3:9: syntax error near 'oops'" >&2
    exit 1
fi
"""


@pytest.fixture
def lua(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path / "root", PLACE_LUA)
    tree.slurm.mkdir(parents=True)
    yield tree
    hidden = [path.name for path in tree.slurm.iterdir() if path.name.startswith(".")]
    assert hidden == []


def test_without_a_script_of_the_sites_every_job_gets_in(lua: Tree):
    script = apply(lua)
    assert lua("status").returncode == 1
    assert "is now a stub that accepts every job" in lua.done("remove")
    assert submitted(script.read_text()) == {(0, ())}
    assert mode(script) == 0o644
    assert read_policy_in_force(script) is None
    before = changed(script)
    lua.done("remove")
    assert changed(script) == before
    assert lua("status").returncode == 0


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_sites_own_script_comes_back(lua: Tree, place: str):
    own = own_script(lua, 'site é"\\script.lua')
    script = apply(lua, **{place: own})
    lua.done("remove")
    assert script.read_bytes() == own.read_bytes()
    assert "is not slurm-gpu's" in lua.done("remove")


@pytest.mark.parametrize("shell", SHELLS)
def test_any_shell_will_do(lua: Tree, shell: str):
    lua.shell = shell
    own = own_script(lua, "site.lua")
    script = apply(lua, own)
    lua.done("remove")
    assert script.read_bytes() == own.read_bytes()


def test_two_scripts_of_the_site_are_both_called_as_before(lua: Tree):
    first, second = own_script(lua, "first.lua"), own_script(lua, "second.lua", "slurm.ERROR")
    script = apply(lua, first, second)
    lua.done("remove")
    text = (
        script.read_text().replace('{ "/etc', f'{{ "{lua.root}/etc').replace(', "/etc', f', "{lua.root}/etc')
    )
    assert submitted(text) == {(-1, ("asked first", "asked second"))}
    assert read_chain(script) is None
    second.unlink()  # without this script, the stub does not load, and the admin must remove it


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is missing"),
        ("", "lacks slurm_job_submit or slurm_job_modify"),
        ("function slurm_job_submit() end", "lacks slurm_job_submit or slurm_job_modify"),
    ],
)
def test_a_script_of_the_sites_that_cannot_be_loaded_is_left_out(lua: Tree, content: str | None, said: str):
    own = lua.slurm / "site.lua"
    script = apply(lua, before=own)
    if content is not None:
        own.write_text(content)
    done = lua("remove")
    assert done.returncode == 0
    assert f"/etc/slurm/site.lua, which the policy called, {said}: left out" in done.stderr
    assert submitted(script.read_text()) == {(0, ())}


@pytest.mark.parametrize("reader", ["rpm", "luac5.4"])
def test_invalid_lua_never_becomes_slurmctld_s_script(lua: Tree, reader: str):
    """slurmctld would not start with invalid Lua; luac checks the script, or the Lua in rpm without luac."""
    if reader == "rpm" and shutil.which("rpm") is None:
        pytest.skip("needs rpm")
    hidden = {name: None for name in READERS if name != reader}
    lua.has(hidden if reader == "rpm" else hidden | {reader: LUAC})
    own = own_script(lua, "site.lua")
    script = apply(lua, before=own)
    own.write_text(own.read_text() + "oops oops\n")
    done = lua("remove")
    assert done.returncode == 0
    assert "site.lua, which the policy called, is not valid Lua (" in done.stderr
    assert "near 'oops'): left out" in done.stderr
    assert submitted(script.read_text()) == {(0, ())}
    own_script(lua, "site.lua")
    apply(lua, before=own)
    lua.done("remove")
    assert script.read_bytes() == own.read_bytes()


def test_missing_luac_is_reported(lua: Tree):
    lua.has(dict.fromkeys(READERS))
    own = own_script(lua, "site.lua")
    script = apply(lua, before=own)
    assert "was not checked, since luac is not installed" in lua.done("remove")
    assert script.read_bytes() == own.read_bytes()
    apply(lua)
    assert "was not checked" not in lua.done("remove")


@pytest.mark.skipif(shutil.which("rpm") is None, reason="needs rpm")
def test_reading_a_script_runs_nothing(lua: Tree, tmp_path: Path):
    own = own_script(lua, "site.lua")
    apply(lua, before=own)
    own.write_text(own.read_text() + f'x = "%(touch {tmp_path}/run) %{{lua:os.exit(3)}}\n')
    assert "is not valid Lua" in lua("remove").stderr
    assert not (tmp_path / "run").exists()


def test_a_script_that_ours_replaced_comes_back(lua: Tree):
    """`policy apply --replace` saved a copy of the script, which no policy ever called."""
    site = SITES.format(name="site", code="slurm.ERROR")
    keep(lua, "20251121T183000Z", SITES.format(name="older", code="slurm.ERROR"))
    kept = keep(lua, "20261121T183000Z", site)
    keep(lua, "20261122T183000Z", apply(lua).read_text())
    script = apply(lua)
    said = lua.done("remove")
    assert f"is the site's script again, from the copy {inside(lua, kept)}" in said
    assert script.read_text() == kept.read_text() == site
    assert mode(script) == 0o644


def test_scripts_called_by_the_policy_take_precedence_over_replaced_ones(lua: Tree):
    keep(lua, "20261121T183000Z", SITES.format(name="older", code="slurm.ERROR"))
    own = own_script(lua, "site.lua")
    script = apply(lua, after=own)
    lua.done("remove")
    assert script.read_bytes() == own.read_bytes()


def test_a_replaced_script_that_cannot_be_loaded_is_named(lua: Tree):
    kept = keep(lua, "20261121T183000Z", "-- not yet finished\n")
    script = apply(lua)
    done = lua("remove")
    assert f"{inside(lua, kept)}, a copy of the site's own script, lacks " in done.stderr
    assert "is now a stub" in done.stdout
    assert submitted(script.read_text()) == {(0, ())}
    assert kept.exists()


def test_a_script_that_is_not_ours_is_never_touched(lua: Tree):
    script = own_script(lua, "job_submit.lua")
    before = changed(script)
    assert "is not slurm-gpu's" in lua.done("remove")
    assert changed(script) == before
    script.unlink()
    lua.done("remove")
    assert not script.exists()


@pytest.mark.parametrize("age_s", [-3600, 0, 7200])
def test_slurmctld_sees_that_the_script_is_newer(lua: Tree, age_s: int):
    script = apply(lua)
    at = int(script.stat().st_mtime) - age_s
    os.utime(script, (at, at))
    lua.done("remove")
    assert int(script.stat().st_mtime) > at


def test_a_script_elsewhere_is_found_by_what_apply_wrote_down(lua: Tree):
    elsewhere = lua.root / "opt" / "slurm" / "etc" / "job_submit.lua"
    elsewhere.parent.mkdir(parents=True)
    apply(lua).rename(elsewhere)
    state = lua.root / "var" / "lib" / "slurm-gpu" / "policy"
    state.mkdir(parents=True)
    (state / "apply-20261121T183000Z.json").write_text(
        '{\n "version": 1,\n "script": "/opt/slurm/etc/job_submit.lua",\n "previous": null\n}\n'
    )
    lua.done("remove")
    assert submitted(elsewhere.read_text()) == {(0, ())}


def test_a_stub_is_known_as_ours_and_replaced_by_the_next_apply(lua: Tree):
    script = apply(lua)
    lua.done("remove")
    assert script.read_text().startswith(MARK)
