"""Hooks and job_submit.lua come and go, and at no moment would Slurm drain a node or fail to start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_gpu.policy.bundle import MARK, SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.installed import read_chain, read_policy_in_force
from slurm_gpu.policy.model import Chain, Policy
from slurm_gpu.policy.names import ResolvedNames
from slurm_gpu.policy.script import EMPTY_DESCRIPTION, LUA_VERSIONS, PolicyScript

ROOT = Path(__file__).resolve().parents[2]
PLACE, PLACE_LUA = (ROOT / "packaging" / "hooks" / name for name in ("place", "place-lua"))
SHELLS = [shell for shell in ("/bin/dash", "/bin/bash", "/bin/busybox") if Path(shell).exists()]
KINDS = ("prolog", "epilog")
A_FEW, MANY = 8, 1000
"""Changes while somebody looks."""

Command = Callable[..., subprocess.CompletedProcess[str]]


class Tree:
    """A host's file tree with the package's texts in it."""

    def __init__(self, root: Path, script: Path = PLACE, shell: str = "/bin/sh") -> None:
        self.root, self.script, self.shell = root, script, shell
        self.slurm = root / "etc" / "slurm"
        self.hook = {
            "prolog": self.slurm / "prolog.d" / "10-slurm-gpu",
            "epilog": self.slurm / "epilog.d" / "90-slurm-gpu",
        }
        self.texts = root / "usr" / "libexec" / "slurm-gpu" / "hooks"
        self.texts.mkdir(parents=True)
        for kind in KINDS:
            shutil.copy(ROOT / kind / "10-slurm-gpu", self.texts / kind)

    def __call__(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        shell = [self.shell, "sh"] if self.shell.endswith("busybox") else [self.shell]
        options = [] if self.script is PLACE_LUA else [f"--texts={self.texts}"]
        return subprocess.run(
            [*shell, self.script, *words, f"--root={self.root}", *options],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def done(self, *words: str) -> str:
        """What it says; it must do what it was told."""
        done = self(*words)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def refused(self, *words: str) -> str:
        """What it says about something in its way."""
        done = self(*words)
        assert done.returncode == 1
        return done.stderr


@pytest.fixture(params=SHELLS)
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Tree:
    return Tree(tmp_path / "root", shell=request.param)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root")


def is_hook(tree: Tree, kind: str) -> bool:
    placed = tree.hook[kind].read_text()
    return placed.startswith((tree.texts / kind).read_text()) and placed.count("\n# Placed by") == 1


def is_stub(tree: Tree, kind: str) -> bool:
    assert runs(tree.hook[kind]).returncode == 0
    return "was removed" in tree.hook[kind].read_text().splitlines()[1]


def runs(hook: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([hook], env=environ, capture_output=True, text=True, check=False, timeout=20)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


# Hooks


def test_hooks_are_placed_and_work(place: Tree, tmp_path: Path):
    place.done("install")
    for kind in KINDS:
        assert is_hook(place, kind)
        assert mode(place.hook[kind]) == mode(place.hook[kind].parent) == 0o755
        done = runs(place.hook[kind], SLURM_JOB_ID="7", SLURM_GPU_RUN_DIR=str(tmp_path))
        assert (done.returncode, done.stderr) == (0, "")
    names = [path.name.rpartition("-")[2] for path in (tmp_path / "jobs").iterdir()]
    assert sorted(names) == ["epilog", "prolog"]
    assert place("status").returncode == 0


def test_a_removal_leaves_stubs_and_an_install_replaces_them(place: Tree):
    assert place.done("remove") == ""  # where nothing was ever placed
    assert not place.slurm.exists()
    place.done("install")
    place.done("remove")
    assert all(is_stub(place, kind) and mode(place.hook[kind]) == 0o755 for kind in KINDS)
    assert "is the stub of a removal" in place.refused("status")
    place.done("install")
    assert all(is_hook(place, kind) for kind in KINDS)
    assert sorted(place.slurm.rglob("*")) == sorted(
        [*place.hook.values(), *(hook.parent for hook in place.hook.values())]
    )


@pytest.mark.parametrize("command", ["install", "remove"])
def test_a_second_time_changes_nothing(tree: Tree, command: str):
    tree.done("install")
    tree.done(command)
    before = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in tree.hook.values()]
    tree.done(command)
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in tree.hook.values()] == before


def test_a_new_version_replaces_the_old_one(tree: Tree):
    tree.done("install")
    (tree.texts / "prolog").write_text((tree.texts / "prolog").read_text() + "# new\n")
    assert "10-slurm-gpu is of another version" in tree.refused("status")
    tree.done("install")
    assert is_hook(tree, "prolog")
    assert not list(tree.slurm.glob("*.kept"))


def test_one_that_was_put_there_by_hand_is_taken_over(tree: Tree):
    for kind in KINDS:
        tree.hook[kind].parent.mkdir(parents=True)
        shutil.copy(tree.texts / kind, tree.hook[kind])
    tree.hook["prolog"].chmod(0o644)  # the installation by hand was not careful
    tree.done("install")
    assert all(mode(hook) == 0o755 for hook in tree.hook.values())
    tree.done("remove")
    assert all(is_stub(tree, kind) for kind in KINDS)


@pytest.mark.parametrize("command", ["install", "remove"])
def test_a_file_of_the_sites_own_is_never_touched(place: Tree, command: str):
    own = place.hook["prolog"]
    own.parent.mkdir(parents=True)
    own.write_text("#!/bin/sh\n# Slurm prolog: ours, which calls slurm-gpu's\nexit 0\n")
    own.chmod(0o700)
    beside = own.with_name("50-site")
    shutil.copy2(own, beside)
    before = own.stat()
    done = place(command)
    assert done.returncode == (1 if command == "install" else 0)
    assert "10-slurm-gpu is not slurm-gpu's" in done.stdout + done.stderr
    assert (own.stat(), beside.read_text()) == (before, own.read_text())
    if command == "install":
        assert "Move it away, then type: " in done.stderr
        assert is_hook(place, "epilog")


def test_what_somebody_edited_is_kept(tree: Tree):
    tree.done("install")
    hook = tree.hook["epilog"]
    edited = hook.read_text().replace("umask 077", "umask 077; logger bye")
    hook.write_text(edited)
    assert "90-slurm-gpu was edited here" in tree.refused("status")
    assert "a copy is kept as" in tree.done("remove")
    assert is_stub(tree, "epilog")
    kept = tree.slurm / "90-slurm-gpu.epilog.kept"
    assert kept.read_text() == edited
    hook.write_text(hook.read_text() + "# mine\n")
    tree.done("install")
    assert is_hook(tree, "epilog")
    assert kept.with_name(f"{kept.name}.1").read_text().endswith("# mine\n")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Path.mkdir, "is a directory, which drains nodes"),
        (os.mkfifo, "is no regular file, which drains nodes"),
        (lambda path: path.symlink_to("/nowhere"), "is a symbolic link"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_hook_is_refused(tree: Tree, make: Callable[[Path], None], said: str):
    hook = tree.hook["prolog"]
    hook.parent.mkdir(parents=True)
    make(hook)
    assert said in tree.refused("install")
    assert not hook.is_file()
    assert is_hook(tree, "epilog")
    assert said in tree.done("remove")


def test_what_would_drain_nodes_beside_ours_is_named(tree: Tree):
    directory = tree.hook["prolog"].parent
    (directory / "old").mkdir(parents=True)
    (directory / "README").write_text("Hooks.\n")
    (directory / "10-slurm-gpu.rpmsave").write_text("#!/bin/sh\n")
    (directory / ".hidden").write_text("no glob finds it")
    said = tree.refused("install")
    assert [line.split()[1].rpartition("/")[2] for line in said.splitlines()] == [
        "10-slurm-gpu.rpmsave",
        "README",
        "old",
    ]
    assert is_hook(tree, "prolog")


def test_a_second_hook_of_ours_is_named(tree: Tree):
    tree.done("install")
    shutil.copy(tree.hook["epilog"], tree.hook["epilog"].with_name("10-slurm-gpu"))
    assert "10-slurm-gpu is slurm-gpu's too, and tells everything twice" in tree.refused("install")


def test_what_cannot_be_written_stays_whole(tree: Tree):
    tree.done("install")
    before = tree.hook["prolog"].read_text()
    (tree.texts / "prolog").write_text("")  # half a package
    done = tree("install")
    assert (done.returncode, tree.hook["prolog"].read_text()) == (3, before)
    (tree.texts / "prolog").unlink()
    done = tree("install")
    assert (done.returncode, tree.hook["prolog"].read_text()) == (3, before)
    assert "is the package whole?" in done.stderr
    assert [path.name for path in tree.hook["prolog"].parent.iterdir()] == ["10-slurm-gpu"]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_full_disk_leaves_the_hook_whole(tree: Tree):
    tree.done("install")
    script = f"""
        mkdir {tree.root}/disk && mount -t tmpfs -o size=16k none {tree.root}/disk || exit 77
        mkdir {tree.root}/disk/etc && cp -r {tree.slurm} {tree.root}/disk/etc
        cat /dev/zero >{tree.root}/disk/filler 2>/dev/null
        sh {PLACE} remove --root={tree.root}/disk --texts={tree.texts} 2>&1
        echo "status $?"
        cd {tree.root}/disk/etc/slurm/prolog.d && cmp {tree.hook["prolog"]} 10-slurm-gpu && ls -A
    """
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=20
    )
    if done.returncode == 77:
        pytest.skip("cannot mount a tmpfs here")
    assert "prolog.d/10-slurm-gpu could not be written, and is as it was" in done.stdout
    assert done.stdout.endswith("status 3\n10-slurm-gpu\n"), done.stdout


class Watch:
    """Looks at a directory as slurmd would, all the time."""

    def __init__(self, directory: Path, allowed: set[bytes]) -> None:
        self.directory, self.allowed = directory, allowed
        self.looks, self.wrong = 0, set[str]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.is_set():
            found = [path for path in os.scandir(self.directory) if not path.name.startswith(".")]
            if [path.name for path in found] != ["10-slurm-gpu"]:
                self.wrong.add(f"found {[path.name for path in found]}")
            with (self.directory / "10-slurm-gpu").open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o777 != 0o755:
                    self.wrong.add("mode")
                if file.read() not in self.allowed:
                    self.wrong.add("text")
            self.looks += 1

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


def both_texts(tree: Tree) -> set[bytes]:
    """What the prolog may ever be."""
    texts = set()
    for command in ("remove", "install"):
        tree.done("install")
        tree.done(command)
        texts.add(tree.hook["prolog"].read_bytes())
    return texts


@pytest.mark.parametrize("changes", [A_FEW, pytest.param(MANY, marks=[pytest.mark.lab, pytest.mark.long])])
def test_at_no_moment_is_the_hook_missing_or_half_written(tree: Tree, changes: int):
    allowed = both_texts(tree)
    with Watch(tree.hook["prolog"].parent, allowed) as watch:
        for _ in range(changes // 2):
            tree.done("remove")
            tree.done("install")
    assert watch.wrong == set()
    assert watch.looks > changes


def test_killed_at_any_moment_it_leaves_a_whole_hook(tree: Tree):
    allowed = both_texts(tree)
    for delay_ms in range(0, 24, 2):
        command = "remove" if delay_ms % 4 else "install"
        process = subprocess.Popen(
            ["/bin/sh", PLACE, command, f"--root={tree.root}", f"--texts={tree.texts}"],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(delay_ms / 1000)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert tree.hook["prolog"].read_bytes() in allowed
        assert mode(tree.hook["prolog"]) == 0o755
    tree.done("install")
    assert is_hook(tree, "prolog")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["place"],
        ["install", "remove"],
        ["install", "--conf"],
        ["install", "--conf=etc"],
        ["status", "-x"],
    ],
)
def test_wrong_usage_changes_nothing(tree: Tree, words: list[str]):
    for script in (PLACE, PLACE_LUA):
        done = subprocess.run(["/bin/sh", script, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith(f"usage: {script.name} ")


# job_submit.lua

SITES = """\
function slurm_job_submit(job_desc, part_list, submit_uid)
  slurm.log_user("%s", "asked {name}")
  return {code}
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""


