"""slurmctld tells times in whole seconds, and in each renews the jobs that the script sees once at most."""

from __future__ import annotations

import time

from lab.cluster import Lab
from lab.polling import wait_for


def next_second() -> None:
    """Wait until slurmctld tells what comes from what was.

    What changes in the second of the last renewal shows only when another job changes, which may be never.
    """
    before = int(time.time())
    wait_for(lambda: int(time.time()) > before, 10, "a second passes")


def leave_no_job(lab: Lab) -> None:
    """Cancel all jobs; what the script sees next has none of them, whatever came just before."""
    next_second()
    lab.cancel_all_jobs()
    next_second()
