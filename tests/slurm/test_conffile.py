"""slurm.conf is read as it is written, with the places of its lines."""

from pathlib import Path

import pytest

from slurm_gpu.slurm.conffile import node_weights, read_conf, settings_named


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


def test_the_weights_of_nodes_are_those_of_their_lines_and_of_the_default_before_them(tmp_path: Path):
    conf, gpus = tmp_path / "slurm.conf", tmp_path / "gpus.conf"
    conf.write_text(
        "nodename=login CPUs=4\n"
        "NodeName=DEFAULT RealMemory=1000 weight=20\n"
        "NodeName=c[1-2] CPUs=4\n"
        "Include gpus.conf\n"
        "NodeName=odd[ Weight=3\n"
        "NodeName=DEFAULT Weight=1\n"
        "NodeName=late Feature=Weight=9\n"
    )
    gpus.write_text("NodeName=g1,g[3-4] CPUs=4 \\\n  Weight=50 Gres=gpu:4 # Weight=7\n")
    assert node_weights(read_conf(conf)) == {
        "login": 1, "c1": 20, "c2": 20, "g1": 50, "g3": 50, "g4": 50, "late": 1,
    }  # fmt: skip


def test_without_a_slurm_conf(tmp_path: Path):
    with pytest.raises(OSError, match="No such file"):
        read_conf(tmp_path / "slurm.conf")
