"""Test that a real slurmctld passes the fields of slurm_gpu/slurm/job_desc.py to job_submit.lua."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.configuration import slurm_version
from slurm_gpu.slurm import job_desc

from .seconds import next_second

JOB = ("--begin=now+1hour", "--output=/dev/null", "--wrap=true")
# Fields that sbatch, slurmctld or the lab set for every job, partition or job record.
SET = {
    "job_desc": """\
alloc_node assoc_qos begin_time bitflags default_account default_qos environment group_id name script
std_in std_out user_id user_name work_dir
""",
    "partition": """\
allow_alloc_nodes allow_qos def_mem_per_cpu def_mem_per_node default_time flag_default flags max_time name
nodes qos total_cpus total_nodes
""",
    "job_record": """\
account admin_comment alloc_node batch_features best_switch delay_boot end_time gres_req group_id job_id
min_mem_per_cpu min_mem_per_node name original_sluid partition pn_min_memory priority qos script sluid
start_time std_in std_out submit_time time_limit total_cpus total_nodes tres_fmt_req_str tres_req_str
user_id work_dir
""",
}
# Write "table field type value" for each field that a table has in any version.
SCRIPT = """\
local names = { %s }
local function write(kind, table)
  local file = io.open("%s", "a")
  for _, name in ipairs(names[kind]) do
    local value = table[name]
    local what = type(value)
    local shown = tostring(value)
    if what == "number" then shown = string.format("%%.17g", value) end
    if what == "table" then shown = what end
    file:write(kind, " ", name, " ", what, " ", (shown:gsub("%%s", "_")), "\\n")
  end
  file:close()
end
function slurm_job_submit(job_desc, part_list, submit_uid)
  for _, job in pairs(slurm.jobs) do
    if job.job_state %% 256 == 0 then write("job_record", job) end
  end
  write("partition", part_list.gpu)
  write("job_desc", job_desc)
  write("constant", slurm)
  return slurm.SUCCESS
end
function slurm_job_modify() return slurm.SUCCESS end
return slurm.SUCCESS
"""
FIELDS: Mapping[str, Callable[..., job_desc.Fields]] = {
    "job_desc": job_desc.job_desc_fields,
    "partition": job_desc.partition_fields,
    "job_record": job_desc.job_record_fields,
}


def script_writing_to(log: Path) -> str:
    tables = {
        kind: [*fields().unset, *fields((22, 5)).unset, "no_such_field"] for kind, fields in FIELDS.items()
    }
    tables["constant"] = [*job_desc.CONSTANTS]
    names = ", ".join(f"{kind} = {{ {', '.join(map(repr, names))} }}" for kind, names in tables.items())
    return SCRIPT % (names, log)


def install(lab: Lab, text: str) -> None:
    """Replace job_submit.lua; slurmctld reloads it only if its modification time is later."""
    script = lab.layout.etc / "job_submit.lua"
    newer = max(time.time(), script.stat().st_mtime + 1)
    script.write_text(text)
    os.utime(script, (newer, newer))


@pytest.fixture(scope="module")
def found(lab_with: Callable[..., Lab]) -> Iterator[set[tuple[str, ...]]]:
    """Return (table, field, type, value) of all fields at a submission, and of an earlier, pending job."""
    lab = lab_with(services=False, native_limits=False)
    log = lab.layout.log / "job_desc_fields"
    log.touch()
    log.chmod(0o666)
    before = (lab.layout.etc / "job_submit.lua").read_text()
    install(lab, script_writing_to(log))
    try:
        lab.submit("alice", *JOB)
        next_second()
        log.write_text("")
        lab.submit("alice", *JOB)
        yield {tuple(line.split(" ")) for line in log.read_text().splitlines()}
    finally:
        lab.cancel_all_jobs()
        install(lab, before)


@pytest.mark.parametrize("kind", FIELDS)
def test_unset_fields_have_the_types_and_values_of_the_table(kind: str, found: set[tuple[str, ...]]) -> None:
    fields = FIELDS[kind](slurm_version())
    here = {name: (what, value) for table, name, what, value in found if table == kind}
    assert here, "no line was written"
    # Fields of other versions, and a field of no version, are nil.
    wanted = dict.fromkeys(here, ("nil", "nil")) | {
        name: shown(value) for name, value in fields.unset.items()
    }
    left_out = SET[kind].split()
    wrong = [
        f"{name}: {' '.join(here.get(name, ('not', 'read')))}, not {' '.join(value)}"
        for name, value in wanted.items()
        if here.get(name) != value and fields.aliases.get(name, name) not in left_out
    ]
    assert not wrong, "\n".join(wrong)


def test_the_table_lists_each_field_that_a_job_sets(found: set[tuple[str, ...]]) -> None:
    """Test that fields that every job sets are not nil, as a field with a wrong name would be."""
    at = {(table, name): what for table, name, what, _ in found}
    for field in ("alloc_node", "name", "script", "std_in", "user_name", "work_dir"):
        assert at["job_desc", field] == "string", field
    assert at["job_desc", "environment"] == "table"
    for field in ("name", "nodes"):
        assert at["partition", field] == "string", field
    for field in ("name", "partition", "tres_req_str", "work_dir"):
        assert at["job_record", field] == "string", field


def test_the_constants_have_the_values_of_the_table(found: set[tuple[str, ...]]) -> None:
    values = {
        name: float(value) for table, name, what, value in found if (table, what) == ("constant", "number")
    }
    assert values == {name: float(value) for name, value in job_desc.constants(slurm_version()).items()}


def shown(value: job_desc.Unset) -> tuple[str, str]:
    """Return the type and the text that the script writes for a value."""
    if value is None:
        return "nil", "nil"
    if isinstance(value, bool):
        return "boolean", str(value).lower()
    return ("table", "table") if isinstance(value, Mapping) else ("number", f"{value:.17g}")
