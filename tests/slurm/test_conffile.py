"""slurm.conf is read as it is written, with the places of its lines."""

from pathlib import Path

import pytest

from slurm_gpu.slurm.conffile import read_conf, settings_named


def test_lines_comments_continuations_and_included_files(tmp_path: Path):
    conf, more = tmp_path / "slurm.conf", tmp_path / "more.conf"
    conf.write_text(
        "# ClusterName=no\n"
        "ClusterName = neuron # yes\n"
        "Prolog=/a/*\\\n"
        ",/b/*\n"
        "\n"
        "Include more.conf\n"
        "include /nowhere\n"
        "NodeName=n1 CPUs=4\n"
        "not a setting\n"
        "Last=1\\"
    )
    more.write_text("prolog=/c\ninclude slurm.conf\n")  # a circle
    lines = read_conf(conf)[:3]
    assert [(line.place, str(line)) for line in lines] == [
        (f"{conf}:2", "ClusterName=neuron"),
        (f"{conf}:3", "Prolog=/a/*,/b/*"),
        (f"{more}:1", "prolog=/c"),
    ]
    assert [line.value for line in settings_named(lines, "PROLOG")] == ["/a/*,/b/*", "/c"]
    assert (read_conf(conf)[-1].number, str(read_conf(conf)[-1])) == (10, "Last=1")


def test_without_a_slurm_conf(tmp_path: Path):
    with pytest.raises(OSError, match="No such file"):
        read_conf(tmp_path / "slurm.conf")