@pytest.fixture
def lua(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path / "root", PLACE_LUA)
    tree.slurm.mkdir(parents=True)
    yield tree
    hidden = [path.name for path in tree.slurm.iterdir() if path.name.startswith(".")]
    assert hidden == []


def script_of(tree: Tree) -> Path:
    return tree.slurm / "job_submit.lua"


def apply(tree: Tree, before: Path | None = None, after: Path | None = None) -> Path:
    """A bundle as `policy apply` makes it; chained paths are as they are on the host."""
    paths = [None if path is None else Path("/") / path.relative_to(tree.root) for path in (before, after)]
    policy = Policy(contact='["chain_before"] = "/evil" x', chain=Chain(before=paths[0], after=paths[1]))
    script = script_of(tree)
    script.write_text(build_bundle(compile_policy(policy, ResolvedNames(), SiteFacts())))
    return script


def submitted(text: str) -> set[tuple[int, tuple[str, ...]]]:
    """What a job gets from a script, in every Lua."""
    scripts = [PolicyScript(text, lua=version) for version in LUA_VERSIONS]
    for script in scripts:
        script.set_jobs([])
    partition = {"name": "gpu", "flag_default": 1, "default_time": 60, "max_time": 600}
    verdicts = [script.submit({**EMPTY_DESCRIPTION, "user_id": 7}, [partition]) for script in scripts]
    return {(verdict.code, verdict.messages) for verdict in verdicts}


