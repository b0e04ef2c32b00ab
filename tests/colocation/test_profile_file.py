"""Profile files are read back as written, and errors are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.profiles.profile_file import read_profiles, write_profiles_csv, write_profiles_json
from slurm_gpu.errors import InputError

TEXT = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=8) | st.sampled_from(
    ["=1+1", "'q'", "a, b", 'say "b"', "-x"]
)
PART = st.none() | st.floats(0, 1)
PROFILES = st.lists(
    st.builds(
        ApplicationProfile,
        application=TEXT,
        gpu_model=TEXT,
        phases=st.lists(
            st.builds(
                ProfilePhase,
                seconds=st.floats(1e-6, 1e9),
                util=PART,
                sm=PART,
                pcie=PART,
                memory_mib=st.none() | st.floats(0, 1e7),
            ),
            min_size=1,
            max_size=3,
        ).map(tuple),
        kind=st.just("") | TEXT,
        input_size=st.none() | st.floats(-1e9, 1e9),
        parameters=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2).map(
            lambda one: tuple(sorted(one.items()))
        ),
        runs=st.integers(1, 10**6),
    ),
    max_size=3,
    unique_by=lambda one: one.key,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PROFILES)
def test_files_are_read_as_they_were_written(tmp_path: Path, profiles: list[ApplicationProfile]) -> None:
    write_profiles_json(tmp_path / "p.json", profiles)
    write_profiles_csv(tmp_path / "p.csv", profiles)
    assert read_profiles(tmp_path / "p.json") == tuple(profiles)
    assert read_profiles(tmp_path / "p.csv") == tuple(profiles)


ONE: dict[str, Any] = {"application": "a", "gpu_model": "V100", "phases": [{"seconds": 1, "util": 0.5}]}


def whole(*profiles: Any) -> dict[str, Any]:
    return {"format": "slurm-gpu profiles 1", "profiles": list(profiles)}


def test_omitted_values_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(whole(ONE)))
    assert read_profiles(path) == (ApplicationProfile("a", "V100", (ProfilePhase(seconds=1, util=0.5),)),)


@pytest.mark.parametrize(
    ("decoded", "said"),
    [
        ([], "must be a JSON object"),
        ({"format": "x"}, 'format: "x" must be "slurm-gpu profiles 1"'),
        ({"format": "slurm-gpu profiles 1"}, "must contain only `format` and the list `profiles`"),
        (whole(3), r"profiles\[0\]: 3 must be an object with only the keys application, gpu_model"),
        (whole(ONE, ONE), "a on V100 occurs twice with the same input"),
        (whole(ONE | {"applicaton": 1}), "must be an object with only the keys"),
        (whole(ONE | {"application": ""}), "application and gpu_model must be given"),
        (whole(ONE | {"application": "a\n"}), "must be printable"),
        (whole(ONE | {"kind": 3}), "kind: 3 must be a text"),
        (whole(ONE | {"input_size": "16"}), 'input_size: "16" must be a number or null'),
        (whole(ONE | {"parameters": {"a": 1}}), "must be an object of strings"),
        (whole(ONE | {"runs": 0}), "runs: 0 must be 1 or more"),
        (whole(ONE | {"runs": 1.5}), "runs: 1.5 must be a whole number"),
        (whole(ONE | {"phases": []}), r"phases: \[\] must be a list of at least one phase"),
        (whole(ONE | {"phases": [{"util": 1}]}), r"phases\[0\]: seconds must be given"),
        (whole(ONE | {"phases": [{"seconds": 0}]}), r"phases\[0\]: seconds must be more than 0"),
        (whole(ONE | {"phases": [{"seconds": 1e300}]}), "seconds must be at most 1e.10, not 1e.300"),
        (whole(ONE | {"phases": [{"seconds": 1, "memory_mib": 1e11}]}), "memory_mib must be at most 1e.10"),
        (whole(ONE | {"phases": [{"seconds": 1, "util": 50}]}), r"phases\[0\]: util must be from 0 to 1"),
        (
            whole(ONE | {"phases": [{"seconds": 1, "memory": 50}]}),
            "must be an object with only the keys seconds, util",
        ),
    ],
)
def test_errors_in_json_are_named(tmp_path: Path, decoded: Any, said: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(decoded))
    with pytest.raises(InputError, match=said):
        read_profiles(path)


HEADER = "application,gpu_model,kind,input_size,parameters,runs,phase,seconds,util,memory_mib,sm,pcie\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1:1: the first line must be application,gpu_model"),
        (HEADER + "a,V100\n", ":2:1: has 2 cells, but the first line has 12"),
        (HEADER + "a,V100,,,,1,2,1,,,,\n", ":2:1: phase '2' must be 1, or one more"),
        (HEADER + "a,V100,,,,1,1,1,,,,\nb,V100,,,,1,2,1,,,,\n", ":3:1: phase '2' must be 1"),
        (HEADER + "a,V100,,,,1,1,,,,,\n", ":2:1: seconds must be given"),
        (HEADER + "a,V100,,,,1,1,1,2,,,\n", ":2:1: util must be from 0 to 1, not 2"),
        (HEADER + "a,V100,,,,1,1,1,x,,,\n", ":2:1: util 'x' must be a number, or empty"),
        (HEADER + "a,V100,,,,1,1,nan,,,,\n", "seconds 'nan' must be a number"),
        (HEADER + "a,V100,,,,,1,1,,,,\n", ":2:1: runs '' must be a whole number"),
        (
            HEADER + "a,V100,,,[1],1,1,1,,,,\n",
            r":2:1: parameters '\[1\]' must be empty or a JSON object of strings",
        ),
        (HEADER + f"a,V100,,,{'[' * 5000},1,1,1,,,,\n", r":2:1: parameters '\[{60}…' must be empty"),
        (HEADER + f"a,V100,,{'x' * 5000},,1,1,1,,,,\n", ":2:1: input_size 'x{60}…' must be a number"),
        (HEADER + "a,V100,,,,1,1,1,,,,\n" * 2, "occurs twice"),
        (HEADER + '"a', "is not CSV"),
    ],
)
def test_errors_in_csv_are_named_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_profiles(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for name in ("p.csv", "p.json"):
        with pytest.raises(InputError, match=f"{name}: cannot be read"):
            read_profiles(tmp_path / name)
