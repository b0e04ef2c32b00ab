"""Parse the output of `scontrol show config`, `show node -d`, `show job -d` and `ping`.

scontrol escapes nothing: a job name, comment or path can contain spaces, newlines and even a whole forged
job. The name is therefore removed from the text of a job first; squeue prints it with a delimiter that users
cannot guess. In the rest of the text, the first occurrence of a key is the real one, because paths and
comments come after all other keys. AdminComment is also read from squeue. Times are epoch seconds
(SLURM_TIME_FORMAT=%s).
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import QueuedJob, SlurmctldHost, SlurmNode, SlurmSettings
from slurm_gpu.slurm.tres import (
    GPU_GRES,
    Gres,
    amount,
    gpus_by_type,
    index_by_name,
    parse_gres,
    parse_job_tres,
    parse_tres,
    total,
)
from slurm_gpu.text.hostlist import count_tasks, expand
from slurm_gpu.text.units import parse_slurm_time

_CONFIG_LINE = re.compile(r"(?P<key>[A-Za-z][\w\[\]/]*)\s*= ?(?P<value>.*)")
_USER = re.compile(r"(?P<name>.*)\((?P<uid>\d+)\)")
_JOB_HEAD = re.compile(r"^JobId=(?P<id>\d+) ", re.MULTILINE)
_REASON_AUTHOR = re.compile(r" \[[^\]]*@\w+\]$")
_KEY_VALUE = re.compile(r"(?<!\S)([A-Za-z][^\s=]*)=(\S*)")
_ABSENT = ("(null)", "N/A", "n/a")
_NODE_HEAD = re.compile(r"^NodeName=", re.MULTILINE)
_PINGED = re.compile(r"Slurmctld\([^)]*\) at (?P<name>\S+) is (?P<how>UP|DOWN)")
# Slurm's NO_VAL, printed for an array that was cancelled before any task was split off.
_NO_TASK = "4294967294"

_SPLIT_TASK = re.compile(r"\d+")
_JOB_GRES = re.compile(r"^ +Nodes=(?P<nodes>\S+) CPU_IDs=.*? GRES=(?P<gres>\S*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class JobTexts:
    """A job's text fields, read from squeue because users could forge them in scontrol's output."""

    name: str
    admin_comment: str


def parse_config(text: str) -> SlurmSettings:
    """Parse the output of `scontrol show config`. If a key occurs twice, the first one counts."""
    raw: dict[str, str] = {}
    for line in text.splitlines():
        if match := _CONFIG_LINE.fullmatch(line):
            raw.setdefault(match["key"], match["value"].strip())
    try:
        user = _USER.fullmatch(raw["SlurmUser"])
        return SlurmSettings(
            cluster=raw["ClusterName"].lower(),
            version=raw["SLURM_VERSION"],
            slurm_user=user["name"] if user else raw["SlurmUser"],
            slurm_user_uid=int(user["uid"]) if user else 0,
            conf_path=raw["SLURM_CONF"],
            raw=raw,
        )
    except KeyError as error:
        raise SlurmError(f"scontrol show config printed no {error.args[0]}") from None


def parse_ping(text: str) -> list[SlurmctldHost]:
    """Return the hosts in the output of `scontrol ping`, the primary first, by their short names."""
    return [
        SlurmctldHost(match["name"].partition(".")[0], match["how"] == "UP")
        for match in _PINGED.finditer(text)
    ]


def parse_nodes(text: str) -> list[SlurmNode]:
    """Return the nodes in the output of `scontrol show node -d`, in the same order."""
    starts = [match.start() for match in _NODE_HEAD.finditer(text)]
    return [_node(_Fields(text[a:b])) for a, b in itertools.pairwise([*starts, len(text)])]


class JobReader:
    """Parses the texts of jobs, and reuses the results of unchanged ones."""

    def __init__(self) -> None:
        # Store hashes, because the texts of a long queue would take 100 MB. Python salts its hashes.
        self._read: dict[int, tuple[int, JobTexts, QueuedJob]] = {}

    def parse_jobs(self, text: str, labels: Mapping[int, JobTexts]) -> tuple[list[QueuedJob], set[int]]:
        """Return the result of the function parse_jobs, and drop jobs that no longer exist from the cache."""
        before, now = self._read, dict[int, tuple[int, JobTexts, QueuedJob]]()

        def read(job_id: int, label: JobTexts, chunk: str) -> QueuedJob:
            # Only RunTime changes while a job runs, and no caller needs it.
            head, _, rest = chunk.partition("\n   RunTime=")
            digest = hash(head + rest[rest.find(" ") :])
            last = before.get(job_id)
            if last is None or last[:2] != (digest, label):
                last = digest, label, _job(job_id, label, chunk)
            now[job_id] = last
            return last[2]

        found = parse_jobs(text, labels, read)
        self._read = now
        return found


def parse_jobs(
    text: str, labels: Mapping[int, JobTexts], read: Callable[[int, JobTexts, str], QueuedJob] | None = None
) -> tuple[list[QueuedJob], set[int]]:
    """Return the jobs in the output of `scontrol show job -d`, and the ids of uncertain ones.

    `labels` contains the texts of all jobs by raw ID. A job is uncertain if its text occurs twice or lacks
    its name: the job has changed, or a user forges jobs. The caller reads such a job individually. `read`
    parses the text of one job without its name.
    """
    read = _job if read is None else read
    heads = [match for match in _JOB_HEAD.finditer(text) if int(match["id"]) in labels]
    jobs: dict[int, QueuedJob] = {}
    uncertain: set[int] = set()
    starts = [match.start() for match in heads]
    for head, (start, end) in zip(heads, itertools.pairwise([*starts, len(text)]), strict=True):
        job_id = int(head["id"])
        chunk = _without_name(text[start:end], labels[job_id].name)
        if job_id in jobs or chunk is None:
            uncertain.add(job_id)
        else:
            jobs[job_id] = read(job_id, labels[job_id], chunk)
    return [job for job_id, job in jobs.items() if job_id not in uncertain], uncertain


def parse_single_job(text: str, job_id: int, label: JobTexts) -> QueuedJob | None:
    """Return the first job with this id in the output of `scontrol show job -d ID`, or None."""
    for head in _JOB_HEAD.finditer(text):
        if int(head["id"]) == job_id:
            chunk = text[head.start() :]
            rest = _without_name(chunk, label.name)
            return _job(job_id, label, chunk if rest is None else rest)
    return None


class _Fields:
    """The key=value text of one record. The first occurrence of a key counts."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._words: dict[str, str] = dict(reversed(_KEY_VALUE.findall(text)))

    def word(self, key: str) -> str:
        """Return the value up to the next space; "" if the key is absent or (null)."""
        value = self._words.get(key, "")
        return "" if value in _ABSENT else value

    def line(self, key: str) -> str:
        """Return the value up to the end of the line."""
        match = re.search(rf"^ +{re.escape(key)}=(.*?) ?$", self.text, re.MULTILINE)
        return "" if match is None or match[1] == "(null)" else match[1]

    def number(self, key: str) -> int | None:
        """Return a whole number, or the lower end of a range "2-4"; None if it is absent."""
        match = re.match(r"\d+", self.word(key))
        return int(match[0]) if match else None

    def upper_end(self, key: str) -> int | None:
        """Return the upper end of a range "2-4"; None for any other text."""
        match = re.fullmatch(r"\d+-(\d+)", self.word(key))
        return int(match[1]) if match else None

    def required(self, key: str) -> int:
        number = self.number(key)
        if number is None:
            raise SlurmError(f"scontrol printed no {key} in {self.text[:60].splitlines()[0]!r}")
        return number

    def epoch(self, key: str) -> int | None:
        """Return a time; None for Unknown and None."""
        word = self.word(key)
        return int(word) if word.isdigit() and word != "0" else None


