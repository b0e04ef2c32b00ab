"""Run a scenario against the Lua and the model, and compare their decisions at each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import PolicyScript, ScriptDecision

from .compile import compiled, lending
from .findings import Hours, Judgement, Known, Outcome
from .judgement import accepts_blind, amounts_of_component, capped, judge, judge_change
from .model import PARTITIONS as MODEL_PARTITIONS
from .model import Request
from .modelled_bundles import admitted
from .modelled_changes import changed_by_rules
from .policystrategies import CONSTRUCTS, PERIOD_LIMITS
from .render import PARTITIONS, SUMS, changes, description, record, snapshot
from .scenarios import Change, Pass, Resubmit, Scenario, Source, Submit, SubmitBlind, can_change, changed
from .users import ACCOUNTS, NAMES
from .zonecluster import with_zones

# Time after which an admission without a job no longer counts.
SETTLED_S = 2
# The same time if snapshots contain the uptime.
SETTLED_BY_UPTIME_S = 0.8
_SLURM_USER = 64030


@dataclass
class Tally:
    """The number of judged job descriptions, and how often each limit accepted and refused them."""

    judged: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Counts by outcome, such as "submit accepted" and "gpus_total over"."""

    def note(self, what: str, judgement: Judgement, accepted: bool) -> None:
        self.judged += 1
        self.counts[f"{what} {'accepted' if accepted else 'refused'}"] += 1
        for one in judgement.findings:
            key = one.key if one.rule.startswith("rule") else f"{one.rule.partition('.')[0]}.{one.key}"
            self.counts[f"{key} {one.outcome.value}"] += 1

    def missing(self, met: Sequence[str]) -> list[str]:
        """Return the required outcomes of calls and of the limits in `met` that never occurred."""
        changes = [key for key in met if key.startswith("set:")]
        both = [key for key in met if key not in (*CONSTRUCTS, *changes)]
        wanted = ["one-gpu.shards over", "change by others accepted"]
        wanted += [f"{what} {how}" for what in _CALLS for how in ("accepted", "refused")]
        wanted += [f"{key} over" for key in changes]
        wanted += [f"{key} cannot be checked" for key in met if key in PERIOD_LIMITS]
        if "over_limit" in met:
            wanted += ["over.set:qos over", "over.set:partition over", "over.gpus_total over"]
        if "bundles" in met:
            wanted += ["bundle.partitions over"]
            both += ["bundle.cpus", "bundle.memory"]
        wanted += [f"{key} {how}" for key in both for how in _BOTH]
        return [what for what in wanted if self.counts[what] == 0]

    def __str__(self) -> str:
        counts = ", ".join(f"{what} {number}" for what, number in sorted(self.counts.items()))
        return f"{self.judged} job descriptions; {counts}"


_BOTH = (Outcome.FITS.value, Outcome.OVER.value)
_CALLS = ("submit", "het", "change", "blind")


@dataclass
class _Job:
    """A job in the queue."""

    id: int
    request: Request
    running: bool = False
    comment: str | None = None

    @property
    def row(self) -> dict[str, Any]:
        """Return the job's record; only the comment shows `exclusive` and all QOS that the job named."""
        more = {} if self.comment is None else {"admin_comment": self.comment}
        seen = replace(self.request, exclusive=False, qos=self.request.qos.split(",")[-1])
        return record(self.id, seen, running=self.running, **more)

    @property
    def token(self) -> str | None:
        return None if self.comment is None else self.comment.split()[1].removeprefix("t=")


