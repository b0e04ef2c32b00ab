"""List all checks in their order, and run them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_gpu.cli.doctor.checks.daemons import (
    controller,
    database,
    forecasts,
    munged,
    node,
    notices,
    readers,
    slurmd,
    web,
)
from slurm_gpu.cli.doctor.checks.daemons import database_address as databaseaddress
from slurm_gpu.cli.doctor.checks.daemons.outages import failure_from
from slurm_gpu.cli.doctor.checks.files import applications, boot, commands, hooks, site_file
from slurm_gpu.cli.doctor.checks.files import secret_files as secretfiles
from slurm_gpu.cli.doctor.checks.finding import (
    Check,
    DoctorContext,
    Level,
    Result,
    skipped,
    unreadable,
)
from slurm_gpu.cli.doctor.checks.slurm import (
    colocation,
    drains,
    gres,
    job_submit,
    journal,
    memory,
    peers,
    reservations,
    runaways,
    slurm_conf,
    weights,
    zones,
)
from slurm_gpu.errors import SlurmGpuError

_SITE, _MUNGE, _SLURM, _DATABASE = "site file", "MUNGE", "Slurm", "slurm-gpudbd"

# Add the checks for new parts of slurm-gpu here.
CHECKS = (
    Check(_SITE, site_file.valid),
    Check(_MUNGE, munged.round_trip, (_SITE,)),
    Check("users", site_file.for_users, (_SITE,)),
    Check(_SLURM, slurm_conf.answers),
    Check("cluster", site_file.same_cluster, (_SITE, _SLURM)),
    Check("hooks", hooks.configured, (_SLURM,)),
    Check("drained", drains.drained, (_SLURM,)),
    Check("slurm.conf", slurm_conf.grammar, (_SLURM,)),
    Check("PrologFlags", slurm_conf.prolog_flags, (_SLURM,)),
    Check("accounting", slurm_conf.gpus_accounted, (_SLURM,)),
    Check("GRES", slurm_conf.gres_types, (_SLURM,)),
    Check("memory", memory.defaults, (_SLURM,)),
    Check("MaxJobCount", slurm_conf.room_for_jobs, (_SLURM,)),
    Check("PriorityType", slurm_conf.priorities, (_SLURM,)),
    Check("job_submit", job_submit.plugin, (_SLURM,)),
    Check("policy", job_submit.script, (_SITE, _SLURM)),
    Check("backup", peers.same_script, (_SLURM,)),
    Check("applied", journal.applied, (_SLURM,)),
    Check("lending", job_submit.lending, (_SITE, _SLURM)),
    Check("urgent", job_submit.urgent, (_SITE, _SLURM)),
    Check("colocation", colocation.colocation, (_SITE, _SLURM)),
    Check("snapshot", controller.snapshot, (_SLURM,)),
    Check("notices", notices.notices, (_SITE, _SLURM)),
    Check("weights", weights.weights, (_SITE, _SLURM)),
    Check("zones", zones.zones, (_SITE, _SLURM)),
    Check(_DATABASE, database.answers, (_SITE,)),
    Check("address", databaseaddress.address, (_MUNGE, _DATABASE)),
    Check("database file", secretfiles.database_file, (_SITE, _SLURM)),
    Check("import", database.import_fresh, (_MUNGE, _DATABASE)),
    Check("recorded jobs", database.jobs_accounted, (_MUNGE, _DATABASE)),
    Check("runaways", runaways.ended, (_SLURM, _DATABASE)),
    Check("shipments", database.nodes_ship, (_DATABASE,)),
    Check("refused", database.nothing_refused, (_DATABASE,)),
    Check("slurm-gpuweb", web.answers, (_SITE,)),
    Check("web access", web.reads_everything, (_DATABASE,)),
    Check("forecasts", forecasts.learned, (_DATABASE,)),
    Check("reservations", reservations.reservations, (_SITE, _SLURM, _DATABASE)),
    Check("slurmd", slurmd.reached, (_SLURM,)),
    Check("nodes", database.nodes_report, (_SLURM, _DATABASE)),
    Check("readers", readers.alive, (_MUNGE, _DATABASE)),
    Check("devices", database.devices_agree, (_SLURM, _DATABASE)),
    Check("gres.conf", gres.agrees, (_SLURM, _DATABASE)),
    Check("clocks", database.clocks, (_SLURM, _DATABASE)),
    Check("slurm-gpud", node.alive, (_SLURM,)),
    Check("boot", boot.enabled, (_SLURM,)),
    Check("commands", commands.found),
    Check("applications", applications.rules, (_SLURM,)),
    Check("hook events", node.hook_directory, (_SLURM,)),
    Check("spool", node.spool),
)


def run_checks(at: DoctorContext, checks: Sequence[Check] = CHECKS) -> Iterator[Result]:
    """Yield every finding, in order.

    A check is skipped if a check that it needs did not succeed. An error in one check does not stop the rest.
    """
    failed: set[str] = set()
    for check in checks:
        lacking = [need for need in check.needs if need in failed]
        if lacking:
            failed.add(check.name)
            yield Result(
                check.name,
                skipped(f"not checked, because these checks did not succeed: {', '.join(lacking)}"),
            )
            continue
        try:
            for finding in check.run(at):
                if finding.level is Level.FAIL:
                    failed.add(check.name)
                yield Result(check.name, finding)
        except (SlurmGpuError, OSError) as error:
            failed.add(check.name)
            failure = failure_from(at, str(error), "fix this, then run slurm-gpu doctor again")
            yield Result(check.name, unreadable(error) or failure)