def _without_name(chunk: str, name: str) -> str | None:
    start = chunk.find(" JobName=")
    written = f" JobName={name}\n"
    return chunk[:start] + chunk[start + len(written) - 1 :] if chunk.startswith(written, start) else None


def _node(fields: _Fields) -> SlurmNode:
    name = fields.word("NodeName")
    try:
        used = parse_gres(fields.word("GresUsed"))
        gpus = parse_gres(fields.word("Gres"))
        tracked, allocated = parse_tres(fields.word("CfgTRES")), parse_tres(fields.word("AllocTRES"))
    except ValueError as error:
        raise SlurmError(f"node {name}: {error}") from None
    kinds = gpus_by_type(gpus)
    return SlurmNode(
        name=name,
        address=fields.word("NodeAddr"),
        state=fields.word("State").lower().replace("*", "+not_responding"),
        reason=_REASON_AUTHOR.sub("", fields.line("Reason")) or None,
        cpus=fields.required("CPUTot"),
        cpus_allocated=fields.required("CPUAlloc"),
        memory_mib=fields.required("RealMemory"),
        memory_allocated_mib=fields.required("AllocMem"),
        gpus=kinds,
        gpus_allocated=_gpus_allocated(kinds, gpus_by_type(used), allocated),
        shards=total(gpus, "shard"),
        shards_allocated=_shares_allocated("shard", used, tracked, allocated),
        features=_list(fields.word("ActiveFeatures")),
        partitions=_list(fields.word("Partitions")),
        host=fields.word("NodeHostName"),
        weight=fields.required("Weight"),
        mps=total(gpus, "mps"),
        mps_allocated=_shares_allocated("mps", used, tracked, allocated),
        cpus_effective=fields.number("CPUEfctv"),
        sockets=fields.number("Sockets"),
        cores=(fields.number("Sockets") or 0) * (fields.number("CoresPerSocket") or 0) or None,
        # If only types are tracked, and not all of them, CfgTRES has fewer GPUs than the node.
        unaccounted=[name for name in GPU_GRES if amount(tracked, name) < total(gpus, name)],
    )


