"""Options of simgpu give the intended schedule, or a helpful error."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.simgpu.errors import RequestError
from lab.simgpu.layout import MAX_POINTS
from lab.simgpu.load import USUAL, Footprint, Part, Point, integrate
from lab.simgpu.schedule import (
    PROFILES,
    Phase,
    from_profile,
    parse_phases,
    parse_ramp,
    parse_seconds,
    stretches,
    to_points,
)

percent = st.integers(0, 1000).map(lambda tenths: tenths / 10)
mib = st.integers(0, 80_000).map(float)
phase = st.builds(
    Phase,
    st.integers(1, 100_000).map(lambda ms: ms / 1000),
    st.tuples(percent, percent),
    st.tuples(mib, mib),
)


def spell(item: Phase) -> str:
    util, memory = item.util_pct, item.memory_mib
    return f"util={util[0]}:{util[1]}, mem={memory[0]}:{memory[1]}, s={item.seconds}"


@given(st.lists(phase, min_size=1, max_size=20))
def test_phases_are_read_as_written(phases):
    assert parse_phases("; ".join(map(spell, phases))) == phases


@given(st.lists(phase, min_size=1, max_size=20))
def test_points_keep_the_integral_of_the_phases(phases):
    points = to_points(phases, 10**18)
    whole = integrate([Part(points)], points[0].time_ns, points[-1].time_ns)
    assert whole.busy / 1e9 == pytest.approx(sum(p.seconds * sum(p.util_pct) / 2 for p in phases), abs=1e-3)
    assert whole.memory[0] / 1e9 == pytest.approx(
        sum(p.seconds * sum(p.memory_mib) / 2 for p in phases), abs=1
    )
    assert [point.time_ns for point in points] == sorted(point.time_ns for point in points)


def test_activity_and_footprint_may_change_with_the_phase():
    usual = USUAL._replace(dram=0.2)
    phases = parse_phases(
        "util=90,s=5; util=70,s=1; util=90,tensor=0.1,power=0.5,clock=0.7,reasons=0x40,s=4", usual
    )
    assert [phase.activity for phase in phases] == [usual, usual, usual._replace(tensor=0.1)]
    assert phases[2].footprint == Footprint(power=0.5, clock=0.7, reasons=0x40)
    assert stretches(phases) == [phases[:2], phases[2:]]


def test_phases_that_meet_share_a_vertex_and_steps_have_two():
    points = to_points([Phase(1, (0, 50)), Phase(2, (50, 50)), Phase(1, (10, 10))], 0)
    assert points == (
        Point(0, 0, 0),
        Point(10**9, 50, 0),
        Point(3 * 10**9, 50, 0),
        Point(3 * 10**9, 10, 0),
        Point(4 * 10**9, 10, 0),
    )


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("seconds", [0.5, 4.2, 60.0, 600.0])
def test_a_profile_lasts_for_the_requested_seconds(name, seconds):
    assert sum(phase.seconds for phase in from_profile(name, seconds)) == pytest.approx(seconds)


def test_a_ramp_is_cut_where_the_time_is_over():
    assert Phase(10, (0, 100), (50, 50)).first(2) == Phase(2, (0, 20), (50, 50))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("util=101,s=1", "util '101': must not exceed 100"),
        ("util=a,s=1", "util 'a': must be a number, or two for a ramp, such as 40 or 10:90"),
        ("util=-1,s=1", "util '-1'"),
        ("util=1:2:3,s=1", "util '1:2:3'"),
        ("util=1", "phase 'util=1': s=SECONDS is missing"),
        (
            "load=1,s=1",
            "unknown key 'load'; known are util, mem, s, sm_active, sm_occupancy, tensor, dram, power",
        ),
        ("clock=1.5,s=1", "clock: must be a factor from 0 to 1, such as clock=0.5"),
        ("reasons=64,s=1", "reasons '64': must be NVML's bits in hexadecimal, such as 0x40"),
        ("util=1,s=0", "s '0': must be seconds"),
        ("util=1,s=nan", "s 'nan': must be seconds"),
        (" ; ", "must have at least one"),
    ],
)
def test_a_wrong_phase_is_quoted(text, complaint):
    with pytest.raises(RequestError) as caught:
        parse_phases(text)
    assert complaint in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_phases_or_an_error(text):
    with contextlib.suppress(RequestError):
        assert parse_phases(text)


def test_other_invalid_requests_are_errors():
    with pytest.raises(RequestError, match="profile 'vgg': must be one of resnet50, bert"):
        from_profile("vgg", 1)
    with pytest.raises(RequestError, match=f"at most {MAX_POINTS}"):
        to_points([Phase(1, (0, 50))] * 400, 0)
    assert parse_ramp(" 40 ", "x") == (40.0, 40.0)
    assert parse_seconds("1e2", "x") == 100.0
