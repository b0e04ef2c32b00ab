"""Set node weights to make Slurm fill the nodes with the least at stake first; restore them on exit.

slurmctld loses the weights when it is reconfigured (in 22.05, also when it restarts), so each cycle compares
the actual weights with the required ones. Each call permanently splits slurmctld's node records. Nodes with
the same new Weight therefore share a call, and unchanged nodes are left out. Only the slurm-gpuctld on the
host of the active slurmctld sets weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slurm_gpu.clock import Clock
from slurm_gpu.config.node_groups import group_by_node
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.controller.duty import Duty, QueueView
from slurm_gpu.controller.placement import original_weights as weightmemory
from slurm_gpu.controller.placement import table as placementtable
from slurm_gpu.controller.placement.original_weights import OriginalWeights, RecordedWeights, as_known
from slurm_gpu.controller.placement.table import LastAction, PlacementTable, lines_of, mix_lines
from slurm_gpu.controller.placement.weight_plan import Managed, NodePlan, plan, running_on
from slurm_gpu.controller.queue.job_mix import JobMix, MixedOrder
from slurm_gpu.controller.queue.nodes import NodeCache
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.errors import SlurmGpuError, outside
from slurm_gpu.placement.weights import changes
from slurm_gpu.policy.lua.peers import controllers, this_host
from slurm_gpu.slurm.client import SlurmClient, SlurmNode, SlurmSettings
from slurm_gpu.slurm.conf_file import node_weights, read_conf
from slurm_gpu.slurm.queue import CountedJob
from slurm_gpu.text.hostlist import compress

log = logging.getLogger("slurm-gpuctld")

# Maximum interval between cycles that use little CPU time; lost weights are restored within this interval.
CYCLE_S = 10.0
_LEAST_S = 1.0
_LATEST_S = 60.0
# Delay of a cycle after a job's end, because the job leaves its node only after the epilog.
_AFTER_CHANGE_S = 3.0
# Maximum share of a core that cycles may use; exceeded if cycles would otherwise be more than _LATEST_S
# apart.
_CPU_SHARE = 0.01
_SETTINGS_EVERY_S = 600.0
_ADVICE_EVERY_S = 60.0
# Maximum characters of a hostlist in a log line or audit event; the evidence contains the complete hostlist.
_MOST_NAMED = 200


class WeightController(Duty):
    """Sets node weights; weights remain unchanged while updates fail."""

    def __init__(
        self,
        config: SiteConfig,
        run_directory: Path,
        client: SlurmClient,
        nodes: NodeCache,
        clock: Clock,
        acts: AuditReporter,
        cpu: Callable[[], float],
        host: str | None = None,
        mix: JobMix | None = None,
    ) -> None:
        super().__init__(
            clock, "node weights could not be changed: %s", "weights of nodes are updated again", cpu=cpu
        )
        self.path = run_directory / placementtable.FILE_NAME
        self._mode = config.placement.mode
        self._managed, self._zones = Managed(config.placement), group_by_node("zones", config.zones)
        self._client, self._nodes, self._acts = client, nodes, acts
        self._host = this_host() if host is None else host
        self._order = MixedOrder(JobMix(clock) if mix is None else mix)
        self._settings: tuple[float, SlurmSettings] | None = None
        self._memory: OriginalWeights | None = None
        """The record; None before it is read, and while slurmctld is active on another host."""
        self._levels: dict[str, int] = {}
        self._set: dict[str, int] = {}
        """Weights that this process has set, or that were already correct."""
        self._by_hand: frozenset[str] = frozenset()
        self._running: int | None = None
        self._jobs: Sequence[CountedJob] | None = None
        self._next_s, self._again_s = 0.0, 0.0
        self._last_action: LastAction | None = None
        self.in_charge = False
        """Whether the slurmctld of this host was active in the last cycle."""
        self._advised: tuple[float, str] = (0.0, "")

    def prepare(self, view: QueueView) -> bool:
        """Bring the next cycle forward if running jobs or their nodes changed; return whether it is due."""
        if view.answered:
            self._jobs = view.jobs
        now = self._clock.monotonic()
        if view.running != self._running:
            self._running, self._next_s, self._again_s = view.running, now, now + _AFTER_CHANGE_S
        return now >= self._next_s

    def reschedule(self, cpu_s: float) -> None:
        """Set the earliest and the latest time of the next cycle."""
        now = self._clock.monotonic()
        self._due_s = now + min(max(_LEAST_S, cpu_s / _CPU_SHARE), _LATEST_S)
        self._next_s = now + self.cycle_s
        if self._again_s > now:
            self._next_s = min(self._next_s, self._again_s)

    @property
    def cycle_s(self) -> float:
        """Maximum time until the next cycle if it uses as much CPU time as the last cycle."""
        return max(CYCLE_S, self._due_s - self._clock.monotonic())

    def stop(self) -> None:
        """Restore the original weights if any were changed; log a warning on failure."""
        try:
            if self._mode == "enforce" and self._memory is not None and self._memory.nodes:
                self._client.ping()  # every other call would wait a long time for an unreachable slurmctld
                self._release("slurm-gpuctld ends")
        except SlurmGpuError as error:
            log.warning(
                "original node weights could not be restored: %s; run `slurm-gpu placement release`",
                error,
            )
        self.path.unlink(missing_ok=True)  # no further cycle runs
        self._order.jobs.write()
        self._acts.close()

    def work(self, view: QueueView) -> None:
        """Compare the actual weights with the required weights, and change those that differ."""
        settings = self._slurm_settings()
        self.in_charge = self._is_in_charge(settings)
        if not self.in_charge:
            self._memory, self._set = None, {}
            self._write([], {}, in_charge=False)
            return
        if self._memory is None:
            self._memory = weightmemory.read(weightmemory.path_of(settings))
            if self._mode != "enforce" and self._memory.nodes:
                self._release(f"placement's mode is {self._mode}")
        nodes = self._nodes.within(0.0)
        if self._release_others(nodes, settings):
            nodes = self._nodes.within(0.0)
        managed = self._managed.of(nodes)
        plans = plan(
            nodes,
            managed,
            self._memory,
            written_weights(settings),
            self._levels,
            self._order.of,
            None if self._jobs is None else running_on(self._jobs),
            self._clock.wall(),
        )
        self._levels = {one.node.name: one.level for one in plans if one.level is not None}
        self._notice_by_hand(plans)
        now = {node.name: node.weight for node in managed}
        if self._mode == "enforce":
            self._enforce(plans, now, settings)
        elif self._mode == "advise":
            self._advise(plans, now)
        self._write(plans, now, in_charge=True)

    def _enforce(self, plans: Sequence[NodePlan], now: dict[str, int], settings: SlurmSettings) -> None:
        targets = {one.node.name: one.target for one in plans if one.target is not None}
        known = {one.node.name: one.known for one in plans if not one.is_by_hand}
        self._remember(known, settings)
        lost = [
            one.node.name
            for one in plans
            if one.known.site == one.node.weight != self._set.get(one.node.name, one.node.weight)
        ]
        steps = changes(targets, now)
        began = self._clock.monotonic()
        for weight, names in steps.items():
            self._client.set_weight(names, weight)
            now |= dict.fromkeys(names, weight)
        self._set = {name: now[name] for name in targets}
        if steps:
            n = sum(map(len, steps.values()))
            took_s = round(self._clock.monotonic() - began, 3)
            self._last_action = LastAction(int(self._clock.wall()), "weights set", n, len(steps), took_s)
        if lost:
            self._acts.add(
                "node weights set again",
                _named(lost),
                "slurmctld was reconfigured or restarted",
                old="the site's own",
                new="slurm-gpuctld's",
            )

    def _remember(self, known: Mapping[str, RecordedWeights], settings: SlurmSettings) -> None:
        """Write new entries to disk before setting weights; the entries remain until weights are restored."""
        assert self._memory is not None
        nodes = {**self._memory.nodes, **known}
        if nodes == self._memory.nodes:
            return
        begins = not self._memory.nodes
        memory = OriginalWeights(nodes, self._host, int(self._clock.wall()))
        weightmemory.write(weightmemory.path_of(settings), memory, settings.slurm_user_uid)
        self._memory = memory
        if begins:
            ranges = {f"{min(one.ours)} to {max(one.ours)}" for one in known.values() if one.ours}
            self._acts.add(
                "node weights taken over",
                _named(known),
                "placement's mode is enforce",
                old=_weights_text({name: one.site for name, one in known.items()}),
                new=", ".join(sorted(ranges)),
                evidence={"nodes": compress(known)},
            )

    def _release_others(self, nodes: Sequence[SlurmNode], settings: SlurmSettings) -> bool:
        """Restore the original Weight of nodes that are no longer managed; forget nodes that no longer exist.

        Return whether the record contained any of these nodes.
        """
        assert self._memory is not None
        managed = {node.name for node in self._managed.of(nodes)}
        gone = self._memory.nodes.keys() - managed
        if not gone:
            return False
        there = [node for node in nodes if node.name in gone]
        only = self._memory.with_nodes({name: self._memory.nodes[name] for name in gone})
        put_back(self._client, only, there, written_weights(settings))
        kept = {name: one for name, one in self._memory.nodes.items() if name in managed}
        self._memory = self._memory.with_nodes(kept)
        weightmemory.write(weightmemory.path_of(settings), self._memory, settings.slurm_user_uid)
        if there:
            self._acts.add(
                "node weights restored",
                _named(node.name for node in there),
                "they are no longer managed",
                old="slurm-gpuctld's",
                new="the site's own",
            )
        return True

    def _release(self, why: str) -> None:
        settings = self._slurm_settings()
        assert self._memory is not None
        release(self._client, settings, self._memory, self._acts, why)
        self._memory, self._set = OriginalWeights(), {}

    def _advise(self, plans: Sequence[NodePlan], now: Mapping[str, int]) -> None:
        steps = changes({one.node.name: one.target for one in plans if one.target is not None}, now)
        advised_s, advised = self._advised
        text = "; ".join(
            f"scontrol update NodeName={compress(names)} Weight={weight}" for weight, names in steps.items()
        )
        if text and text != advised and self._clock.monotonic() - advised_s >= _ADVICE_EVERY_S:
            log.info("placement would run: %s", text)
            self._advised = self._clock.monotonic(), text

    def _notice_by_hand(self, plans: Sequence[NodePlan]) -> None:
        found = frozenset(one.node.name for one in plans if one.is_by_hand)
        if found - self._by_hand:
            log.warning(
                "Weight of %s was set by hand and is not changed; `slurm-gpu doctor` shows the command",
                _named(found),
            )
        self._by_hand = found

    def _is_in_charge(self, settings: SlurmSettings) -> bool:
        """Return whether the slurmctld of this host is the first that is up; True if there are no backups."""
        if len(controllers(settings)) < 2:
            return True
        return next((one.name for one in self._client.controllers() if one.is_up), None) == self._host

    def _slurm_settings(self) -> SlurmSettings:
        now = self._clock.monotonic()
        if self._settings is None or now - self._settings[0] >= _SETTINGS_EVERY_S:
            self._settings = now, self._client.settings()
        return self._settings[1]

    def _write(self, plans: Sequence[NodePlan], now: Mapping[str, int], *, in_charge: bool) -> None:
        table = PlacementTable(
            as_of_s=int(self._clock.wall()),
            host=self._host,
            mode=self._mode,
            in_charge=in_charge,
            cycle_s=round(self.cycle_s, 1),
            nodes=lines_of(plans, self._zones, now),
            last_action=self._last_action,
            mix=mix_lines(self._order.jobs),
        )
        placementtable.write(self.path, table)


def written_weights(settings: SlurmSettings) -> Mapping[str, int]:
    """Return the weights in slurm.conf by node; raise OutsideError if the file cannot be read."""
    with outside(settings.conf_path):
        return node_weights(read_conf(Path(settings.conf_path)))


def release(
    client: SlurmClient, settings: SlurmSettings, memory: OriginalWeights, acts: AuditReporter, why: str
) -> list[str]:
    """Restore the original Weight of every recorded node; return the nodes that were changed.

    On failure, raise SlurmError or OutsideError and keep the record.
    """
    names = put_back(client, memory, client.nodes(), written_weights(settings))
    weightmemory.write(weightmemory.path_of(settings), replace(memory, nodes={}), settings.slurm_user_uid)
    acts.add(
        "node weights restored",
        _named(memory.nodes),
        why,
        old="slurm-gpuctld's",
        new=_weights_text({name: one.site for name, one in memory.nodes.items()}),
        evidence={"nodes": compress(memory.nodes), "set": compress(names)},
    )
    return names


def put_back(
    client: SlurmClient, memory: OriginalWeights, nodes: Sequence[SlurmNode], written: Mapping[str, int]
) -> list[str]:
    """Restore the original Weight of nodes whose Weight was not set by hand; return the changed nodes."""
    now = {node.name: node.weight for node in nodes if node.name in memory.nodes}
    known = as_known(memory, now, written)
    ours = {name: one.site for name, one in known.items() if now[name] in one.ours}
    names: list[str] = []
    for weight, some in changes(ours, now).items():
        client.set_weight(some, weight)
        names += some
    return names


def _named(names: Iterable[str]) -> str:
    """Return a hostlist, or the number of nodes if the hostlist is long."""
    names = list(names)
    text = compress(names)
    return text if len(text) <= _MOST_NAMED else f"{len(names)} nodes"


def _weights_text(weights: Mapping[str, int]) -> str:
    """Return a text such as "1 of n[1-2], 10 of n3"."""
    by_weight: dict[int, list[str]] = {}
    for name, weight in weights.items():
        by_weight.setdefault(weight, []).append(name)
    return ", ".join(f"{weight} of {_named(names)}" for weight, names in sorted(by_weight.items()))
