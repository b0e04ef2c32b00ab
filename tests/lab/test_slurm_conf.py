"""Test that the parser of slurm.conf agrees with slurmctld on files generated from Slurm's grammar."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.daemons import Daemon
from lab.errors import LabError
from lab.services import accepts, tagged_environment
from lab.slurm_config import SLURM_USER
from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.commands import CommandClient
from slurm_gpu.slurm.conf_file import node_weights, read_conf, settings_named, with_defaults
from slurm_gpu.slurm.runner import query_environment, run_command
from tests.slurm.spellings import SPELLINGS, Spelling

N_VARIANTS = 200
SEED = 20261128
# Ports that no lab uses: lab.layout assigns smaller offsets.
PORT_OFFSET = 900
BASE = """\
ClusterName=Variants
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
AuthInfo=socket={munge}
StateSaveLocation={root}/state
SlurmctldPidFile={root}/state/pid
SlurmctldLogFile={root}/state/log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
NodeName=DEFAULT State=FUTURE
"""
# Later versions start only if the files of PrologSlurmctld and EpilogSlurmctld exist.
KEYS = (
    *("Prolog", "Epilog", "TaskProlog", "TaskEpilog", "SrunProlog", "SrunEpilog"),
    *("HealthCheckProgram", "UnkillableStepProgram", "RebootProgram"),
)
VALUES = (
    "",
    *("/etc/slurm/prolog.d/*", "/opt/site hooks/*", "/a#b", "/a # b", "/a\\b", "/a=b", "/a,/b", "/a'b"),
    *('/a"b', "/tab\there", "/ü", "Weight=7", "NodeName=x", "include", "/x\\\\y", "[0-9]*", "/a;b|c$d`e"),
)
PLUGINS = ("require_timelimit", "all_partitions", "all_partitions,require_timelimit")
HOSTS = (
    "n{0}",
    "n{0} ,, n{1}",
    " n{0}",
    "n[{0}-{1}]",
    "n{0},n{1}",
    "n[{0},{1}]",
    "n{0} n{1}",
    "n{0}, n{1}",
    "r[1-2]n[{0}-{1}]",
    "n0{0}",
)
WEIGHTS = ("", " 5", "0", "1", "50", "062", "0x1F", "4k", "4K", "+7", "INFINITE", "unlimited", "4294967295")


@dataclass(frozen=True)
class Variants:
    """A slurmctld that starts with a series of slurm.conf variants."""

    conf: Path
    daemon: Daemon
    client: CommandClient

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def run(self, *argv: str) -> str:
        return run_command(argv, query_environment(self.environment), 10)

    def reads(self, text: str) -> None:
        """Start slurmctld with a slurm.conf, because a reconfiguration does not change node names."""
        self.daemon.kill9()
        self.conf.write_text(text, newline="")
        try:
            self.daemon.start()
        except LabError as error:
            pytest.fail(f"{error}\n{text}")


@pytest.fixture
def variants(lab: Lab) -> Iterator[Variants]:
    root = lab.layout.root / "variants"
    shutil.rmtree(root, ignore_errors=True)
    (root / "state").mkdir(parents=True)
    (root / "sub").mkdir()
    shutil.chown(root / "state", SLURM_USER)
    conf = root / "slurm.conf"
    port = lab.layout.port + PORT_OFFSET
    base = BASE.format(port=port, user=SLURM_USER, munge=lab.layout.munge_socket, root=root)
    (root / "base.conf").write_text(base)
    environment = tagged_environment(lab.layout) | {"SLURM_CONF": str(conf)}
    client = CommandClient(environ={**os.environ, "SLURM_CONF": str(conf)})
    daemon = Daemon(
        name="slurmctld",
        argv=["slurmctld", "-D", "-i"],
        environment=environment,
        log=root / "out",
        pid_file=root / "pid",
        is_ready=lambda: accepts(("127.0.0.1", port)) and _answers(client),
        user=SLURM_USER,
    )
    yield Variants(conf, daemon, client)
    daemon.kill9()


def _answers(client: CommandClient) -> bool:
    """Return whether slurmctld answers; on a busy host it accepts and resets connections before that."""
    try:
        client.settings()
    except SlurmError:
        return False
    return True


def test_variants_of_slurm_conf_are_read_as_slurmctld_reads_them(variants: Variants):
    rng = random.Random(SEED)
    for _ in range(N_VARIANTS):
        text = _variant(rng, variants.conf.parent)
        variants.reads(text)
        lines = read_conf(variants.conf)
        raw = variants.client.settings().raw
        for key in {line.key.lower(): line.key for line in lines if _name(line.key) is not None}.values():
            values = [line.value for line in settings_named(lines, key)]
            name = _name(key)
            # From 24.11 on, Prolog and similar keys have several values.
            several = [raw[f"{name}[{i}]"] for i in range(len(values)) if f"{name}[{i}]" in raw]
            assert several or [raw[str(name)]] == [values[-1]], text
            assert not several or several == values, text
        assert node_weights(lines) == _weights(variants), text
        tiers = {
            line.value: line.get("PriorityTier") or "1" for line in with_defaults(lines, "PartitionName")
        }
        assert tiers == _tiers(variants), text
        assert not [line for line in lines if line.leftover], text


@pytest.mark.parametrize(
    "line",
    [
        "not a setting",
        "Prolog=",
        'Prolog="/a b"c',
        "NodeName=n9 CPUs=4 nonsense Weight=3",
        " Include base.conf",
    ],
)
def test_slurmctld_does_not_start_with_leftover_text(variants: Variants, line: str):
    variants.conf.write_text(f"Include base.conf\nNodeName=n1\nPartitionName=p Nodes=ALL\n{line}\n")
    assert [one for one in read_conf(variants.conf) if one.leftover]
    argv = ["slurmctld", "-D", "-i"]
    done = subprocess.run(
        argv, env=variants.environment, capture_output=True, text=True, check=False, timeout=20
    )
    assert done.returncode != 0
    assert "Parse error in file" in done.stderr


def _variant(rng: random.Random, root: Path) -> str:
    """Return a valid slurm.conf, partly in included files."""
    lines = [_random(rng).line(rng.choice(KEYS), rng.choice(VALUES)) for _ in range(rng.randrange(1, 6))]
    lines += [_random(rng).line("JobSubmitPlugins", rng.choice(PLUGINS)) for _ in range(rng.randrange(2))]
    numbers = iter(range(1, 100))
    for _ in range(rng.randrange(1, 6)):
        names = "DEFAULT" if rng.random() < 0.3 else rng.choice(HOSTS).format(next(numbers), next(numbers))
        pairs = [("Weight", rng.choice(WEIGHTS)) for _ in range(rng.randrange(3))]
        pairs += rng.sample([("Feature", "Weight=8"), ("RealMemory", "1000"), ("Reason", "no # Weight=8")], 1)
        rng.shuffle(pairs)
        lines.append(_random(rng).line("NodeName", _any_case(rng, names), *pairs))
    for number in range(1, rng.randrange(2, 5)):
        name = "DEFAULT" if rng.random() < 0.3 else f"p{number}"
        pairs = [("PriorityTier", rng.choice(("1", "5", "70"))) for _ in range(rng.randrange(3))]
        lines.append(_random(rng).line("PartitionName", _any_case(rng, name), *pairs))
    lines += rng.choices(("\n", "# Weight=7\n", " \t \n", "#\\\n", "# no\\#Weight=7\n", "\\\n\n"), k=3)
    rng.shuffle(lines)
    if rng.random() < 0.5:
        cut = rng.randrange(len(lines))
        name, relative = rng.choice((("more.conf", True), ("sub/more.conf", True), ("sub/more.conf", False)))
        (root / name).write_text("".join(lines[cut:]), newline="")
        include = rng.choice(("Include {}\n", "include\t{} \n", "INCLUDE \\\n{} # Weight=7\n"))
        lines[cut:] = [include.format(name if relative else root / name)]
    return "Include base.conf\nNodeName=n0\nPartitionName=p0\n" + "".join(lines)


def _random(rng: random.Random) -> Spelling:
    """Return a random combination of spellings."""

    def value(text: str) -> str:
        # A value that contains quotes cannot be quoted; a value that is empty or has blanks must be.
        is_quoted = '"' not in text and (not text or re.search(r"[ \t]", text) or rng.random() < 0.5)
        text = re.sub(r"[\\#]", r"\\\g<0>", text)
        if rng.random() < 0.3:
            at = rng.randrange(len(text) + 1)
            text = text[:at] + ("" if text[at - 1 : at] == "\\" else "\\\n") + text[at:]
        return f'"{text}"' if is_quoted else text

    parts = [rng.choice(SPELLINGS) for _ in range(5)]
    end = parts[4].after or "\n"
    return Spelling("random", parts[0].equals, parts[1].key, value, parts[2].gap, parts[3].before, end)


def _any_case(rng: random.Random, text: str) -> str:
    return rng.choice((text, text.lower(), text.title())) if text == "DEFAULT" else text


def _name(key: str) -> str | None:
    """Return the name of a key that variants set, as scontrol prints it."""
    return next((name for name in (*KEYS, "JobSubmitPlugins") if name.lower() == key.lower()), None)


def _weights(variants: Variants) -> dict[str, int]:
    text = variants.run("scontrol", "--future", "show", "node")
    return {
        name: int(weight)
        for name, weight in re.findall(r"^NodeName=(\S+).*?\bWeight=(\d+) Owner", text, re.M | re.S)
    }


def _tiers(variants: Variants) -> dict[str, str]:
    text = variants.run("scontrol", "show", "partition")
    return dict(re.findall(r"^PartitionName=(\S+).*?\bPriorityTier=(\d+)", text, re.M | re.S))
