"""Test the traps of Slurm's hooks: each does harm, `doctor` warns of it, and our hooks avoid it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.errors import LabError
from lab.layout import REPOSITORY, Layout
from lab.polling import wait_for
from tests.lab.conftest import LabWith

pytestmark = pytest.mark.long

PLACE, PLACE_LUA = (REPOSITORY / "packaging" / "hooks" / name for name in ("place", "place-lua"))
NAMES = {"prolog": "10-slurm-gpu", "epilog": "90-slurm-gpu"}
CHANGES = 200


class Hooks:
    """The lab, with its hook directories as after the installation of a package."""

    def __init__(self, lab: Lab, scratch: Path) -> None:
        self.lab, self.log, self._aside = lab, scratch / "log", lab.layout.root / "aside"
        self.texts = scratch / "texts"
        self.texts.mkdir()
        self._aside.mkdir()
        for kind in NAMES:
            own = REPOSITORY / kind / "10-slurm-gpu"
            head, line, *rest = own.read_text().splitlines(keepends=True)
            # All nodes share this host, so each has its own run directory.
            run = f"SLURM_GPU_RUN_DIR={lab.layout.root}/nodes/$SLURMD_NODENAME/run\n"
            note = f"echo {kind} {NAMES[kind]} >>{self.log}\n"
            (self.texts / kind).write_text("".join([head, line, run, note, *rest]))
            for stamp in self.directory(kind).iterdir():
                stamp.rename(self._aside / kind)

    def give_back(self) -> None:
        for kind in NAMES:
            for path in self.directory(kind).iterdir():
                path.rmdir() if path.is_dir() else path.unlink()
            (self._aside / kind).rename(self.directory(kind) / "10-slurm-gpu")
        self._aside.rmdir()
        self.resume()

    def directory(self, kind: str) -> Path:
        return self.lab.layout.etc / f"{kind}.d"

    def place(self, command: str) -> None:
        argv = ["/bin/sh", str(PLACE), command, f"--conf={self.lab.layout.etc}", f"--texts={self.texts}"]
        subprocess.run(argv, check=True, capture_output=True)

    def site(self, kind: str, name: str) -> Path:
        """Write a hook that belongs to the site."""
        path = self.directory(kind) / name
        path.write_text(f"#!/bin/sh\necho {kind} {name} >>{self.log}\n")
        path.chmod(0o755)
        return path

    def logged(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def doctor(self) -> list[str]:
        """Return doctor's findings about hooks, without passed checks."""
        shown = self.lab.run_as("root", ["slurm-gpu", "doctor", "--json"], check=False)
        checks = json.loads(shown.stdout)["checks"]
        return [one["message"] for one in checks if one["check"] == "hooks" and one["level"] != "ok"]

    def state(self) -> str:
        return self.lab.output(["sinfo", "-h", "-n", "n1", "-o", "%T"]).strip()

    def run_job(self) -> int:
        return self.lab.submit("alice", "--gpus=1", "--time=1", "--output=/dev/null", script="#!/bin/sh\n")

    def drains(self) -> None:
        """Check that the next job drains the node."""
        job = self.run_job()
        wait_for(lambda: self.state().startswith("drain"), 30, "the node is drained", self.state)
        self.lab.run_as("root", ["scancel", str(job)])

    def resume(self) -> None:
        self.lab.cancel_all_jobs()
        if self.state().startswith("drain"):
            self.lab.output(["scontrol", "update", "nodename=n1", "state=resume"])
        wait_for(lambda: self.state() == "idle", 30, "the node is idle", self.state)

    def works(self) -> None:
        """Check that the next job runs and the node is not drained."""
        job = self.run_job()
        wait_for(lambda: self.ended(job), 30, f"job {job} ends", lambda: self.lab.output(["squeue"]))
        assert self.ended(job) == "COMPLETED"
        wait_for(lambda: self.state() == "idle", 30, "the node is idle", self.state)

    def ended(self, job: int) -> str:
        shown = self.lab.output(["scontrol", "show", "job", str(job)])
        state = shown.partition("JobState=")[2].split()[0]
        return "" if state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING") else state


def take_out_lua(lab: Lab) -> None:
    """Run the removal script of the controller's package."""
    options = [f"--conf={lab.layout.etc}", f"--state={lab.layout.policy_state}"]
    subprocess.run(["/bin/sh", str(PLACE_LUA), "remove", *options], check=True)


@pytest.fixture
def hooks(lab_with: LabWith, tmp_path: Path) -> Iterator[Hooks]:
    tmp_path.chmod(0o755)
    found = Hooks(lab_with(nodes=1), tmp_path)
    yield found
    found.give_back()


