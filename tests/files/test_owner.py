"""Test messages about owners of directories."""

import os
import pwd
from pathlib import Path

from slurm_gpu.files.owner import user_name, why_not_writable

_REMEDY = (
    "; SlurmUser must own it: run systemd-tmpfiles --create slurm-gpu.conf, or install -d -o slurm -m 755 "
)


def test_a_user_without_a_name_is_shown_by_uid():
    assert user_name(os.geteuid()) == pwd.getpwuid(os.geteuid()).pw_name
    assert user_name(4_000_000_000) == "4000000000"


def test_a_missing_directory_and_another_owner_are_reported(tmp_path: Path):
    me = user_name(os.geteuid())
    assert why_not_writable(tmp_path) == (
        f"{me} may not write to {tmp_path}, which belongs to {me}{_REMEDY}{tmp_path}"
    )
    missing = tmp_path / "a b"
    assert why_not_writable(missing) == f"the directory {missing} does not exist{_REMEDY}'{missing}'"
