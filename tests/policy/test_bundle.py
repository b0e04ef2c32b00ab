"""A policy is compiled to data: its text cannot run, and names reach the Lua unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.lua_literals import lua_string, to_lua
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import (
    SiteFacts,
    build_bundle,
    compile_policy,
    lua_directory,
    required_modules,
)
from slurm_gpu.policy.lua.install import try_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript

from .render import PARTITIONS, description
from .test_ledger import ALICE
from .users import Directory

HOSTILE = [
    '"]] .. os.execute("touch owned") .. [[',
    "100% sure, %s %d %q",
    "a\\",
    "\\000 \\x41 \\z",
    "--[[ comment",
    "]==] end)() os.exit(1)",
    "tab\tand 한국어 ünï",
    "'; os.exit(3) --",
]


def bundle_of(text: str) -> str:
    source = parse_yaml(text, "p.yaml")
    policy = check_policy(source)
    names = resolve_names(policy, source, Directory())
    compiled = compile_policy(policy, names, SiteFacts(shards_per_gpu=4, run_directory=Path("/nonexistent")))
    bundle = build_bundle(compiled)
    try_bundle(compiled, bundle)
    return bundle


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_literally(text: str) -> None:
    quoted = "'" + text.replace("'", "''") + "'"
    bundle = bundle_of(
        f"version: 1\nmode: enforce\ncontact: {quoted}\ngroups: {{g: {{accounts: [vision, {quoted}]}}}}\n"
        f"rules: [{{id: r, for: g, per: job, why: {quoted}, limits: {{gpus: 0}}}}]\n"
    )
    verdict = PolicyScript(bundle).submit(description(ALICE), PARTITIONS)
    assert not verdict.accepted
    shown = " ".join(" ".join(verdict.messages).split())
    assert f"Refused by rule r: {' '.join(text.split())}" in shown
    assert f"Questions: {' '.join(text.split())}" in shown


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_reaches_lua_unchanged(text: str) -> None:
    import lupa.lua51
    import lupa.lua54

    for lua in (lupa.lua51, lupa.lua54):
        assert lua.LuaRuntime().execute(f"return {lua_string(text)}") == text


def test_numbers_and_tables_reach_lua_unchanged() -> None:
    import lupa.lua51

    value: Any = {"a": [1, 2.5, True, None, "x"], "b": {}, "c": {"deep": {"er": list(range(40))}}}
    table = lupa.lua51.LuaRuntime().execute(f"return {to_lua(value)}")
    assert table.a[2] == 2.5
    assert table.c.deep.er[40] == 39
    assert table.a[4] is None


def test_equal_policies_give_equal_bundles() -> None:
    text = "version: 1\ngroups: {g: {users: [bob, alice]}}\nrules: []\n"
    assert bundle_of(text) == bundle_of(text)
    assert str(lua_directory()) not in bundle_of(text)


@pytest.mark.parametrize("file", sorted(lua_directory().glob("*.lua")), ids=lambda file: file.stem)
def test_a_module_declares_the_modules_that_it_uses(file: Path) -> None:
    text = file.read_text()
    assert required_modules(text) == sorted(set(re.findall(r"\blib\.(\w+)", text)))


def _order(directory: Path, **requires: str) -> list[str]:
    """Return the order in which the bundle contains modules that require these names."""
    for name, required in requires.items():
        (directory / f"{name}.lua").write_text(f"-- requires: {required}\n" if required else "")
    return re.findall(r"^lib\.(\w+) = ", build_bundle({}, directory), re.MULTILINE)


def test_modules_come_after_those_that_they_require(tmp_path: Path) -> None:
    assert _order(tmp_path, a="d", b="", c="a, b", d="", entry="b") == ["d", "b", "a", "c"]


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ({"a": "b", "b": "c", "c": "a", "entry": ""}, "modules require each other: a -> c -> b -> a"),
        ({"a": "hosts", "entry": ""}, "a.lua requires hosts, but there is no hosts.lua"),
    ],
)
def test_modules_without_a_valid_order_are_named(
    tmp_path: Path, requires: dict[str, str], message: str
) -> None:
    with pytest.raises(OutsideError, match=message):
        _order(tmp_path, **requires)


def test_a_unix_group_is_compiled_to_the_uids_of_its_members() -> None:
    bundle = bundle_of(
        "version: 1\nmode: enforce\ngroups: {u: {unix_groups: [undergrad]}}\n"
        "rules: [{id: none, for: u, per: job, why: w, limits: {gpus: 0}}]\n"
    )
    for lua in LUA_VERSIONS:
        script = PolicyScript(bundle, lua=lua)
        for uid, accepted in ((1002, False), (1003, False), (1001, True)):
            # Lua 5.3 and later get numbers from Slurm as floats.
            desc = description(ALICE) | {"user_id": float(uid)}
            assert script.submit(desc, PARTITIONS).accepted is accepted


def test_a_group_and_an_exception_end_with_their_last_day() -> None:
    bundle = bundle_of(
        "version: 1\nmode: enforce\ngroups: {g: {until: 2026-12-20}}\n"
        "rules: [{id: r, for: g, per: job, why: w, limits: {gpus: 0}}]\n"
        "exceptions: [{rule: r, user: alice, limits: {gpus: 1}, until: 2026-12-05, why: deadline}]\n"
    )

    def accepted(second: int) -> bool:
        return PolicyScript(bundle, now=lambda: second).submit(description(ALICE), PARTITIONS).accepted

    fifth, twentieth = 1796515200, 1797811200  # the midnights (UTC) that end these days
    assert [accepted(fifth - 1), accepted(fifth)] == [True, False]
    assert [accepted(twentieth - 1), accepted(twentieth)] == [False, True]


def test_unknown_names_are_errors_with_their_position() -> None:
    source = parse_yaml(
        "version: 1\ngroups:\n  a: {users: [alice, bobb]}\n  b: {unix_groups: [undergrads]}\n", "p.yaml"
    )
    unknown = resolve_names(check_policy(source), source, Directory()).unknown
    assert [str(error) for error in unknown] == [
        "p.yaml:3:22: 'bobb' is not a user of this host; did you mean bob?",
        "p.yaml:4:21: 'undergrads' is not a UNIX group of this host; did you mean undergrad?",
    ]