def test_a_glob_that_matches_nothing_drains_nodes(hooks: Hooks) -> None:
    hooks.site("epilog", "50-site")
    assert any("prolog.d/* matches no file: Slurm drains" in line for line in hooks.doctor())
    hooks.drains()
    hooks.resume()
    hooks.place("install")
    assert hooks.doctor() == []
    hooks.works()
    hooks.place("remove")
    hooks.works()


@pytest.mark.parametrize("kind", NAMES)
def test_a_file_that_is_not_executable_drains_nodes(hooks: Hooks, kind: str) -> None:
    hooks.place("install")
    readme = hooks.directory(kind) / "10-slurm-gpu.rpmsave"
    readme.write_text("#!/bin/sh\n")
    assert any(f"{readme} is matched by" in line and "is not executable" in line for line in hooks.doctor())
    hooks.drains()
    readme.unlink()
    hooks.resume()
    hooks.works()


@pytest.mark.parametrize("content", ["exit 0\n", "#!/bin/sh\r\nexit 0\r\n", "#!/opt/none/sh\n"])
def test_a_file_that_the_kernel_cannot_start_drains_nodes(hooks: Hooks, content: str) -> None:
    hooks.place("install")
    bare = hooks.site("prolog", "50-site")
    bare.write_text(content)
    assert any(f"{bare} is matched by Prolog, but" in line for line in hooks.doctor())
    hooks.drains()
    bare.unlink()
    hooks.resume()
    hooks.works()


@pytest.mark.parametrize("kind", NAMES)
def test_a_directory_among_the_hooks_drains_nodes(hooks: Hooks, kind: str) -> None:
    hooks.place("install")
    old = hooks.directory(kind) / "old"
    old.mkdir()
    assert any(f"{old} is matched by" in line and "is not a file" in line for line in hooks.doctor())
    hooks.drains()
    old.rmdir()
    hooks.resume()
    hooks.works()


def test_hooks_run_in_reverse_order_and_ours_is_the_last_prolog_and_the_first_epilog(hooks: Hooks) -> None:
    hooks.place("install")
    for kind in NAMES:
        hooks.site(kind, "50-site")
    assert hooks.doctor() == []
    hooks.works()
    wait_for(lambda: len(hooks.logged()) == 4, 20, "four hooks ran", lambda: str(hooks.logged()))
    assert hooks.logged() == [
        "prolog 50-site",
        "prolog 10-slurm-gpu",
        "epilog 90-slurm-gpu",
        "epilog 50-site",
    ]
    hooks.site("prolog", "05-late")
    hooks.site("epilog", "95-early")
    said = hooks.doctor()
    assert [line.split(" runs ")[1].partition(",")[0] for line in said] == [
        "after our prolog",
        "before our epilog",
    ]
    hooks.log.unlink()
    hooks.works()
    wait_for(lambda: len(hooks.logged()) == 6, 20, "six hooks ran", lambda: str(hooks.logged()))
    assert hooks.logged() == [
        "prolog 50-site",
        "prolog 10-slurm-gpu",
        "prolog 05-late",
        "epilog 95-early",
        "epilog 90-slurm-gpu",
        "epilog 50-site",
    ]


def test_doctor_reports_a_missing_hook_and_a_stub(hooks: Hooks) -> None:
    for kind in NAMES:
        hooks.site(kind, "50-site")
    assert [line.partition(" does not run our hook")[1] != "" for line in hooks.doctor()] == [True, True]
    hooks.place("install")
    hooks.place("remove")
    assert ["is the stub that a removal" in line for line in hooks.doctor()] == [True, True]
    hooks.works()
    hooks.place("install")
    assert hooks.doctor() == []