def _shares_allocated(
    name: str, used: Sequence[Gres], tracked: Mapping[str, float], allocated: Mapping[str, float]
) -> int:
    """Return the shards, or the MPS, in use on a node.

    In 22.05, GresUsed counts the GPUs with allocated shards rather than the shards. If AllocTRES contains
    shards, their number is correct.
    """
    return int(amount(allocated, name)) if amount(tracked, name) else total(used, name)


def _gpus_allocated(
    kinds: Mapping[str, int], used: Mapping[str, int], allocated: Mapping[str, float]
) -> Mapping[str, int]:
    """Return the allocated GPUs by type.

    GresUsed of a node that is not up yet, such as a cloud node, is 0 even if some of its GPUs are allocated
    to jobs.
    """
    by_type = {kind: used.get(kind, 0) for kind in kinds}
    n_allocated = int(amount(allocated, "gpu"))
    if sum(by_type.values()) >= n_allocated:
        return by_type
    if len(by_type) == 1:
        return dict.fromkeys(by_type, n_allocated)
    return {kind: max(n, int(allocated.get(f"gres/gpu:{kind}", 0))) for kind, n in by_type.items()}


def _job(job_id: int, label: JobTexts, text: str) -> QueuedJob:
    fields = _Fields(text)
    user = _USER.fullmatch(fields.word("UserId"))
    if user is None:
        raise SlurmError(f"job {job_id}: scontrol printed no UserId")
    state = fields.word("JobState").partition("+")[0]
    task = fields.word("ArrayTaskId")
    if task == _NO_TASK:
        task = ""
    array_job_id, restarts = fields.number("ArrayJobId"), fields.number("Restarts")
    # From Command= on, the text contains values that users can choose.
    before_texts = fields.text.partition("\n   Command=")[0]
    try:
        # Slurm 22.05 prints a single TRES=: the allocation if there is one, otherwise the request. Later
        # versions print ReqTRES= and AllocTRES=.
        single = parse_job_tres(fields.word("TRES"))
        req_tres, alloc_tres = fields.word("ReqTRES"), fields.word("AllocTRES")
        requested = parse_job_tres(req_tres) if req_tres else single
        nodes = expand(fields.word("NodeList"))
        allocated = parse_job_tres(alloc_tres) if req_tres or alloc_tres else single if nodes else {}
        return QueuedJob(
            job_id=job_id,
            array_job_id=array_job_id,
            array_task=task or None,
            n_tasks=1 if not task or _SPLIT_TASK.fullmatch(task) else count_tasks(task),
            het_job_id=fields.number("HetJobId"),
            name=label.name,
            user=user["name"],
            uid=int(user["uid"]),
            account=fields.word("Account"),
            qos=fields.word("QOS"),
            partition=fields.word("Partition"),
            state=state,
            reason=fields.word("Reason"),
            restarts=0 if restarts is None else restarts,
            submit_s=fields.epoch("SubmitTime"),
            eligible_s=fields.epoch("EligibleTime"),
            start_s=fields.epoch("StartTime"),
            end_s=fields.epoch("EndTime"),
            time_limit_s=parse_time_limit(fields.word("TimeLimit")),
            n_nodes=fields.required("NumNodes"),
            nodes=nodes,
            # After the start of a job, Slurm 22.05 prints the allocation instead of the request.
            tres_requested=requested if req_tres else _with_layout(requested, before_texts),
            tres_allocated=_with_layout(allocated, before_texts),
            gpu_index=dict(_gpu_index(before_texts)),
            gres_per_node=fields.word("TresPerNode") or fields.word("TresPerJob"),
            features=fields.word("Features"),
            admin_comment=label.admin_comment,
            most_nodes=fields.upper_end("NumNodes"),
            tres_per_node=fields.word("TresPerNode"),
            gres_per_task=fields.word("TresPerTask") or fields.word("TresPerSocket"),
            het_offset=fields.number("HetJobOffset"),
            # Test for the key first, since few jobs are resized and every job is parsed every two seconds.
            resized_s=_Fields(before_texts).epoch("ResizeTime") if "ResizeTime=" in before_texts else None,
            priority=fields.number("Priority"),
            dependency=fields.word("Dependency"),
        )
    except ValueError as error:
        raise SlurmError(f"job {job_id}: {error}") from None


