"""`slurm-gpud applications`: show which application a process runs and why, or check the rules."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_gpu.config.site import default_path
from slurm_gpu.errors import SlurmGpuError
from slurm_gpu.node.application.containers import in_container
from slurm_gpu.node.application.evidence import ProcessEvidence, gather
from slurm_gpu.node.application.recognition import RecognizedApplication, file_size, fits, recognise
from slurm_gpu.node.application.rules import ApplicationRules, load_rules, rules_path
from slurm_gpu.node.process.job_cgroups import JobCgroups, JobName
from slurm_gpu.node.process.procfs import Processes
from slurm_gpu.text.units import counted, few, parse_whole

_WIDTH = 100
_LABEL = 13
_SOME_LIBRARIES = 8
_MOST_PROCESSES = 512
_NO_BREAK = "\u00a0"

_EXIT_CODES = "exit code: 0 all recognised, 1 not all recognised, 2 invalid rules, 3 unreadable process"


@dataclass(frozen=True, slots=True)
class ProcessVerdict:
    """The result of applying the rules to one process; `evidence` is None if it cannot be read."""

    pid: int
    evidence: ProcessEvidence | None
    finding: RecognizedApplication | None = None
    container: bool | None = None
    also: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the result as an object for --json."""
        rule = None if self.finding is None else self.finding.rule
        return {
            "pid": self.pid,
            "readable": self.evidence is not None,
            "app": None if rule is None else rule.name,
            "app_field": None if rule is None else rule.field,
            "app_params": None if self.finding is None else dict(self.finding.parameters),
            "container": self.container,
            "rule": None if rule is None else rule.place,
            "because": None if self.finding is None else list(self.finding.because),
            "also_fits": list(self.also),
        }


def main(arguments: Sequence[str]) -> int:
    """Run `slurm-gpud applications` and return the exit code."""
    options = make_parser().parse_args(arguments)
    path = rules_path(options.config) if options.rules is None else options.rules
    try:
        rules = load_rules(path)
    except SlurmGpuError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if options.check:
        print(json.dumps(listed(rules), indent=2) if options.json else "\n".join(summary(rules)))
        return 0
    processes = Processes()
    pids = options.pid
    if options.job is not None:
        pids = JobCgroups(options.node).pids(JobName(options.job), _MOST_PROCESSES)
        if not pids:
            print(f"job {options.job} has no process in a cgroup on node {options.node}", file=sys.stderr)
            return 3
        if len(pids) > _MOST_PROCESSES:
            print(
                f"the job has more than {_MOST_PROCESSES} processes; only {_MOST_PROCESSES} are checked",
                file=sys.stderr,
            )
        pids = without_slurms_own(processes, list(dict.fromkeys(pids))[:_MOST_PROCESSES])
    verdicts = [judge(processes, pid, rules) for pid in pids]
    if options.json:
        print(json.dumps([verdict.to_json() for verdict in verdicts], indent=2))
    else:
        shown = explained_job(verdicts) if options.job is not None else map(explained, verdicts)
        print("\n".join(line for lines in shown for line in lines))
    return exit_code(verdicts) if options.job is None else exit_code([best_of(verdicts)])