def test_slurm_22_05_uses_only_the_last_of_two_lines(lab_with: LabWith, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    more = Layout.from_environment().etc / "more.d"
    lab = lab_with(nodes=1, extra_slurm_conf=(f"Prolog={more}/*",))
    more.mkdir(exist_ok=True)
    hooks = Hooks(lab, tmp_path)
    try:
        hooks.place("install")
        other = more / "50-more"
        other.write_text(f"#!/bin/sh\necho more >>{hooks.log}\n")
        other.chmod(0o755)
        said = [line for line in hooks.doctor() if line.startswith("slurm.conf has 2 lines Prolog=")]
        hooks.works()
        wait_for(lambda: "epilog 90-slurm-gpu" in hooks.logged(), 20, "the epilog ran")
        ran = {"prolog 10-slurm-gpu", "more"} & set(hooks.logged())
        if lab.output(["scontrol", "--version"]).split()[-1].startswith("22.05"):
            assert ran == {"more"}
            assert len(said) == 1
            assert f"uses only {more}/*: {hooks.directory('prolog')}/*" in said[0]
        else:
            assert ran == {"prolog 10-slurm-gpu", "more"}
            assert said == []
    finally:
        hooks.give_back()
        other.unlink()


def test_jobs_that_start_and_end_while_hooks_come_and_go_drain_nothing(hooks: Hooks) -> None:
    hooks.place("install")
    place = f"{PLACE} $what --conf={hooks.lab.layout.etc} --texts={hooks.texts} >/dev/null || exit"
    loop = f"for n in $(seq {CHANGES // 2}); do for what in remove install; do {place}; done; done"
    with subprocess.Popen(["/bin/sh", "-c", loop]) as changes:
        jobs = [hooks.run_job()]
        while changes.poll() is None:
            wait_for(lambda: hooks.ended(jobs[-1]), 60, "the job ends", hooks.state)
            jobs.append(hooks.run_job())
    assert changes.returncode == 0
    wait_for(lambda: hooks.ended(jobs[-1]), 60, "the last job ends", hooks.state)
    wait_for(lambda: hooks.state() == "idle", 30, "the node is idle", hooks.state)
    assert len(jobs) > 20
    assert {hooks.ended(job) for job in jobs} == {"COMPLETED"}


def test_slurmctld_does_not_start_without_its_script_and_a_removal_leaves_one(lab_with: LabWith) -> None:
    lab = lab_with(nodes=1)
    etc, slurmctld = lab.layout.etc, lab.daemons["slurmctld"]
    script = etc / "job_submit.lua"
    bundle = script.read_text()

    def refused() -> bool:
        """Return whether the policy is called and refuses."""
        argv = ["sbatch", "--test-only", "--gpus=1", "--time=3-00:00:00", "--wrap=true"]
        return "grad-days" in lab.run_as("alice", argv, check=False).stderr

    assert refused()
    try:
        script.unlink()
        assert lab.run_as("alice", ["sbatch", "--test-only", "--gpus=1", "--wrap=true"]).returncode == 0
        shown = lab.run_as("root", ["slurm-gpu", "doctor"], check=False)
        assert "job_submit.lua is missing: slurmctld cannot start without it" in " ".join(
            shown.stdout.split()
        )
        with pytest.raises(LabError):
            slurmctld.restart()
        script.write_text(bundle)
        slurmctld.start()
        take_out_lua(lab)
        assert not refused()  # the running slurmctld has loaded the stub
        slurmctld.restart()
        assert not refused()
        shown = lab.run_as("root", ["slurm-gpu", "doctor"], check=False)
        assert "is the stub that a removal left" in " ".join(shown.stdout.split())
    finally:
        if not script.exists():
            script.write_text(bundle)
        slurmctld.start()
        lab.output(["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])  # a stub needs no --replace
    assert refused()


def test_after_uninstalling_as_doctor_advises_slurm_is_unchanged(hooks: Hooks) -> None:
    lab, conf = hooks.lab, hooks.lab.layout.slurm_conf
    limits = ["sacctmgr", "-nP", "show", "assoc", "format=MaxTRES,MaxWall,GrpTRES,MaxJobs,GrpJobs,MaxSubmit"]
    before, script = conf.read_text(), lab.layout.etc / "job_submit.lua"
    hooks.place("install")
    assert lab.output(limits).strip("|\n")
    try:
        typed = [line.strip() for line in lab.output(["slurm-gpu", "doctor", "uninstall"]).splitlines()]
        text = before.splitlines()
        for line in typed:
            if line.startswith(("printf ", "slurm-gpu policy apply ")):
                lab.output(["sh", "-c", line.replace("/root/", f"{lab.layout.root}/")])
            place, found, setting = line.partition(": remove ")
            if found:
                assert text[int(place.rpartition(":")[2]) - 1] == setting
                text[int(place.rpartition(":")[2]) - 1] = ""
        conf.write_text("\n".join(text))
        assert not re.search("^(Prolog|Epilog|JobSubmitPlugins)=", conf.read_text(), re.MULTILINE)
        assert not lab.output(limits).strip("|\n")
        lab.daemons["slurmctld"].restart()
        lab.output(["scontrol", "reconfigure"])
        hooks.place("remove")
        take_out_lua(lab)
        hooks.works()
        (remove,) = [line for line in typed if line.startswith("rm ") and str(script) in line]
        lab.output(shlex.split(remove))
        assert not script.exists()
        assert not any(path for kind in NAMES for path in hooks.directory(kind).iterdir())
        hooks.works()
        lab.daemons["slurmctld"].restart()
        hooks.works()
    finally:
        conf.write_text(before)
        lab.output(["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])
        lab.daemons["slurmctld"].restart()
        lab.output(["scontrol", "reconfigure"])
