"""Every value of a YAML file knows its line and column, and every mistake names them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.errors import InputError, InvalidFileError
from slurm_gpu.yamlcheck import YamlCheck
from slurm_gpu.yamlsource import parse_yaml, read_yaml

_TEXT = """\
version: 1
rules:
  - id: a
    limits: {gpus: 16}
  - id: b
"""


def test_values_and_keys_have_places():
    source = parse_yaml(_TEXT, "policy.yaml")
    assert source.value["rules"][1] == {"id": "b"}
    assert source.positions["rules", 0, "limits", "gpus"] == (4, 20)
    assert source.key_positions["rules", 0, "limits"] == (4, 5)
    assert str(source.error(("rules", 0, "limits", "gpus"), "is odd")) == "policy.yaml:4:20: is odd"
    assert str(source.error(("rules", 1, "id"), "is odd", key=True)) == "policy.yaml:5:5: is odd"


def test_what_is_not_there_is_reported_at_what_encloses_it():
    source = parse_yaml(_TEXT, "policy.yaml")
    assert str(source.error(("rules", 1, "why"), "is missing")) == "policy.yaml:5:5: is missing"
    assert str(source.error(("groups",), "is missing")) == "policy.yaml:1:1: is missing"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "f.yaml:2:1: 'a' stands here twice; first on line 1"),
        ("a: {b: 1, b: 2}\n", "f.yaml:1:11: 'b' stands here twice"),
        ("a: [1, 2\n", "f.yaml:2:1: is not valid YAML"),
        ("a:\n\t- b\n", "f.yaml:2:1: is not valid YAML"),
        ("a: &x [*x]\n", "f.yaml:1:8: the anchor x contains itself"),
        ("? [a, b]\n: 1\n", "f.yaml:1:3: a key must be a plain word"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, message: str):
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "f.yaml")
    assert message in str(caught.value)


def test_merged_defaults_are_no_duplicates():
    source = parse_yaml("d: &d {x: 1}\ne: {<<: *d, y: 2}\n", "f.yaml")
    assert source.value["e"] == {"x": 1, "y": 2}


def test_files_that_cannot_be_read_say_why(tmp_path: Path):
    with pytest.raises(InputError, match=r"missing\.yaml: cannot be read: No such file"):
        read_yaml(tmp_path / "missing.yaml")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"name: gr\xfc\xdfe\n")
    with pytest.raises(InputError, match=r"is not UTF-8 text \(byte 8\)"):
        read_yaml(latin)


@given(st.text(alphabet="ab:{}[]-&*#'\"|>? \n\t1!%@`<,", max_size=40))
def test_any_text_is_yaml_or_an_input_error(text: str):
    try:
        parse_yaml(text, "f.yaml")
    except InputError as error:
        assert str(error).startswith("f.yaml")  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: !!int ''", "f.yaml:1:4: '' is no whole number of 64 bits"),
        ("a: !!float ''", "f.yaml:1:4: '' is no float"),
        ("version: !!bool abc", "f.yaml:1:10: 'abc' is no bool"),
        ("a: 1\nb: !!timestamp abc", "f.yaml:2:4: 'abc' is no timestamp"),
        ("a: 1\nb: x\0y", "f.yaml:2:5: holds U+0000"),
        ("!!bool q: 1", "f.yaml:1:1: 'q' is no bool"),
        ("a: " + "1" * 5000, "f.yaml:1:4: '111"),
    ],
)
def test_a_value_that_yaml_cannot_make_is_named_with_its_place(text: str, place: str):
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "f.yaml")
    assert str(caught.value).startswith(place)


_BOMBS = {
    "aliases": "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)),
    "merges": f"a: &a {{{', '.join(f'k{n}: 1' for n in range(300))}}}\nb: {{<<: [{'*a, ' * 400}]}}\n",
    "values": "a:\n" + "- 1\n" * 100_001,
    "levels": "[" * 66 + "]" * 66,
    "integer": "a: " + "1:" * 100_000 + "1",
}


@pytest.mark.parametrize(
    ("bomb", "message"),
    [
        ("aliases", "f.yaml:1:12: aliases make this more than 100000 values"),
        ("merges", "f.yaml:2:5: merges (<<) make this more than 100000 values"),
        ("values", "f.yaml:99999:3: the file has more than 100000 values"),
        ("levels", "f.yaml:1:66: is nested more than 64 levels deep"),
        (
            "integer",
            "f.yaml:1:4: '1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:",
        ),
    ],
)
def test_what_would_take_all_memory_or_time_is_refused_where_it_begins(bomb: str, message: str):
    with pytest.raises(InputError) as caught:
        parse_yaml(_BOMBS[bomb], "f.yaml")
    assert str(caught.value).startswith(message)


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path):
    path = tmp_path / "f.yaml"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(InputError, match=r"f\.yaml: is larger than 4 MiB"):
        read_yaml(path)


def test_mistakes_without_end_are_listed_up_to_a_number():
    source = parse_yaml("".join(f"k{n}: 1\n" for n in range(1000)), "f.yaml")
    with pytest.raises(InvalidFileError) as caught:
        YamlCheck(source).mapping((), source.value, ["known"])
    assert len(caught.value.errors) == 201
    assert "200 mistakes; the check stopped there" in str(caught.value.errors[-1])


def test_a_day_that_is_not_in_the_calendar_is_left_to_the_reader_as_text() -> None:
    source = parse_yaml("d: 2026-13-45\nt: 12:00\n", "f.yaml")
    assert source.value == {"d": "2026-13-45", "t": 720}
    assert source.texts[("t",)] == "12:00"