class Player:
    """Run one scenario with its files in `directory`."""

    def __init__(self, scenario: Scenario, directory: Path, lua: str, tally: Tally) -> None:
        self.scenario, self.tally, self.policy = scenario, tally, scenario.policy
        self.log, self.snapshot = directory / "decisions.log", directory / "snapshot.txt"
        self.log.write_text("")
        self.now_s, self.up_s, self.generation = scenario.begin_s, 5000.0, 0
        self.last: Submit | None = None
        self.jobs = [_Job(10 + n, job, runs) for n, (job, runs) in enumerate(self._initial_queue())]
        self.test_only: list[tuple[int, Request]] = []
        table = compiled(
            self.policy.rules,
            str(self.log),
            self.policy.bundles,
            self.policy.zone,
            snapshot=str(self.snapshot),
            lending=lending(self.policy),
            partition_gpus={name: part.gpus for name, part in MODEL_PARTITIONS.items()},
        )
        self.script = PolicyScript(
            build_bundle(table),
            lua=lua,
            writes=True,
            now=lambda: self.now_s,
            uptime=(lambda: self.up_s) if scenario.has_uptime else None,
        )
        self.source = scenario.source
        self._show()

    def play(self) -> None:
        """Run all steps.

        Raise AssertionError if Lua and model disagree.
        """
        for action, then in self.scenario.steps:
            self.up_s += 0.1
            if isinstance(action, Submit):
                self.last = action
                self._submit(action)
            elif isinstance(action, Resubmit):
                for _ in range(action.times if self.last else 0):
                    assert self.last is not None
                    self._submit(self.last)
            elif isinstance(action, Change):
                if self._change(action):
                    then = Pass(max(3, then.seconds if then else 0), then.source if then else self.source)
            else:
                self._submit_blind(action)
                then = then or Pass(1, self.source)
            if then is not None:
                self._pass(then)

    def _initial_queue(self) -> list[tuple[Request, bool]]:
        """Return the scenario's queue; jobs are marked as interactive only if a rule has a kind."""
        noted = any(rule.kind for rule in self.policy.rules)
        return [
            (replace(job, interactive=job.interactive and noted, qos=job.qos.split(",")[-1]), running)
            for job, running in self.scenario.queue
        ]

    @property
    def _hours(self) -> Hours | None:
        if self.source is not Source.FRESH:
            return None
        return {
            (rule.id, owner, limit): (self.scenario.before if "_before" in limit else self.scenario.hours)
            * (1 if owner else 2)
            * (1 if "gpu" in limit else 4)
            for rule in self.policy.rules
            for owner in (None, *NAMES, *ACCOUNTS)
            for limit in SUMS
        }

    @property
    def _counts_by_snapshot(self) -> bool:
        """Return whether sums come from the snapshot, which has only sums over whole groups."""
        return self.source.is_used and not any(
            (rule.kind or rule.jobs) and rule.per != "job" for rule in self.policy.rules
        )

    def _known(self, without: _Job | None = None) -> Known:
        there = [job for job in self.jobs if job is not without]
        tested = [request for _, request in self.test_only]
        return Known(
            [*(job.request for job in there), *tested],
            [*(job.request for job in there if not job.running), *tested],
            self.now_s,
            self._hours,
        )

    def _submit(self, action: Submit) -> None:
        first = action.components[0]
        is_het, earlier = len(action.components) > 1, Counter[tuple[str, str]]()
        for offset, component in enumerate(action.components):
            request = replace(component, uid=first.uid, interactive=first.interactive)
            desc = description(request, self.scenario.mark, terse=action.terse)
            if is_het:
                desc["het_job_offset"] = offset
                if offset > 0:
                    desc |= {"script": None, "argc": None}  # only the first component has a script
            verdict = self.script.submit(desc, PARTITIONS)
            judgement = judge(
                self.policy, request, self._known(), names_qos=not action.terse, earlier=earlier
            )
            what = "het" if is_het else "submit"
            self._compare(what, verdict, judgement, (request, desc))
            if not verdict.accepted:
                return  # Slurm refuses the rest
            asked = changed_by_rules(
                self.policy, request, self.now_s, self._known(), earlier, terse=action.terse
            )
            names_qos = not action.terse or "qos" in asked.given
            admitted_job = admitted(self.policy, asked.job, names_qos=names_qos)
            job = capped(self.policy, admitted_job, self.now_s)
            earlier.update(amounts_of_component(self.policy, admitted_job, self.now_s))
            if action.is_test_only:
                self.test_only.append((self.now_s, job))
            else:
                comment = str(verdict.desc["admin_comment"])
                self.jobs.append(_Job(100 + len(self.jobs), job, comment=comment))

    def _change(self, action: Change) -> bool:
        """Update a pending job and return whether it changed."""
        pending = [job for job in self.jobs if not job.running and can_change(job.request)]
        if not pending:
            return False
        job = pending[action.which % len(pending)]
        after = changed(job.request, action.fields)
        if "," in job.request.qos and after.qos != job.request.qos:
            return False  # the comment still names all former QOS, so the job may count in them
        if None in after.needed_nodes and None not in job.request.needed_nodes:
            return False  # no node suits the job, so Slurm would refuse the update itself
        desc = changes(job.request, after, self.scenario.mark)
        by = {"owner": job.request.uid, "root": 0, "SlurmUser": _SLURM_USER, "stranger": 1009}[action.by]
        verdict = self.script.modify(desc, job.row, PARTITIONS, by)
        if action.by == "owner":
            judgement = judge_change(self.policy, job.request, after, self._known(without=job))
            self._compare("change", verdict, judgement, (job.request, after))
            after = capped(self.policy, after, self.now_s, before=job.request)
        else:
            assert verdict.accepted, verdict
            assert not _errors(verdict)
            self.tally.note("change by others", Judgement(()), accepted=True)
        if verdict.accepted:
            job.request = after
        return verdict.accepted

    def _submit_blind(self, action: SubmitBlind) -> None:
        self.snapshot.unlink(missing_ok=True)
        self.script.set_jobs([{"job_id": 1, "job_state": "?"}])  # a state that is no number is an error
        verdict = self.script.submit(description(action.job, self.scenario.mark), PARTITIONS)
        asked = changed_by_rules(self.policy, action.job, self.now_s, None, terse=False)
        assert verdict.accepted == accepts_blind(self.policy, asked.job, self.now_s), verdict
        assert len(_errors(verdict)) == 1, verdict.log
        self.tally.note("blind", Judgement(()), verdict.accepted)

    def _compare(self, what: str, verdict: ScriptDecision, judgement: Judgement, about: object) -> None:
        found = _logged(self.log)
        assert found == judgement.reported, (what, found, judgement.reported, about, verdict.messages)
        assert verdict.accepted == judgement.accepted, (what, about, verdict)
        unknown = [one for one in judgement.findings if one.outcome is Outcome.UNKNOWN]
        assert len(_errors(verdict)) == len(unknown), verdict.log
        self.tally.note(what, judgement, verdict.accepted)

    def _pass(self, then: Pass) -> None:
        self.now_s, self.up_s = self.now_s + then.seconds, self.up_s + then.seconds
        self.source = then.source
        by_uptime = self._counts_by_snapshot and self.scenario.has_uptime
        settled_s = SETTLED_BY_UPTIME_S if by_uptime else SETTLED_S
        self.test_only = [(at, job) for at, job in self.test_only if self.now_s - at < settled_s]
        self._show()

    def _show(self) -> None:
        """Update the job table and, depending on the source, the snapshot."""
        self.generation += 1
        source = self.source
        text = snapshot(
            self.generation,
            self.now_s - (31 if source is Source.STALE else 0),
            self.policy.rules,
            [(job.request, job.running) for job in self.jobs],
            [job.token for job in self.jobs if job.token is not None],
            self._hours,
            self.policy.zone,
        )
        if self.scenario.placement:
            text = with_zones(text, self.scenario.placement)
        if self.scenario.has_uptime:
            text = text.replace("\ngroups ", f"\nlooked {self.up_s:.2f} 0.05 boot\ngroups ", 1)
        if source is Source.ABSENT:
            self.snapshot.unlink(missing_ok=True)
        elif source is Source.HALF_WRITTEN:
            self.snapshot.write_text(text[: len(text) * 2 // 3])
        elif source is Source.OTHER_GROUPS:
            self.snapshot.write_text(text.replace("\ngroups test\n", "\ngroups other\n"))
        else:
            self.snapshot.write_text(text)
        if self._counts_by_snapshot:
            self.script.set_jobs([{"job_id": 1, "job_state": "?"}])  # reading the queue would fail
        else:
            self.script.set_jobs(job.row for job in self.jobs)


def _logged(log: Path) -> set[tuple[str, str, str]]:
    """Return (rule, limit, mode or "error") of the last line of decisions.log."""
    fields: Mapping[str, str] = dict(
        word.split("=", 1) for word in log.read_text().splitlines()[-1].split() if "=" in word
    )
    found = set()
    for item in unquote(fields["rules"]).split(",") if fields["rules"] != "-" else []:
        name, _, mode = item.rpartition(":")
        rule, _, key = name.partition(":")
        found.add((rule, key, mode))
    return found


def _errors(verdict: ScriptDecision) -> list[str]:
    return [text for level, text in verdict.log if level == "error"]
