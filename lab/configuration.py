"""Write every directory and file that the lab's daemons need."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from lab import associations, hooks, programs, slurm_config
from lab.cgroups import CgroupVersion
from lab.layout import REPOSITORY, Layout
from lab.mariadb import Passwords
from lab.options import JobSubmit, Node, Options
from lab.people import WEB_USER

MUNGE_USER = "munge"
# The script that is left after slurm-gpu is removed; `policy apply` replaces it without keeping a copy.
_OURS_TO_COME = "-- slurm-gpu was removed: or the lab has not applied its policy yet.\n"
_NOOP_LUA = """\
-- Do nothing, to measure the cost of slurmctld's Lua plugin without a policy.
function slurm_job_submit(job_desc, part_list, submit_uid) return slurm.SUCCESS end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""


def write(layout: Layout, options: Options, nodes: Sequence[Node], cgroups: CgroupVersion) -> Passwords:
    """Write all directories and files; return the new passwords of the database users."""
    passwords = Passwords(secrets.token_hex(16), secrets.token_hex(16))
    _directories(layout, nodes)
    _munge_key(layout)
    write_slurm(layout, options, nodes, cgroups)
    _secret(layout.etc / "slurmdbd.conf", slurm_config.slurmdbd_conf(layout, passwords.slurm), "slurm")
    job_submit_script(layout, options.job_submit)
    hooks.install(layout, ours=options.services, own_clocks=options.own_clocks)
    _slurm_gpu(layout, options, nodes, passwords)
    programs.install(layout)
    associations.write(layout.associations_file)
    layout.port_file.write_text(f"{layout.port}\n")
    options.save(layout.options_file)
    return passwords


def write_slurm(layout: Layout, options: Options, nodes: Sequence[Node], cgroups: CgroupVersion) -> None:
    """Write the files that the daemons and commands of Slurm read."""
    layout.slurm_conf.write_text(slurm_config.slurm_conf(layout, options, nodes, cgroups))
    (layout.etc / "gres.conf").write_text(slurm_config.gres_conf(nodes))
    (layout.etc / "cgroup.conf").write_text(slurm_config.cgroup_conf(cgroups, slurm_version()))
    (layout.etc / "plugstack.conf").write_text("")


def forget_state(layout: Layout) -> None:
    """Remove the state of slurmctld: 26.05 does not start if an earlier start was interrupted by a kill."""
    for path in layout.slurmctld.iterdir():
        if path.is_file():
            path.unlink()


def job_submit_script(layout: Layout, choice: JobSubmit) -> None:
    """Install a job_submit script without effect; `policy apply` replaces it."""
    path = layout.etc / "job_submit.lua"
    if choice is JobSubmit.NONE:
        path.unlink(missing_ok=True)
    elif choice is JobSubmit.OURS:
        path.write_text(_OURS_TO_COME + _NOOP_LUA)
    else:
        path.write_text(_NOOP_LUA)


def slurm_version() -> tuple[int, int]:
    """Return the major and minor version of Slurm, such as (22, 5) for 22.05.8."""
    printed = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True).stdout
    major, minor, *_ = (int(number) for number in re.findall(r"\d+", printed))
    return major, minor


def _directories(layout: Layout, nodes: Sequence[Node]) -> None:
    for directory in (layout.root, layout.etc, layout.bin, layout.lib, layout.pids, layout.home):
        directory.mkdir(parents=True, exist_ok=True)
    slurmdbd = layout.root / "slurmdbd"
    for directory in (layout.log, layout.slurmctld, slurmdbd, layout.database, layout.controller_run):
        directory.mkdir(exist_ok=True)
        _own(directory, slurm_config.SLURM_USER)
    for node in nodes:
        paths = layout.node(node.name)
        paths.spool.mkdir(parents=True, exist_ok=True)
        for private in (paths.run, paths.hook_events, paths.state):
            private.mkdir(exist_ok=True)
        paths.hook_events.chmod(0o700)
        paths.state.chmod(0o700)


def _munge_key(layout: Layout) -> None:
    layout.munge.mkdir(exist_ok=True)
    layout.munge.chmod(0o755)  # users connect to the socket in this directory
    _own(layout.munge, MUNGE_USER)
    key = layout.munge / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    _own(key, MUNGE_USER)


def _slurm_gpu(layout: Layout, options: Options, nodes: Sequence[Node], passwords: Passwords) -> None:
    zones = {
        name: {"nodes": ",".join(node.name for node in nodes if node.zone == name), "role": role}
        for name, role in (("zone1", "small"), ("zone2", "large"))
        if any(node.zone == name for node in nodes)
    }
    site = {
        "cluster": slurm_config.CLUSTER,
        "database": f"http://127.0.0.1:{layout.database_port}",
        "database_socket": str(layout.database_socket),
        "munge_socket": str(layout.munge_socket),
        "web": f"http://127.0.0.1:{layout.web_port}",
        "import_interval": "5s",
        "operators": {"users": ["carol"], "unix_groups": ["gpuops"]},
        "server_types": {
            model.value: {
                "nodes": ",".join(node.name for node in nodes if node.model is model),
                "rate_per_gpu_hour": 1.2,
            }
            for model in dict.fromkeys(node.model for node in nodes)
        },
        "currency": "EUR",
        "zones": zones,
    }
    layout.site_file.write_text(yaml.safe_dump(site, sort_keys=False))
    url = (
        f"mysql+pymysql://slurm_gpu:{passwords.slurm_gpu}@localhost/slurm_gpu"
        f"?unix_socket={layout.mariadb_socket}&charset=utf8mb4"
    )
    settings = {
        "url": url,
        "listen": f"127.0.0.1:{layout.database_port}",
        "workers": options.database_workers,
    }
    _secret(layout.database_file, yaml.safe_dump(settings), slurm_config.SLURM_USER)
    web = {"listen": f"127.0.0.1:{layout.web_port}", "refresh": "2s"}
    _secret(layout.web_file, yaml.safe_dump(web), WEB_USER)
    policy = REPOSITORY / "lab" / "policy.yaml"
    if policy.exists():
        shutil.copyfile(policy, layout.policy_file)


def _secret(path: Path, text: str, owner: str) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    _own(path, owner)
    path.write_text(text)


def _own(path: Path, user: str) -> None:
    account = pwd.getpwnam(user)
    os.chown(path, account.pw_uid, account.pw_gid)
