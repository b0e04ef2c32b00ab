"""applications.yaml is checked completely: each error names its place and the valid values."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import InputError, InvalidFileError
from slurm_gpu.node.application.rules import (
    FILE_NAME,
    SHIPPED,
    ApplicationRules,
    check_rules,
    load_rules,
    rules_path,
)


def rules(text: str) -> ApplicationRules:
    return check_rules(parse_yaml(text, "applications.yaml"))


def one(body: str) -> str:
    return f"version: 1\napplications:\n  Thing:\n    {body}\n"


def test_the_shipped_rules_are_valid_and_have_distinct_names() -> None:
    shipped = load_rules(SHIPPED[0])
    names = [rule.name.lower() for rule in shipped.rules]
    assert len(names) == len(set(names)) > 80
    assert all(rule.field for rule in shipped.rules if rule.name not in ("Python", "CUDA program"))
    priorities = [rule.priority for rule in shipped.rules]
    assert priorities == sorted(priorities, reverse=True)


def test_the_site_s_own_file_comes_before_the_shipped_one(tmp_path: Path) -> None:
    assert rules_path(tmp_path / "slurm-gpu.yaml") == SHIPPED[0]
    (tmp_path / FILE_NAME).write_text("")
    assert rules_path(tmp_path / "slurm-gpu.yaml") == tmp_path / FILE_NAME


def test_an_application_may_have_no_field() -> None:
    (found,) = rules(one("any: [{executable: a}]\n    field:")).rules
    assert found.field is None


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("applications: {}", "1:1", "the file lacks version; write version: 1"),
        ("version: 2\napplications: {}", "1:10", "version: 2 must be 1"),
        ("version: 1\n", "1:1", "the file lacks applications"),
        ("version: 1\napplications: {}", "2:15", "applications is empty"),
        ("version: 1\napplicatoins: {}", "2:1", "did you mean applications?"),
        (one("any: [{executable: a}]\n    prio: 5"), "5:5", "did you mean priority?"),
        (one("priority: 5"), "4:5", "applications.Thing lacks any"),
        (one("any: []"), "4:10", "any: [] must be a list of 1 to 64"),
        (one("any: {executable: a}"), "4:10", "must be a list"),
        (one("any: [{}]"), "4:11", "is empty; allowed: executable, script"),
        (one("any: [{excutable: a}]"), "4:12", "did you mean executable?"),
        (one("any: [{executable: 5}]"), "4:24", "must be a name, or a list of at most 64"),
        (one("any: [{executable: []}]"), "4:24", "must be a name"),
        (one("any: [{executable: /opt/lmp}]"), "4:24", "without directories"),
        (one("any: [{library: '**'}]"), "4:21", "matches everything"),
        (one("any: [{python: torch.nn}]"), "4:20", "top-level package"),
        (one("any: [{executable: a}]\n    priority: 101"), "5:15", "from 0 to 100"),
        (one("any: [{executable: a}]\n    priority: yes"), "5:15", "from 0 to 100"),
        (one("any: [{executable: a}]\n    field: [x]"), "5:12", "such as deep learning"),
        (one("any: [{executable: a}]\n    field: ''"), "5:12", "such as deep learning"),
        (one("any: [{arguments: '(a'}]"), "4:23", "is not a regular expression: missing )"),
        (one("any: [{arguments: '(a+)+$'}]"), "4:23", "could take too long"),
        (one("any: [{arguments: ''}]"), "4:23", "must be a regular expression"),
        (one("any: [{executable: a}]\n    parameters: {x: 'a'}"), "5:21", "must have one group"),
        (one("any: [{executable: a}]\n    parameters: {x: '(a)(b)'}"), "5:21", "but has 2"),
        (one("any: [{executable: a}]\n    parameters: {Batch Size: '(a)'}"), "5:18", "such as batch_size"),
        (one("any: [{executable: a}]\n    parameters: {x: {size: '(a)'}}"), "5:22", "file_size"),
        (one("any: [{executable: a}]\n    parameters: {x: {file_size: a}}"), "5:33", "must have one group"),
        (one("any: [{executable: a}]") + "  Thing:\n    any: []\n", "5:3", "occurs twice here"),
    ],
)
def test_errors_of_the_rules(text: str, place: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        rules(text)
    lines = str(caught.value).splitlines()
    assert any(line.startswith(f"applications.yaml:{place}: ") and message in line for line in lines), lines


def test_all_errors_of_the_rules_are_reported_together() -> None:
    with pytest.raises(InvalidFileError) as caught:
        rules(one("any: [{arguments: '('}, {executable: a/b}]\n    priority: -1"))
    assert len(caught.value.errors) == 3


def test_too_many_parameters_are_refused() -> None:
    many = ", ".join(f"p{n}: '(a)'" for n in range(17))
    with pytest.raises(InvalidFileError, match="17 entries; at most 16"):
        rules(one(f"any: [{{executable: a}}]\n    parameters: {{{many}}}"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["any", "executable", "parameters", "priority", "field", "python", "arguments", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(VALUES)
def test_any_value_gives_rules_or_an_input_error(value: object) -> None:
    source = parse_yaml("version: 1\napplications: {}", "f")
    value = {"version": 1, "applications": {"Thing": value}}
    with contextlib.suppress(InputError):
        check_rules(type(source)("f", value, {(): (1, 1)}, {}))