def make_parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    parser = argparse.ArgumentParser(
        prog="slurm-gpud applications",
        description="Show which application each process runs and why, or check the rules.",
        epilog=_EXIT_CODES,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--pid", type=_number, nargs="+", metavar="PID", help="processes to check")
    what.add_argument("--job", type=_job_number, metavar="ID", help="the processes of this job on this node")
    what.add_argument("--check", action="store_true", help="only check the rules and list the applications")
    parser.add_argument(
        "--config",
        type=Path,
        default=default_path(),
        metavar="FILE",
        help="site file; applications.yaml is next to it (default %(default)s)",
    )
    parser.add_argument(
        "--node",
        default=os.uname().nodename.partition(".")[0],
        metavar="NAME",
        help="this node's name in Slurm, for --job (default: the host's short name)",
    )
    parser.add_argument("--rules", type=Path, metavar="FILE", help="use the rules in FILE instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def exit_code(verdicts: Sequence[ProcessVerdict]) -> int:
    """Return the exit code for these results."""
    if any(verdict.evidence is None for verdict in verdicts):
        return 3
    return 0 if all(verdict.finding is not None for verdict in verdicts) else 1


def _number(text: str) -> int:
    try:
        return parse_whole(text, 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number such as 4711") from None


def _job_number(text: str) -> int:
    """Parse a raw job ID, as in cgroup names; raise ArgumentTypeError for array tasks and het components."""
    if re.fullmatch(r"[0-9]+[_+][0-9]+", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} has its own job ID on a node; get it with `squeue -j {text} -o '%i %A'`"
        )
    return _number(text)


def without_slurms_own(processes: Processes, pids: Sequence[int]) -> Sequence[int]:
    """Return the job's processes; leave out those of Slurm, which run as root, unless root owns the job."""
    of_users = [pid for pid in pids if _uid(processes, pid) not in (None, 0)]
    return of_users or pids


def _uid(processes: Processes, pid: int) -> int | None:
    try:
        return processes.uid(pid)
    except OSError:
        return None  # the process ended


def judge(processes: Processes, pid: int, rules: ApplicationRules) -> ProcessVerdict:
    """Check one process in the same way as slurm-gpud does."""
    evidence = gather(processes, pid)
    if evidence.executable is None:
        return ProcessVerdict(pid, None)
    finding = recognise(evidence, rules, lambda name: file_size(processes, pid, name))
    fitting = [rule for rule in rules.rules if fits(rule, evidence) is not None]
    return ProcessVerdict(
        pid=pid,
        evidence=evidence,
        finding=finding,
        container=in_container(processes, pid),
        also=[f"{rule.name} ({rule.priority})" for rule in fitting[1:]],
    )


def best_of(verdicts: Sequence[ProcessVerdict]) -> ProcessVerdict:
    """Return the result with the highest priority, or else the result of any readable process."""
    found = [verdict for verdict in verdicts if verdict.finding is not None]
    if found:
        return max(found, key=lambda v: -1 if v.finding is None else v.finding.rule.priority)
    return next((verdict for verdict in verdicts if verdict.evidence is not None), verdicts[0])


def explained_job(verdicts: Sequence[ProcessVerdict]) -> Iterator[Iterator[str]]:
    """Yield the output for a job: the best process, and the number of other processes by application."""
    best = best_of(verdicts)
    yield explained(best)
    others = Counter(_name_of(verdict) for verdict in verdicts if verdict is not best)
    if others:
        yield _row("others", ", ".join(f"{count} × {name}" for name, count in others.most_common()))


def _name_of(verdict: ProcessVerdict) -> str:
    if verdict.evidence is None:
        return "gone"
    if verdict.finding is None:
        return f"{verdict.evidence.executable} (not recognised)"
    return verdict.finding.rule.name


def explained(verdict: ProcessVerdict) -> Iterator[str]:
    """Yield the output lines for one process."""
    evidence, finding = verdict.evidence, verdict.finding
    head = f"{verdict.pid:>7}  "
    if evidence is None:
        yield f"{head}cannot be read: it ended, is a kernel thread, or belongs to another user (try as root)"
        return
    where = ", in a container" if verdict.container else ""
    if finding is None:
        yield f"{head}not recognised{where}"
        yield from _row("executable", evidence.executable or "?")
        if evidence.script or evidence.module:
            yield from _row("script", evidence.script or f"-m {evidence.module}")
        if evidence.imports | evidence.packages:
            yield from _row("python", ", ".join(sorted(evidence.imports | evidence.packages)))
        yield from _row("libraries", _some(sorted(evidence.libraries)))
        return
    rule = finding.rule
    field = f" ({rule.field})" if rule.field else ""
    yield f"{head}{rule.name}{field}{where}"
    yield from _row("because", "; ".join(finding.because))
    yield from _row("rule", f"{rule.place}, priority {rule.priority}")
    if finding.parameters:
        yield from _row("parameters", ", ".join(f"{k}={v}" for k, v in finding.parameters.items()))
    if verdict.also:
        yield from _row("passed over", ", ".join(verdict.also))


def listed(rules: ApplicationRules) -> dict[str, Any]:
    """Return the rules for --check --json."""
    return {
        "path": rules.path,
        "applications": [
            {
                "app": rule.name,
                "app_field": rule.field,
                "priority": rule.priority,
                "rule": rule.place,
                "traces": len(rule.traces),
            }
            for rule in rules.rules
        ],
    }


def summary(rules: ApplicationRules) -> Iterator[str]:
    """Yield the output lines of --check: the applications by field of science."""
    alternatives = sum(len(rule.traces) for rule in rules.rules)
    both = f"{counted(len(rules.rules), 'application')}, {counted(alternatives, 'alternative')}"
    yield f"{rules.path}: {both}, no errors"
    fields: dict[str, list[str]] = {}
    for rule in rules.rules:
        fields.setdefault(rule.field or "no field", []).append(rule.name)
    for field, names in sorted(fields.items(), key=lambda item: (-len(item[1]), item[0])):
        yield f"  {field} ({len(names)})"
        unbroken = ", ".join(name.replace(" ", _NO_BREAK) for name in names)
        for line in textwrap.wrap(unbroken, _WIDTH, initial_indent="    ", subsequent_indent="    "):
            yield line.replace(_NO_BREAK, " ")


def _row(label: str, text: str) -> Iterator[str]:
    indent = " " * 9
    yield from textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"{indent}{label:<{_LABEL}}",
        subsequent_indent=indent + " " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _some(names: Sequence[str]) -> str:
    if not names:
        return "none"
    return f"{few(names, _SOME_LIBRARIES)}; none is named by a rule"
