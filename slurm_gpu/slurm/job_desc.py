"""Fields that slurmctld passes to job_submit.lua, and their values if they are not set.

Names and versions are those of Slurm's source from 22.05.8 to 26.05.3: job_desc and partitions in
src/plugins/job_submit/lua/job_submit_lua.c (`_get_job_req_field`, `_set_job_req_field`, `_part_rec_field`),
job records and constants in src/lua/slurm_lua.c (`slurm_lua_job_record_field` and
`_register_slurm_output_functions`). Values of job_desc are those of `sbatch --wrap=true` (src/api/init_msg.c,
and `slurm_opt_create_job_desc` in src/common/slurm_opt.c). Values of a partition are the defaults of
slurm.conf (src/common/read_config.c). Values of a job record are those of the same job while it is pending.
tests/lab/test_job_desc_fields.py compares all values with a running Slurm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

NO_VAL16 = 0xFFFE
NO_VAL = 0xFFFFFFFE
INFINITE = 0xFFFFFFFF
NICE_OFFSET = 0x80000000
# Lua receives 64-bit numbers as doubles.
NO_VAL64 = 2.0**64
MEM_PER_CPU = 2.0**63

Unset = int | float | bool | Mapping[str, str] | None
Version = tuple[int, ...]
NEWEST: Version = (26, 5)

# Each line of these tables contains an unset value and the fields that have it, or = followed by a field and
# its other names. Fields of kind `text` are nil if unset.
_JOB_DESC = """\
text        account acctg_freq admin_comment alloc_node array_inx assoc_comment assoc_qos batch_features
text        burst_buffer clusters comment container cpus_per_tres default_account default_qos dependency
text        exc_nodes extra features licenses mail_user mcs_label mem_per_tres name network partition
text        prefer qos req_context req_nodes reservation script selinux_context std_err std_in std_out
text        tres_bind tres_freq tres_per_job tres_per_node tres_per_socket tres_per_task user_name wckey
text        work_dir
nil         argv core_spec environment min_mem_per_cpu min_mem_per_node spank_job_env thread_spec
false       cron_job
0           argc begin_time bitflags boards_per_node contiguous end_time immediate mail_type
0           ntasks_per_board power_flags segment_size sockets_per_board spank_job_env_size
1           min_cpus
NO_VAL16    cores_per_socket cpus_per_task ntasks_per_core ntasks_per_node ntasks_per_socket
NO_VAL16    ntasks_per_tres pn_min_cpus reboot requeue shared sockets_per_node threads_per_core
NO_VAL      cpu_freq_gov cpu_freq_max cpu_freq_min delay_boot group_id het_job_offset max_cpus max_nodes
NO_VAL      min_nodes nice num_tasks pn_min_tmp_disk priority req_switch site_factor time_limit time_min
NO_VAL      user_id wait4switch
NO_VAL64    pn_min_memory
=het_job_offset pack_job_offset
=ntasks_per_tres ntasks_per_gpu
=shared oversubscribe
=tres_per_node gres
"""
# The fields of job_desc that Lua cannot write. `environment` is always a table, empty without a job script.
_READ_ONLY = """\
alloc_node argc argv assoc_comment assoc_qos boards_per_node cron_job default_account default_qos
environment group_id het_job_offset network ntasks_per_board ntasks_per_core req_context sockets_per_board
spank_job_env spank_job_env_size user_id user_name
"""
# Unset values that differ in `scontrol update`: scontrol keeps the values of slurm_init_job_desc_msg, which
# sbatch, srun and salloc overwrite.
UPDATE: Mapping[str, Unset] = {
    "contiguous": NO_VAL16,
    "het_job_offset": 0,
    "mail_type": NO_VAL16,
    "min_cpus": NO_VAL,
}
_PARTITION = """\
nil         allow_accounts allow_alloc_nodes allow_groups allow_qos alternate billing_weights_str
nil         def_mem_per_cpu deny_accounts deny_qos max_mem_per_cpu name nodes qos
0           def_mem_per_node flag_default flags max_mem_per_node min_nodes total_cpus total_nodes
1           max_share priority_job_factor priority_tier
3           state_up
NO_VAL      default_time
INFINITE    max_cpus_per_node max_cpus_per_socket max_nodes max_time
=max_nodes max_nodes_orig
=max_share max_oversubscribe
=min_nodes min_nodes_orig
"""
_JOB_RECORD = """\
nil         account admin_comment alloc_node array_task_cnt batch_features batch_host burst_buffer
nil         comment container core_spec cpus_per_tres curr_dependency extra features gres_used
nil         het_job_id_set licenses mcs_label mem_per_tres min_mem_per_cpu min_mem_per_node name nodes
nil         orig_dependency origin_cluster original_sluid partition qos resv_name script selinux_context
nil         sluid spank_job_env std_err std_in std_out thread_spec tres_alloc_str tres_bind
nil         tres_fmt_alloc_str tres_fmt_req_str tres_freq tres_per_job tres_per_node tres_per_socket
nil         tres_per_task tres_req_str user_name wckey work_dir
table       argv
0           array_job_id delay_boot derived_ec direct_set_prio end_time exit_code group_id het_job_id
0           het_job_offset job_id job_state max_nodes pn_min_memory reboot req_switch resizing
0           restart_cnt segment_size site_factor spank_job_env_size start_time submit_time time_min
0           total_nodes user_id wait4switch wait4switch_start
1           best_switch min_cpus min_nodes pn_min_cpus priority total_cpus
NICE_OFFSET nice
NO_VAL      array_task_id max_cpus time_limit
=het_job_id pack_job_id
=het_job_id_set pack_job_id_set
=het_job_offset pack_job_offset
=tres_fmt_req_str gres_req
=tres_per_node gres
"""
# The first version that has a field and, in _UNTIL, the first version that no longer has it.
_SINCE: Mapping[str, Version] = {
    **dict.fromkeys(("assoc_comment", "max_cpus_per_socket"), (23, 2)),
    "mcs_label": (23, 11),
    **dict.fromkeys(("curr_dependency", "orig_dependency"), (24, 5)),
    "assoc_qos": (24, 11),
    "segment_size": (25, 11),
    **dict.fromkeys(("core_spec", "original_sluid", "sluid", "thread_spec"), (26, 5)),
}
_UNTIL: Mapping[str, Version] = {"power_flags": (24, 5)}

_MAIL = "JOB_BEGIN JOB_END JOB_FAIL JOB_REQUEUE JOB_TIME100 JOB_TIME890 JOB_TIME80 JOB_TIME50 JOB_STAGE_OUT"
# Numbers in the global table `slurm`, without error codes.
CONSTANTS: Mapping[str, int | float] = {
    "SUCCESS": 0,
    "ERROR": -1,
    "FAILURE": -1,
    "ALLOC_SID_ADMIN_HOLD": 1,
    "ALLOC_SID_USER_HOLD": 2,
    "INFINITE": INFINITE,
    "INFINITE64": NO_VAL64,
    "NO_VAL": NO_VAL,
    "NO_VAL8": 0xFE,
    "NO_VAL16": NO_VAL16,
    "NO_VAL64": NO_VAL64,
    "MEM_PER_CPU": MEM_PER_CPU,
    "NICE_OFFSET": NICE_OFFSET,
    "SHARED_FORCE": 0x8000,
    **{f"JOB_SHARED_{name}": value for value, name in enumerate(("NONE", "OK", "USER", "MCS"))},
    # The spelling TIME890 is Slurm's.
    **{f"MAIL_{name}": 1 << bit for bit, name in enumerate(_MAIL.split())},
    "MAIL_INVALID_DEPEND": 1 << 10,
    "KILL_INV_DEP": 1 << 0,
    "NO_KILL_INV_DEP": 1 << 1,
    "GRES_ENFORCE_BIND": 1 << 4,
    "SPREAD_JOB": 1 << 8,
    "USE_MIN_NODES": 1 << 9,
    "GRES_DISABLE_BIND": 1 << 19,
    "GRES_ONE_TASK_PER_SHARING": 1 << 38,
    "GRES_MULT_TASKS_PER_SHARING": 1 << 39,
    "GRES_ALLOW_TASK_SHARING": 1 << 40,
    "STEPMGR_ENABLED": 1 << 41,
    "SPREAD_SEGMENTS": 1 << 43,
    "CONSOLIDATE_SEGMENTS": 1 << 44,
    "EXPEDITED_REQUEUE": 1 << 45,
}
_CONSTANTS_SINCE: Mapping[str, Version] = {
    **dict.fromkeys(
        ("GRES_ALLOW_TASK_SHARING", "GRES_MULT_TASKS_PER_SHARING", "GRES_ONE_TASK_PER_SHARING"), (23, 11)
    ),
    "STEPMGR_ENABLED": (24, 5),
    **dict.fromkeys(("CONSOLIDATE_SEGMENTS", "EXPEDITED_REQUEUE", "SPREAD_SEGMENTS"), (25, 11)),
}
# The error codes of 22.05; later versions have all of slurm_errno.h.
OLD_CODES = """\
ESLURM_ACCESS_DENIED ESLURM_ACCOUNTING_POLICY ESLURM_INVALID_ACCOUNT ESLURM_INVALID_LICENSES
ESLURM_INVALID_NODE_COUNT ESLURM_INVALID_TIME_LIMIT ESLURM_JOB_MISSING_SIZE_SPECIFICATION
ESLURM_MISSING_TIME_LIMIT
"""
# The values that the words in the tables denote.
_UNSET: Mapping[str, Unset] = {"text": None, "nil": None, "false": False, "table": {}, **CONSTANTS}
READ_ONLY = frozenset(_READ_ONLY.split())
# The fields of job_desc that contain text. Lua cannot write nil into them; "" unsets them.
TEXTS = frozenset(
    name for key, *names in map(str.split, _JOB_DESC.splitlines()) if key == "text" for name in names
)


class Fields(NamedTuple):
    """The fields of a table that slurmctld passes to Lua."""

    # The value of each field if it is unset; None is nil.
    unset: Mapping[str, Unset]
    # The field that each alias names.
    aliases: Mapping[str, str]


def read_version(text: str) -> Version:
    """Return the major and minor version of Slurm, such as (24, 11) for 24.11.5."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def job_desc_fields(version: Version = NEWEST) -> Fields:
    """Return the fields of job_desc in this version of Slurm."""
    return _fields(_JOB_DESC, version)