def own_script(tree: Tree, name: str, code: str = "slurm.SUCCESS") -> Path:
    path = tree.slurm / name
    path.write_text(SITES.format(name=path.stem, code=code))
    return path


def test_without_a_script_of_the_sites_every_job_gets_in(lua: Tree):
    script = apply(lua)
    assert lua("status").returncode == 1
    assert "is a stub now, that lets every job in" in lua.done("remove")
    assert submitted(script.read_text()) == {(0, ())}
    assert mode(script) == 0o644
    assert read_policy_in_force(script) is None
    before = script.stat()
    lua.done("remove")
    assert script.stat() == before
    assert lua("status").returncode == 0


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_sites_own_script_comes_back(lua: Tree, place: str):
    own = own_script(lua, 'site é"\\script.lua')
    script = apply(lua, **{place: own})
    lua.done("remove")
    assert script.read_bytes() == own.read_bytes()
    assert "is not slurm-gpu's" in lua.done("remove")


@pytest.mark.parametrize("shell", SHELLS)
def test_any_shell_will_do(lua: Tree, shell: str):
    lua.shell = shell
    own = own_script(lua, "site.lua")
    script = apply(lua, own)
    lua.done("remove")
    assert script.read_bytes() == own.read_bytes()


def test_two_of_the_sites_scripts_are_both_asked_as_before(lua: Tree):
    first, second = own_script(lua, "first.lua"), own_script(lua, "second.lua", "slurm.ERROR")
    script = apply(lua, first, second)
    lua.done("remove")
    text = (
        script.read_text().replace('{ "/etc', f'{{ "{lua.root}/etc').replace(', "/etc', f', "{lua.root}/etc')
    )
    assert submitted(text) == {(-1, ("asked first", "asked second"))}
    assert read_chain(script) is None
    second.unlink()  # then the stub would not load: it is for whoever removes it