def parse_time_limit(text: str) -> int | None:
    """Return the seconds of a time limit that Slurm prints; None for UNLIMITED, Partition_Limit and ""."""
    return int(parse_slurm_time(text)) if text[:1].isdigit() else None


def _gpu_index(text: str) -> Iterator[tuple[str, dict[str, list[int]]]]:
    for match in _JOB_GRES.finditer(text):
        if index := index_by_name(parse_gres(match["gres"])):
            for node in expand(match["nodes"]):
                yield node, {name: list(positions) for name, positions in index.items()}


def _with_layout(tres: Mapping[str, float], text: str) -> Mapping[str, float]:
    """Add the GPUs on the job's nodes to a total that excludes GPUs because of AccountingStorageTRES."""
    on_nodes = Counter[str]()
    for match in _JOB_GRES.finditer(text):
        n_nodes = len(expand(match["nodes"]))
        for entry in parse_gres(match["gres"]):
            on_nodes[entry.name] += entry.count * n_nodes
    names = [name for name in GPU_GRES if on_nodes[name] and not amount(tres, name)]
    lacking = {f"gres/{name}": float(on_nodes[name]) for name in names}
    return {**tres, **lacking} if lacking else tres


def _list(text: str) -> list[str]:
    return text.split(",") if text else []