def partition_fields(version: Version = NEWEST) -> Fields:
    """Return the fields of a partition."""
    return _fields(_PARTITION, version)


def job_record_fields(version: Version = NEWEST) -> Fields:
    """Return the fields of a job record, as in slurm.jobs and in the arguments of slurm_job_modify."""
    return _fields(_JOB_RECORD, version)


def constants(version: Version = NEWEST) -> dict[str, int | float]:
    """Return the constants of the table `slurm`, without error codes."""
    return {name: value for name, value in CONSTANTS.items() if _CONSTANTS_SINCE.get(name, ()) <= version}


def tres_notation(fields: Mapping[str, Any], version: Version) -> dict[str, Any]:
    """Return fields with TRES as this version writes them: gres:gpu:2 before 23.11, then gres/gpu:2."""
    if version >= (23, 11):
        return dict(fields)
    return {
        name: value.replace("gres/", "gres:") if "tres" in name and isinstance(value, str) else value
        for name, value in fields.items()
    }


def _fields(table: str, version: Version) -> Fields:
    unset: dict[str, Unset] = {}
    aliases: dict[str, str] = {}
    for key, *names in map(str.split, table.splitlines()):
        for name in names:
            if key.startswith("="):
                aliases[name] = key[1:]
                unset[name] = unset[key[1:]]
            elif _SINCE.get(name, ()) <= version < _UNTIL.get(name, (999,)):
                unset[name] = _UNSET[key] if key in _UNSET else int(key)
    return Fields(unset, aliases)