@pytest.mark.parametrize("content", [None, "", "function slurm_job_submit() end"])
def test_a_script_of_the_sites_that_cannot_be_loaded_is_left_out(lua: Tree, content: str | None):
    own = lua.slurm / "site.lua"
    script = apply(lua, before=own)
    if content is not None:
        own.write_text(content)
    done = lua("remove")
    assert done.returncode == 0
    assert "/etc/slurm/site.lua, which the policy asked, is missing or lacks" in done.stderr
    assert submitted(script.read_text()) == {(0, ())}


def test_a_script_that_is_not_ours_is_never_touched(lua: Tree):
    script = own_script(lua, "job_submit.lua")
    before = script.stat()
    assert "is not slurm-gpu's" in lua.done("remove")
    assert script.stat() == before
    script.unlink()
    lua.done("remove")
    assert not script.exists()


@pytest.mark.parametrize("age_s", [-3600, 0, 7200])
def test_slurmctld_sees_that_the_script_is_newer(lua: Tree, age_s: int):
    script = apply(lua)
    at = int(script.stat().st_mtime) - age_s
    os.utime(script, (at, at))
    lua.done("remove")
    assert int(script.stat().st_mtime) > at


def test_a_script_elsewhere_is_found_by_what_apply_wrote_down(lua: Tree):
    elsewhere = lua.root / "opt" / "slurm" / "etc" / "job_submit.lua"
    elsewhere.parent.mkdir(parents=True)
    apply(lua).rename(elsewhere)
    state = lua.root / "var" / "lib" / "slurm-gpu" / "policy"
    state.mkdir(parents=True)
    (state / "apply-20261121T183000Z.json").write_text(
        '{\n "version": 1,\n "script": "/opt/slurm/etc/job_submit.lua",\n "previous": null\n}\n'
    )
    lua.done("remove")
    assert submitted(elsewhere.read_text()) == {(0, ())}


def test_a_stub_is_known_as_ours_and_replaced_by_the_next_apply(lua: Tree):
    script = apply(lua)
    lua.done("remove")
    assert script.read_text().startswith(MARK)
