"""Test TRES and GRES strings of Slurm 22.05 and later."""

import pytest

from slurm_gpu.slurm.tres import Gres, SharesPerGpu, count_mgpu, gpus_by_type, parse_gres, parse_tres, total


def test_memory_is_in_mib_for_every_unit():
    assert parse_tres("mem=512M")["mem"] == 512
    assert parse_tres("mem=12.50G")["mem"] == 12800
    assert parse_tres("mem=2048K")["mem"] == 2
    assert parse_tres("mem=512")["mem"] == 512
    assert parse_tres("mem=1T")["mem"] == 1024 * 1024


def test_amounts_by_name():
    assert parse_tres("cpu=8,node=2,gres/gpu=4,gres/gpu:a100=4,gres/shard=16") == {
        "cpu": 8,
        "node": 2,
        "gres/gpu": 4,
        "gres/gpu:a100": 4,
        "gres/shard": 16,
    }
    assert parse_tres("") == parse_tres("(null)") == {}


def test_an_unknown_amount_is_a_gap_but_zero_is_kept():
    assert parse_tres("energy=18446744073709551614,gres/gpu=0") == {"gres/gpu": 0}


def test_an_invalid_tres_is_quoted():
    with pytest.raises(ValueError, match="'cpu' is not name=amount"):
        parse_tres("cpu,mem=1G")


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("gpu:a100:4,shard:a100:16", [Gres("gpu", "a100", 4), Gres("shard", "a100", 16)]),
        ("gpu:a100:4(S:0-1)", [Gres("gpu", "a100", 4)]),
        ("gpu:a100:3(IDX:1-3)", [Gres("gpu", "a100", 3, (1, 2, 3))]),
        ("gpu:a100:0(IDX:N/A)", [Gres("gpu", "a100", 0)]),
        (
            "gpu:a100:2(IDX:0,3),gpu:v100:1(IDX:4)",
            [Gres("gpu", "a100", 2, (0, 3)), Gres("gpu", "v100", 1, (4,))],
        ),
        ("gpu:3090:2", [Gres("gpu", "3090", 2)]),
        ("gpu:(null):2(IDX:0-1)", [Gres("gpu", "", 2, (0, 1))]),
        ("shard:6(0/4,2/4,4/4,0/4)", [Gres("shard", "", 6, (1, 2))]),
        ("shard:v100:4(-/4,-/4,4/4,-/4)", [Gres("shard", "v100", 4, (2,))]),
        ("gres:gpu:2", [Gres("gpu", "", 2)]),
        ("gres/gpu:a100:2", [Gres("gpu", "a100", 2)]),
        ("gres/gpu=2", [Gres("gpu", "", 2)]),
        ("gres/gpu:a100=2", [Gres("gpu", "a100", 2)]),
        ("gpu", [Gres("gpu", "", 1)]),
        ("gpu:a100_3g.20gb:2", [Gres("gpu", "a100_3g.20gb", 2)]),
        ("(null)", []),
    ],
)
def test_gres_in_every_spelling(text: str, entries: list[Gres]):
    assert parse_gres(text) == entries


def test_gres_that_cannot_be_read_is_quoted():
    with pytest.raises(ValueError, match=r"GRES 'gpu:2\(IDX:0'"):
        parse_gres("gpu:2(IDX:0")


def test_totals():
    entries = parse_gres("gpu:a100:4,gpu:v100:0,shard:16")
    assert gpus_by_type(entries) == {"a100": 4, "v100": 0}
    assert total(entries, "shard") == 16


def test_gpus_and_shards_add_up_in_thousandths():
    assert count_mgpu({"gres/gpu": 2}) == 2000
    assert count_mgpu({"gres/shard": 6}, SharesPerGpu(shard=4)) == 1500
    assert count_mgpu({"cpu": 4}) == 0
    assert count_mgpu({"gres/shard": 6}) is None
