"""Squares are in the natural order of node names, and keep their places while the cluster is unchanged."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.monitor.cluster.layout import layout_key, make_layout
from slurm_gpu.monitor.cluster.metrics import GAP, metrics_for
from slurm_gpu.text.hostlist import natural
from slurm_gpu.wire import DeviceFacts
from tests.monitor.test_allocation import node, report


def layout_json(*given: Any) -> Any:
    return json.loads(make_layout("lab", *given).body)


def test_zones_racks_and_nodes_are_in_the_order_in_which_people_count():
    nodes = [
        node("n10", zone="zone1"),
        node("n2", zone="zone1"),
        node("n1", zone="zone10"),
        node("n3", zone="zone2"),
        node("n4", zone=None),
    ]
    zones = layout_json(nodes, (), {"n10": "r1", "n2": "r2"})["zones"]
    shown = [
        (zone["name"], [(rack["name"], [n["name"] for n in rack["nodes"]]) for rack in zone["racks"]])
        for zone in zones
    ]
    assert shown == [
        ("zone1", [("r1", ["n10"]), ("r2", ["n2"])]),
        ("zone2", [(None, ["n3"])]),
        ("zone10", [(None, ["n1"])]),
        (None, [(None, ["n4"])]),
    ]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 200)), unique=True))
def test_natural_order_is_by_letters_and_then_by_numbers(names: list[tuple[str, int]]):
    ordered = sorted((f"{letter}{number}" for letter, number in names), key=natural)
    assert all((one[0], int(one[1:])) < (other[0], int(other[1:])) for one, other in pairwise(ordered))


def test_squares_are_in_driver_order_and_padded_to_slurm_s_count():
    devices = (
        DeviceFacts(uuid="B", node="n1", at_s=1, index=1),
        DeviceFacts(uuid="A", node="n1", at_s=1, index=0),
    )
    (zone,) = layout_json([node(n_gpus=3)], [replace(report(), devices=devices)], {})["zones"]
    assert [gpu["uuid"] for gpu in zone["racks"][0]["nodes"][0]["gpus"]] == ["A", "B", None]


def test_a_gpu_that_is_cut_is_its_instances_where_slurm_hands_these_out():
    gpu = DeviceFacts(uuid="GPU", node="n1", at_s=1, index=0)
    parts = [
        DeviceFacts(uuid=f"MIG-{n}", node="n1", at_s=1, index=0, parent="GPU", gpu_instance=n) for n in (2, 1)
    ]
    reports = [replace(report(), devices=(gpu, *parts))]
    cut = make_layout("lab", [node(gpus={"1g.10gb": 2})], reports, {})
    assert list(cut.square_of) == ["MIG-1", "MIG-2"]
    whole = make_layout("lab", [node(n_gpus=1)], reports, {})
    assert list(whole.square_of) == ["GPU"]


def test_gpus_of_a_node_with_two_types_have_the_type_of_their_name():
    names = ("NVIDIA V100-SXM2", "NVIDIA A100-SXM4")
    devices = tuple(
        DeviceFacts(uuid=name, node="n1", at_s=1, index=index, name=name) for index, name in enumerate(names)
    )
    made = make_layout("lab", [node(gpus={"a100": 1, "v100": 1})], [replace(report(), devices=devices)], {})
    assert made.types == ["v100", "a100"]


def test_its_id_changes_only_with_nodes_or_gpus():
    one, other = node("n1"), node("n2")
    before = make_layout("lab", [one, other], [report()], {})
    busier = replace(one, state="allocated", gpus_free=0)
    assert make_layout("lab", [busier, other], [report()], {}).id == before.id
    assert make_layout("lab", [one], [report()], {}).id != before.id
    assert make_layout("lab", [one, other], [], {}).id != before.id
    same = layout_key([busier], [report()], {})
    assert same == layout_key([one], [report()], {})


def test_a_measured_zero_is_zero_and_a_gap_is_none():
    for metric in metrics_for([]):
        assert (metric.octet(0.0), metric.octet(None)) == (0, GAP)
        assert metric.octet(1e9) == 254
        assert abs(metric.octet(metric.top) * metric.step - metric.top) <= metric.step / 2


def test_the_scale_of_power_ends_at_the_greatest_limit():
    (power,) = [metric for metric in metrics_for([300.0, None, 1000.0]) if metric.name == "power"]
    assert (power.top, power.step) == (1000, 4)
