"""The commands lab/up, lab/down, lab/env, lab/as, lab/status and lab/restart."""

from __future__ import annotations

import os
import shlex
import sys
import time

import click
from rich.console import Console

from lab import people, services
from lab.cluster import Lab
from lab.demo import demo as run_demo
from lab.errors import LabError
from lab.layout import Layout
from lab.options import JobSubmit, Options


def _say(line: str) -> None:
    click.echo(f"lab: {line}", err=True)


def _lab_that_is_up() -> Lab:
    cluster = Lab()
    if not cluster.layout.finished_file.exists():
        raise LabError("the lab is not up; bring it up with lab/up")
    return cluster


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def lab() -> None:
    """Run a real Slurm cluster on this host, with simulated GPUs."""


@lab.command()
@click.option("--nodes", type=click.IntRange(1, 64), help="Number of nodes (4).")
@click.option("--job-submit", type=click.Choice([choice.value for choice in JobSubmit]), help="(ours)")
@click.option("--native-limits/--no-native-limits", default=None, help="Slurm's own limits (on).")
@click.option("--services/--no-services", default=None, help="slurm-gpud, slurm-gpudbd, hooks (on).")
@click.option("-v", "--verbose", is_flag=True, help="Print the duration of each step.")
def up(
    nodes: int | None,
    job_submit: str | None,
    native_limits: bool | None,
    services: bool | None,
    verbose: bool,
) -> None:
    """Bring the lab up, or start the daemons that are not running."""
    chosen: dict[str, object] = {"nodes": nodes, "native_limits": native_limits, "services": services}
    if job_submit is not None:
        chosen["job_submit"] = JobSubmit(job_submit)
    given = {name: value for name, value in chosen.items() if value is not None}
    options = Options(**given) if given else None  # type: ignore[arg-type]
    start = time.monotonic()
    cluster = Lab(options=options, report=_say)
    cluster.up()
    if verbose:
        for name, seconds in cluster.phases.items():
            _say(f"{seconds:6.1f} s  {name}")
    _say(f'up after {time.monotonic() - start:.1f} s; use it with lab/as alice COMMAND, or eval "$(lab/env)"')


@lab.command()
def down() -> None:
    """Remove every trace of the lab."""
    start = time.monotonic()
    Lab(report=_say).down()
    _say(f"down after {time.monotonic() - start:.1f} s")


@lab.command()
def env() -> None:
    """Print the settings that a shell evaluates to use the lab."""
    layout = Layout.from_environment()
    for name, value in services.environment(layout).items():
        if name == "PATH":
            click.echo(f'export PATH={shlex.quote(str(layout.bin))}:"$PATH"')
        elif name != "LANG":
            click.echo(f"export {name}={shlex.quote(value)}")


@lab.command("as", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("user")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def as_user(user: str, command: tuple[str, ...]) -> None:
    """Run COMMAND as USER (alice, bob, carol, root) in that user's home directory."""
    cluster = _lab_that_is_up()
    identity = people.identity(user)
    environment = cluster.environment_of(user)
    os.chdir(environment["HOME"])
    os.setgroups(identity.groups)
    os.setgid(identity.gid)
    os.setuid(identity.uid)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise LabError(f"{command[0]}: {error.strerror}") from error


@lab.command()
def status() -> None:
    """Print the state of each daemon; exit with status 1 unless all are running."""
    states = Lab().status()
    for name, running in states.items():
        click.echo(f"{name:20} {'running' if running else 'not running'}")
    if not all(states.values()):
        sys.exit(1)


@lab.command()
@click.argument("name")
def restart(name: str) -> None:
    """Restart the daemon NAME (lab/status lists the daemons)."""
    daemons = _lab_that_is_up().daemons
    if name not in daemons:
        raise click.UsageError(f"no daemon {name!r}; available: {', '.join(daemons)}")
    daemons[name].restart()


@lab.command()
@click.option("--setup-seconds", type=float, help="Duration of the installation, printed separately.")
def demo(setup_seconds: float | None) -> None:
    """Bring the lab up, run a dozen jobs, show what slurm-gpu recorded, take the lab down."""
    if not run_demo(Console(), setup_s=setup_seconds):
        sys.exit(1)


def main() -> None:
    """Run the command line; exit with 0 on success, 1 if a daemon is down, 2 on wrong usage, 3 on failure."""
    try:
        lab.main(prog_name="lab")
    except LabError as error:
        _say(str(error))
        sys.exit(3)


if __name__ == "__main__":
    main()
