"""slurm.conf is read with Slurm's grammar; tests/lab/test_slurm_conf.py compares it with slurmctld."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.slurm.conf_file import (
    node_weights,
    parse_number,
    read_conf,
    settings_named,
    with_defaults,
)
from tests.slurm.spellings import SPELLINGS, Spelling

# Every key that slurm-gpu reads from Slurm's files, with a value that needs no quotes.
KEYS = {
    "Prolog": "/etc/slurm/prolog.d/*",
    "Epilog": "/etc/slurm/epilog.d/*",
    "JobSubmitPlugins": "throttle,lua",
    "MultipleFiles": "/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21",
    "Weight": "50",
}


def _read(tmp_path: Path, text: str):
    conf = tmp_path / "slurm.conf"
    conf.write_bytes(text.encode())
    return read_conf(conf)


def test_lines_have_the_place_where_they_begin(tmp_path: Path):
    conf, more = tmp_path / "slurm.conf", tmp_path / "more.conf"
    conf.write_text(
        "# ClusterName=no\n"
        "ClusterName = neuron # yes\n"
        "Prolog=/a/*\\\n"
        ",/b/*\n"
        "\n"
        "Include more.conf\n"
        "NodeName=n1 CPUs=4\n"
        "Last=1\\"
    )
    more.write_text("prolog=/c\n")
    lines = read_conf(conf)
    assert [(line.place, str(line)) for line in lines] == [
        (f"{conf}:2", "ClusterName=neuron"),
        (f"{conf}:3", "Prolog=/a/*,/b/*"),
        (f"{more}:1", "prolog=/c"),
        (f"{conf}:7", "NodeName=n1 CPUs=4"),
        (f"{conf}:8", "Last=1"),
    ]
    assert [line.value for line in settings_named(lines, "PROLOG")] == ["/a/*,/b/*", "/c"]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=[spelling.name for spelling in SPELLINGS])
@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_read_in_every_spelling(tmp_path: Path, key: str, spelling: Spelling):
    (line,) = _read(tmp_path, spelling.line(key, KEYS[key]))
    assert (line.key.lower(), line.value, line.leftover) == (key.lower(), KEYS[key], "")


@pytest.mark.parametrize("spelling", SPELLINGS, ids=[spelling.name for spelling in SPELLINGS])
@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_a_node_is_read_in_every_spelling(tmp_path: Path, key: str, spelling: Spelling):
    text = spelling.line("NodeName", "n[1-2]", (key, KEYS[key]), ("CPUs", "4"))
    (line,) = _read(tmp_path, text)
    assert (line.value, line.get(key), line.get("cpus"), line.leftover) == ("n[1-2]", KEYS[key], "4", "")


@pytest.mark.parametrize("spelling", SPELLINGS, ids=[spelling.name for spelling in SPELLINGS])
def test_a_weight_is_that_of_the_node_in_every_spelling(tmp_path: Path, spelling: Spelling):
    default = spelling.line("NodeName", "DEFAULT", ("Weight", "70")).rstrip("\r\n") + "\n"
    lines = _read(tmp_path, default + spelling.line("NodeName", "n[1-2]", ("Weight", "50")))
    assert node_weights(lines) == {"n1": 50, "n2": 50}
    lines = _read(tmp_path, default + spelling.line("NodeName", "n[1-2]"))
    assert node_weights(lines) == {"n1": 70, "n2": 70}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"Key=a\#b#c", "a#b"),
        (r"Key=a\\#c", "a\\"),
        ('Key="a # b"', '"a'),  # a comment begins within quotes too
        (r'Key="a \# b"', "a # b"),
        (r"Key=C:\\\\x\y", r"C:\\xy"),
        ('Key=""', ""),
        ('Key="a b"c', '"a'),
        ('Key="a"b', '"a"b'),
        ('Key=a"b"', 'a"b"'),
        ("Key=a=b", "a=b"),
        ("Key+=a", "a"),
        ("Key=\u00a0a", "\u00a0a"),
        ("Key=a\\\r\nb\r\n", "ab"),
        ("Key=a\\ # comment\nb", "ab"),
        ("Key=a # no continuation \\\nb", "a"),
        ("Key=a\\\\\\\nb", "a\\b"),
        ("Key=a\\\n# ends the line\nOther=b", "a"),
        ("Key=\\\n  a", "a"),
        ("\tKEY =\t'a", "'a"),
        ("Key=a\x0cb=c", "a"),
        ("Key=a\u2028b", "a\u2028b"),
    ],
)
def test_quotes_escapes_comments_and_continuations(tmp_path: Path, text: str, value: str):
    assert settings_named(_read(tmp_path, text), "Key")[0].value == value


@pytest.mark.parametrize(
    ("text", "leftover"),
    [
        ("not a setting", "not a setting"),
        ("Key=", "Key="),
        ('Key="a b"c', 'b"c'),
        ("NodeName=n1 CPUs=4 nonsense Weight=3", "nonsense Weight=3"),
        (" Include more.conf", "Include more.conf"),
        ("\ufeffKey=a", "\ufeffKey=a"),
    ],
)
def test_text_that_slurm_cannot_read_is_leftover(tmp_path: Path, text: str, leftover: str):
    assert [line.leftover for line in _read(tmp_path, text)] == [leftover]


@given(st.text(st.sampled_from('ab=" \t\\#\n0,[]+\r')))
def test_a_line_as_it_is_shown_is_read_as_the_same_line(tmp_path_factory: pytest.TempPathFactory, text: str):
    directory = tmp_path_factory.getbasetemp()
    for line in _read(directory, text):
        if line.key:
            (again,) = _read(directory, f"{line}\n")
            assert (again.key, again.value, again.pairs, again.leftover) == (
                line.key,
                line.value,
                line.pairs,
                "",
            )


def test_included_files_are_found_as_slurm_finds_them(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.conf").write_text("InA=1\nInclude b.conf\nInclude c.conf\n")
    (tmp_path / "sub/b.conf").write_text("InB=1\n")  # 22.05: from the including file
    (tmp_path / "c.conf").write_text("InC=1\n")  # later: from slurm.conf
    (tmp_path / "neuron.conf").write_text("InD=1\n")
    text = f"ClusterName=Neuron\nInclude {tmp_path}/sub/a.conf\nINCLUDE\t%c.conf \nIncluded=1\n"
    keys = [line.key for line in _read(tmp_path, text)]
    assert keys == ["ClusterName", "InA", "InB", "InC", "InD", "Included"]


@pytest.mark.parametrize("name", ["/nowhere/x.conf", "*.conf", "slurm.conf"])
def test_a_file_that_slurm_cannot_include_is_named(tmp_path: Path, name: str):
    (tmp_path / "x.conf").write_text("")
    with pytest.raises(OSError, match=r"conf'") as raised:
        _read(tmp_path, f"Include {name}\n")
    assert str(raised.value.filename).endswith(name)


def test_without_a_slurm_conf(tmp_path: Path):
    with pytest.raises(OSError, match="No such file"):
        read_conf(tmp_path / "slurm.conf")


def test_the_weights_of_nodes_are_those_of_their_lines_and_of_the_default_before_them(tmp_path: Path):
    (tmp_path / "gpus.conf").write_text("NodeName=g1,g[3-4] CPUs=4 \\\n  Weight=50 Gres=gpu:4 # Weight=7\n")
    lines = _read(
        tmp_path,
        "nodename=login CPUs=4\n"
        "NodeName=DEFAULT RealMemory=1000 weight=20\n"
        "NodeName=c[1-2] CPUs=4\n"
        "Include gpus.conf\n"
        "NodeName=odd[ Weight=3\n"
        "NodeName=default CPUs=8\n"
        "NodeName=c3\n"
        "NodeName=bad Weight=much\n"
        "NodeName=DEFAULT Weight=1\n"
        "NodeName=late Feature=Weight=9\n",
    )
    assert node_weights(lines) == {
        "login": 1,
        "c1": 20,
        "c2": 20,
        "g1": 50,
        "g3": 50,
        "g4": 50,
        "c3": 20,
        "late": 1,
    }
    assert [line.get("CPUs") for line in with_defaults(lines, "NodeName")][-3:] == ["8", "8", "8"]


@pytest.mark.parametrize(
    "text",
    [
        'NodeName="n[1-2]" Weight=50',
        'NodeName="n1,n2" Weight = 50',
        'NodeName="n1 n2"\tWeight="50"',
        "NodeName=DEFAULT\tWeight=50\nNodeName=n1\nNodeName=n2",
        "NODENAME = n[1-2] WEIGHT=0x32",
        "NodeName=n1,n2 Weight=1 Weight=50",
        'NodeName="DEFAULT" Weight=\\\n50\nNodeName=n[1-2]',
    ],
)
def test_weights_in_any_spelling(tmp_path: Path, text: str):
    assert node_weights(_read(tmp_path, text)) == {"n1": 50, "n2": 50}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        ("0", 0),
        ("50", 50),
        ("062", 50),
        ("0x32", 50),
        ("+50", 50),
        ("4k", 4096),
        ("Infinite", 2**32 - 1),
    ],
)
def test_numbers(text: str, number: int):
    assert parse_number(text) == number


@pytest.mark.parametrize("text", ["08", "0x", "-1", "1.5", "5 ", "1kk", "4294967296", "much"])
def test_text_that_is_no_number_is_refused(text: str):
    with pytest.raises(ValueError, match=r"is not a number|greater than") as raised:
        parse_number(text)
    assert repr(text) in str(raised.value)
