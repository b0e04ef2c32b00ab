"""Text chosen by a user or a faulty node remains text in every output."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.cli.runs.event_text import event_text
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript
from slurm_gpu.text.cells import text
from slurm_gpu.wire import Event
from tests.policy.compile import compiled
from tests.policy.model import Request, RuleModel
from tests.policy.render import PARTITIONS, description

_NAMES = [
    "two\nlines",
    "a=b c=d",
    "100% %s %n",
    "\x1b[2J\x1b]0;owned\x07",
    "'; DROP TABLE run; --",
    "$(reboot)",
    "`reboot`",
    "|tab\tle|",
    "<script>",
    "../../etc/passwd",
    "\u202egnp.exe",
    "ends with \\",
]
_KINDS = [
    "xid",
    "intruder",
    "job_mismatch",
    "clock_step",
    "spool_full",
    "gpu_lost",
    "device_elsewhere",
    "of_a_newer_version",
]
_KEYS = ["code", "pid", "uid", "job", "of", "left_out", "allocated", "cgroup", "seconds", "dropped", "nodes"]


@given(
    st.sampled_from(_KINDS),
    st.dictionaries(st.sampled_from(_KEYS), st.sampled_from(_NAMES) | st.text(max_size=20) | st.integers()),
)
def test_data_of_a_node_cannot_control_a_terminal(kind: str, data: dict[str, str | int]) -> None:
    event = Event(node="n1", boot_id="b", n=1, at_s=1, kind=kind, data=data)
    assert text(event_text(event)).isprintable()


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("lua", [LUA_VERSIONS[0], LUA_VERSIONS[-1]])
@pytest.mark.parametrize("field", ["account", "qos", "partition"])
def test_a_job_with_any_name_adds_one_line_to_the_log(
    tmp_path: Path, lua: str, name: str, field: str
) -> None:
    log = tmp_path / "decisions.log"
    rule = RuleModel("size", "job", limits={"gpus": 64000})
    script = PolicyScript(build_bundle(compiled([rule], str(log))), lua=lua, writes=True)
    script.submit({**description(Request(1001, "vision", per_job=1)), field: name, "name": name}, PARTITIONS)
    (line,) = log.read_text().splitlines()
    assert line.startswith("slurm-gpu/1 ")
    assert line.isprintable()
    assert [word.partition("=")[0] for word in line.split()].count(field) == 1
