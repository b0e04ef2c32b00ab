"""Wait for slurmctld, which uses whole seconds and renews the script's job table at most once per second."""

from __future__ import annotations

import time

from lab.cluster import Lab
from lab.polling import wait_for


def next_second() -> None:
    """Wait until slurmctld distinguishes later changes from earlier ones.

    Changes in the second of the last renewal become visible only with the next change of a job.
    """
    before = int(time.time())
    wait_for(lambda: int(time.time()) > before, 10, "a second passes")


def leave_no_job(lab: Lab) -> None:
    """Cancel all jobs, and wait until they are no longer in the script's job table."""
    next_second()
    lab.cancel_all_jobs()
    next_second()
