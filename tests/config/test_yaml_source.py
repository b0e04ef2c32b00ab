"""Every value of a YAML file has a line and a column, which every error names."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.config.checker import YamlCheck
from slurm_gpu.config.yaml_source import parse_yaml, read_yaml
from slurm_gpu.errors import InputError, InvalidFileError

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


def test_a_missing_value_is_reported_at_its_parent():
    source = parse_yaml(_TEXT, "policy.yaml")
    assert str(source.error(("rules", 1, "why"), "is missing")) == "policy.yaml:5:5: is missing"
    assert str(source.error(("groups",), "is missing")) == "policy.yaml:1:1: is missing"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "f.yaml:2:1: 'a' occurs twice here; first on line 1"),
        ("a: {b: 1, b: 2}\n", "f.yaml:1:11: 'b' occurs twice here"),
        ("a: 1\nb\n\n\nc: 2\n", "f.yaml:2:1: is not valid YAML: a colon is missing after 'b'"),
        ("a: 1\ntimezone UTC", "f.yaml:2:1: is not valid YAML: a colon is missing after 'timezone'"),
        (
            "a b\nc: 1\n",
            "f.yaml:2:2: is not valid YAML: a key is not allowed here; check indentation and colons",
        ),
        ('a: "b\nc: 1\n', "f.yaml:1:4: is not valid YAML: a quotation mark or bracket is not closed"),
        ("a: [1, 2\n", "f.yaml:1:4: is not valid YAML: a quotation mark or bracket is not closed"),
        (
            "a: [1, 2\nb: 3\n",
            "f.yaml:2:2: is not valid YAML: expected ',' or ']', but got ':'; the bracket before ",
        ),
        ("a:\n\t- b\n", "f.yaml:2:1: is not valid YAML"),
        ("a: &x [*x]\n", "f.yaml:1:8: the anchor x contains itself"),
        ("? [a, b]\n: 1\n", "f.yaml:1:3: a key must be a plain word"),
    ],
)
def test_errors_are_named_with_their_position(text: str, message: str):
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "f.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize("mistake", [" ", "="])
def test_an_error_shows_no_password(mistake: str):
    url = "mysql+pymysql://slurm_gpu:SECRET@localhost/slurm_gpu"
    with pytest.raises(InputError) as caught:
        parse_yaml(f"workers: 0\nurl{mistake}{url}\n", "f.yaml")
    assert "after 'url'" in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_merged_defaults_are_no_duplicates():
    source = parse_yaml("d: &d {x: 1}\ne: {<<: *d, y: 2}\n", "f.yaml")
    assert source.value["e"] == {"x": 1, "y": 2}


def test_unreadable_files_are_errors_with_the_reason(tmp_path: Path):
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
        ("a: !!int ''", "f.yaml:1:4: '' is not a valid 64-bit integer"),
        ("a: !!float ''", "f.yaml:1:4: '' is not a valid float"),
        ("version: !!bool abc", "f.yaml:1:10: 'abc' is not a valid bool"),
        ("a: 1\nb: !!timestamp abc", "f.yaml:2:4: 'abc' is not a valid timestamp"),
        ("a: 1\nb: x\0y", "f.yaml:2:5: contains U+0000"),
        ("!!bool q: 1", "f.yaml:1:1: 'q' is not a valid bool"),
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
    "integer": "a: !!int " + "1:" * 100_000 + "1",
}


@pytest.mark.parametrize(
    ("bomb", "message"),
    [
        ("aliases", "f.yaml:1:12: aliases expand this to more than 100000 values"),
        ("merges", "f.yaml:2:5: merges (<<) expand this to more than 100000 values"),
        ("values", "f.yaml:99999:3: the file has more than 100000 values"),
        ("levels", "f.yaml:1:66: is nested more than 64 levels deep"),
        (
            "integer",
            "f.yaml:1:4: '1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:",
        ),
    ],
)
def test_yaml_that_would_exhaust_memory_or_time_is_refused(bomb: str, message: str):
    with pytest.raises(InputError) as caught:
        parse_yaml(_BOMBS[bomb], "f.yaml")
    assert str(caught.value).startswith(message)


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path):
    path = tmp_path / "f.yaml"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(InputError, match=r"f\.yaml: is larger than the maximum of 4 MiB"):
        read_yaml(path)


def test_mistakes_without_end_are_listed_up_to_a_number():
    source = parse_yaml("".join(f"k{n}: 1\n" for n in range(1000)), "f.yaml")
    with pytest.raises(InvalidFileError) as caught:
        YamlCheck(source).mapping((), source.value, ["known"])
    assert len(caught.value.errors) == 201
    assert "200 errors; the check stopped there" in str(caught.value.errors[-1])


def test_a_day_that_is_not_in_the_calendar_is_left_to_the_reader_as_text() -> None:
    assert parse_yaml("d: 2026-13-45\n", "f.yaml").value == {"d": "2026-13-45"}


@pytest.mark.parametrize("text", ["1:30", "-1:30", "1:30:00", "1:30.5", "010", "00", "-010", "0_7"])
def test_numbers_in_base_60_and_8_stay_text(text: str) -> None:
    assert parse_yaml(f"a: {text}\n{text}: 0", "f.yaml").value == {"a": text, text: 0}
    with pytest.raises(InputError, match=rf"^f\.yaml:1:4: '{text}' is not a valid "):
        parse_yaml(f"a: !!{'float' if '.' in text else 'int'} {text}", "f.yaml")


def test_other_notations_of_numbers_remain() -> None:
    source = parse_yaml("[0, -1, 8, 0x1f, 0b11, 1_000, 0.5, 05.5, .inf]", "f.yaml")
    assert source.value == [0, -1, 8, 31, 3, 1000, 0.5, 5.5, float("inf")]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a: yes", " (written as yes)"),
        ("a: 0x1F", " (written as 0x1F)"),
        ("a: 1_000", " (written as 1_000)"),
        ("a: 2026-12-31", " (written as 2026-12-31)"),
        ("a: ~", " (written as ~)"),
        ("a:", " (no value is written)"),
        ("a: 1000", ""),
        ("a: 'yes'", ""),
        ("a: [yes]", ""),
    ],
)
def test_an_error_quotes_the_text_of_a_converted_value(text: str, written: str) -> None:
    assert parse_yaml(text, "f.yaml").error(("a",), "is odd").message == f"is odd{written}"


def test_an_error_quotes_the_text_of_a_converted_key() -> None:
    source = parse_yaml("on: 1\n", "f.yaml")
    assert str(source.error((True,), "is odd", key=True)) == "f.yaml:1:1: is odd (written as on)"
    assert str(source.error((True,), "is odd")) == "f.yaml:1:5: is odd"


def test_texts_have_the_quotes_of_the_file() -> None:
    source = parse_yaml("""{a: 12:00, b: "12:00", c: '12:00'}""", "f.yaml")
    assert list(source.texts.values()) == ["12:00", '"12:00"', "'12:00'"]


def test_a_time_without_quotes_is_no_duration_where_it_may_be_hours_or_minutes() -> None:
    source = parse_yaml('[12:00, 09:00, "12:00", 1:30:00, 90s, 5]', "f.yaml")
    check = YamlCheck(source)
    seconds = [check.seconds((index,), value) for index, value in enumerate(source.value)]
    assert seconds == [None, None, 720, 5400, 90, None]
