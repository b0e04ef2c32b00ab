"""With `colocation:` in policy.yaml, job descriptions are changed to share a GPU, and users get messages."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.controller.snapshot.share_table import ShareTable
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.installed import policy_of
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, ScriptDecision
from slurm_gpu.policy.pages.page import make_page
from slurm_gpu.policy.pages.policy_json import to_json
from slurm_gpu.policy.pages.text import render_text

from .checking import check, mistakes
from .model import Request
from .render import PARTITIONS, description, record
from .strategies import every_request
from .users import UIDS, Directory

POLICY = """\
version: 1
groups:
  vision: {accounts: [vision]}
  course: {partitions: [long]}
colocation: {mode: enforce, allowed_groups: [vision], required_groups: [course], max_wait: 2m,
  why: "Two small ones fit one GPU."}
"""
NOW_S = 1_800_000_000
SHARES = {"resnet50": 2, "alice/train": 1, "bob/": 3, "huge": 4, "bob/train": 2}
ALICE, BOB = UIDS["alice"], UIDS["bob"]
ONE = Request(uid=ALICE, account="vision", per_job=1)
KINDS = {"gpu": frozenset({"a100"}), "long": frozenset({"a100", "v100"})}


def compiled(text: str, directory: Path, **facts: object) -> dict[str, Plain]:
    source = parse_yaml(text, "p.yaml")
    policy = check_policy(source)
    names = resolve_names(policy, source, Directory())
    known = SiteFacts(
        n_gpus=16,
        shards_per_gpu=4,
        run_directory=directory,
        partition_gpu_types=KINDS,
        default_mib={"per_gpu": 16384, "per_cpu": 1024},
    )
    return compile_policy(policy, names, replace(known, **facts))  # type: ignore[arg-type]


class Site:
    """A script and the snapshot of slurm-gpuctld."""

    def __init__(self, directory: Path, text: str = POLICY, lua: str = "5.1", **facts: object) -> None:
        table = compiled(text, directory, **facts)
        self.snapshot, self.log = directory / "snapshot.txt", directory / "decisions.log"
        self.log.write_text("")
        self.groups = str(table["groups_id"])
        self.script = PolicyScript(build_bundle(table), lua=lua, writes=True, now=lambda: NOW_S)
        self.write_snapshot(ShareTable(4, SHARES))

    def write_snapshot(self, shares: ShareTable | None) -> None:
        lines = "".join(f"{line}\n" for line in (shares.lines() if shares else ()))
        self.snapshot.write_text(f"slurm-gpu-snapshot 1 1 {NOW_S}\ngroups {self.groups}\n{lines}end 1\n")

    def submit(self, job: Request = ONE, **fields: object) -> ScriptDecision:
        asked = description(job, ":") | {"comment": "share", "name": "train", **fields}
        return self.script.submit(asked, PARTITIONS)

    @property
    def logged(self) -> str | None:
        """Return the sharing field of the last decision."""
        match = re.search(r" share=(\S+)", self.log.read_text().splitlines()[-1])
        return match and match[1]


@pytest.fixture(params=LUA_VERSIONS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path, lua=request.param)


def test_a_job_that_asks_to_share_gets_shards_and_waits_at_most_max_wait(site: Site) -> None:
    verdict = site.submit()
    assert verdict.accepted
    wanted = {"tres_per_node": "gres:shard:1", "tres_per_job": None, "begin_time": NOW_S + 120}
    assert {field: verdict.desc.get(field) for field in wanted} == wanted
    assert re.match(r"slurm-gpu/1 t=\w+ c=1/4:alice/train", str(verdict.desc["admin_comment"]))
    assert site.logged == "enforce:1/4:alice/train"
    assert " ".join(" ".join(verdict.messages).split()) == (
        "This job shares a GPU and gets 1 of the 4 parts: Two small ones fit one GPU. "
        "It starts next to suitable co-runners, or after 120 s on any GPU with enough free parts."
    )


def test_a_sharing_job_keeps_the_memory_of_the_default_per_gpu(site: Site) -> None:
    assert site.submit().desc["min_mem_per_node"] == 16384
    assert site.submit(replace(ONE, mib_per_node=5000)).desc["min_mem_per_node"] == 5000
    assert site.submit(replace(ONE, mib_per_cpu=2000)).desc.get("min_mem_per_node") is None


def test_a_name_in_the_comment_identifies_the_application(site: Site) -> None:
    assert site.submit(comment="share=resnet50 the small one").desc["tres_per_node"] == "gres:shard:2"
    assert site.logged == "enforce:2/4:resnet50"


def test_an_empty_name_in_the_comment_is_ignored(site: Site) -> None:
    assert site.submit(comment="share=").desc["tres_per_node"] == "gres:shard:1"
    assert site.logged == "enforce:1/4:alice/train"


def test_special_characters_in_names_are_quoted(site: Site) -> None:
    verdict = site.submit(name="my job\nend 1 ü")
    assert site.logged == "enforce:-:unknown"
    assert "c=-:alice/my%20job%0Aend%201%20%C3%BC" in str(verdict.desc["admin_comment"])


def test_an_unknown_application_keeps_its_gpu_and_is_marked_for_learning(site: Site) -> None:
    verdict = site.submit(name="new")
    assert not rewritten(verdict)
    assert " c=-:alice/new" in str(verdict.desc["admin_comment"])
    assert "the GPU use of similar jobs is not known yet" in " ".join(verdict.messages)


@pytest.mark.parametrize("comment", [None, "", "sharepoint", "please share", "unshared"])
def test_a_job_that_does_not_ask_to_share_keeps_its_gpu_without_a_message(
    site: Site, comment: str | None
) -> None:
    verdict = site.submit(comment=comment)
    assert (verdict.messages, site.logged, rewritten(verdict)) == ((), None, False)


def test_jobs_of_required_groups_share_without_asking(site: Site) -> None:
    verdict = site.submit(Request(uid=BOB, account="nlp", partition="long", per_job=1), comment=None)
    assert verdict.desc["tres_per_node"] == "gres:shard:2"


def test_a_job_of_another_group_keeps_its_gpu(site: Site) -> None:
    verdict = site.submit(Request(uid=BOB, account="nlp", per_job=1))
    assert (site.logged, rewritten(verdict)) == ("enforce:-:may", False)


UNSUPPORTED = {
    "array": (replace(ONE, array_tasks=5), {}),
    "interactive": (replace(ONE, interactive=True), {}),
    "het": (ONE, {"het_job_offset": 0}),
    "gpus": (replace(ONE, per_job=2), {}),
    "nodes": (replace(ONE, nodes=1, most_nodes=2), {}),
    "type": (replace(ONE, partition="long", gpu_type="v100"), {}),
    "per-gpu": (replace(ONE, cpus_per_gpu=4), {}),
    "bind": (ONE, {"tres_bind": "gpu:closest"}),
    "place": (ONE, {"features": "a100"}),
    "begin": (ONE, {"begin_time": NOW_S + 5}),
    "dependency": (ONE, {"dependency": "afterok:3"}),
    "requeue": (ONE, {"requeue": 0}),
    "large": (ONE, {"comment": "share=huge"}),
}


@pytest.mark.parametrize("why", UNSUPPORTED)
def test_jobs_that_slurm_cannot_share_keep_their_gpu_with_a_message(site: Site, why: str) -> None:
    job, fields = UNSUPPORTED[why]
    verdict = site.submit(job, **fields)
    assert (verdict.accepted, site.logged, rewritten(verdict)) == (True, f"enforce:-:{why}", False)
    assert "does not share its GPU: " in " ".join(verdict.messages)


@pytest.mark.parametrize(
    ("requeue", "by_default", "shares"),
    [(65534, True, True), (65534, False, False), (1, False, True), (0, True, False), (None, True, True)],
)
def test_only_jobs_that_can_be_requeued_share(
    tmp_path: Path, requeue: int | None, by_default: bool, shares: bool
) -> None:
    site = Site(tmp_path, requeues=by_default)
    assert rewritten(site.submit(requeue=requeue)) == shares


def test_without_share_counts_in_the_snapshot_jobs_keep_their_gpu(site: Site) -> None:
    site.write_snapshot(None)
    assert (rewritten(site.submit()), site.logged) == (False, "enforce:-:off")
    site.snapshot.unlink()
    assert (rewritten(site.submit()), site.logged) == (False, "enforce:-:off")


@pytest.mark.parametrize(("mode", "has_messages"), [("observe", False), ("advise", True)])
def test_modes_observe_and_advise_change_nothing(tmp_path: Path, mode: str, has_messages: bool) -> None:
    site = Site(tmp_path, POLICY.replace("mode: enforce", f"mode: {mode}"))
    verdict = site.submit()
    assert (rewritten(verdict), site.logged) == (False, f"{mode}:1/4:alice/train")
    assert bool(verdict.messages) == has_messages
    assert " c=-:alice/train" in str(verdict.desc["admin_comment"])  # the job is marked for learning


def test_resources_per_gpu_of_a_bundle_are_assigned_per_task(tmp_path: Path) -> None:
    site = Site(tmp_path, POLICY + "bundles: {train: {gpus: 1, cpus: 8, memory: 64G, mode: fit}}\n")
    desc = site.submit().desc
    assert (desc["cpus_per_task"], desc["min_cpus"], desc["min_mem_per_node"]) == (8, 8, 65536)
    assert not desc.get("cpus_per_tres")
    assert not desc.get("mem_per_tres")


def test_an_update_does_not_change_sharing(site: Site) -> None:
    verdict = site.script.modify(
        dict.fromkeys(description(ONE)) | {"user_id": ALICE, "comment": "share"}, record(7, ONE), PARTITIONS
    )
    assert (verdict.accepted, verdict.desc.get("tres_per_node")) == (True, None)


# An independent model, written from docs/policy.md and docs/contracts.md.
def shards_of(job: Request, comment: str | None) -> int | None:
    """Return the shards of a job, or None if it keeps its request."""
    asks = comment is not None and (comment == "share" or comment.startswith("share="))
    must = "long" in job.partition.split(",")
    if not (asks and job.account == "vision") and not must:
        return None
    forms = [one for one in (job.per_job, job.per_node, job.per_task, job.per_socket) if one is not None]
    other = job.shards_per_node or job.mps_per_node or job.per_task or job.per_socket
    if forms != [1] or other or job.asked_mgpu != 1000 or job.exclusive or job.interactive:
        return None
    if job.array_tasks is not None or job.counted_nodes != 1 or (job.most_nodes or 1) != 1:
        return None
    if job.cpus_per_gpu or job.mib_per_gpu or job.tasks_per_gpu:
        return None
    kind = "a100" if job.per_node is not None and job.gpu_type is None else job.gpu_type
    if kind is not None and any(KINDS[name] != {kind} for name in job.partition.split(",")):
        return None
    key = comment.removeprefix("share=") if asks and comment != "share" and comment else None
    shards = SHARES.get(key or f"{ {ALICE: 'alice', BOB: 'bob'}.get(job.uid) }/train")
    return shards if shards is not None and shards <= 3 else None


@settings(deadline=None)
@given(
    job=every_request(),
    comment=st.sampled_from([None, "share", "share=", "share=resnet50", "share=huge", "fine"]),
)
def test_the_script_and_the_model_agree(job: Request, comment: str | None) -> None:
    site = _SITES[0]
    verdict = site.submit(job, comment=comment)
    if not verdict.accepted:  # refused by a rule that does not concern sharing
        return
    shards = shards_of(job, comment)
    assert verdict.desc.get("tres_per_node") == (
        description(job, ":").get("tres_per_node") if shards is None else f"gres:shard:{shards}"
    )


_SITES: list[Site] = []


@pytest.fixture(autouse=True, scope="module")
def _create_site(tmp_path_factory: pytest.TempPathFactory) -> None:
    _SITES[:] = [Site(tmp_path_factory.mktemp("share"))]


def rewritten(verdict: ScriptDecision) -> bool:
    """Return whether the job's GPU became shards, or its start was delayed."""
    return str(verdict.desc.get("tres_per_node") or "").startswith("gres:shard") or (
        verdict.desc.get("begin_time") == NOW_S + 120
    )


class TestFile:
    def test_colocation_is_read_shown_and_compiled(self, tmp_path: Path) -> None:
        text = POLICY.replace("max_wait: 2m", "goal: considerate")
        policy = check_policy(parse_yaml(text, "p.yaml"))
        settings_ = to_json(policy)["colocation"]
        assert (
            settings_["goal"],
            settings_["slowdown"],
            settings_["jobs_per_gpu"],
            settings_["max_wait_s"],
        ) == (
            "considerate",
            1.1,
            2,
            300,
        )
        page = render_text(make_page(policy))
        assert (
            "Co-runners are chosen so that no job is slowed down by more than a factor of 1.1."
            in " ".join(page.split())
        )
        installed = policy_of(build_bundle(compiled(text, tmp_path))).colocation
        assert installed is not None
        assert (installed.mode, installed.slowdown, installed.max_wait_s) == ("enforce", 1.1, 300)
        assert json.dumps(settings_)

    def test_the_planner_and_its_model_are_read(self, tmp_path: Path) -> None:
        table = compiled("version: 1\ncolocation: {why: x}\n", tmp_path)
        installed = policy_of(build_bundle(table)).colocation
        assert installed is not None
        assert (installed.planner, installed.model) == ("annealing", None)
        text = "version: 1\ncolocation: {why: x, planner: dqngpu, model: /m.npz}\n"
        installed = policy_of(build_bundle(compiled(text, tmp_path))).colocation
        assert installed is not None
        assert (installed.planner, installed.model) == ("dqngpu", Path("/m.npz"))
        assert "The planner is dqngpu." in render_text(make_page(check(text)))

    @pytest.mark.parametrize(
        ("line", "complaint"),
        [
            ("{allowed_groups: [vision]}", "colocation lacks why"),
            (
                "{why: x, allowed_groups: [visoin]}",
                "allowed_groups: 'visoin' is not a group; did you mean vision",
            ),
            ("{why: x, slowdown: 1.2}", "slowdown: it applies only with goal: considerate"),
            ("{why: x, goal: considerate, slowdown: 0.9}", "slowdown: 0.9 must be a number from 1 to 10"),
            ("{why: x, jobs_per_gpu: 2.5}", "jobs_per_gpu: 2.5 must be a whole number from 2 to 8"),
            ("{why: x, max_wait: 5}", "max_wait: 5 must be a duration from 10s to 1h, such as 5m"),
            ("{why: x, max_wait: 2h}", "max_wait: '2h' must be a duration from 10s to 1h"),
            ("{why: x, max_gpu_fraction: 75}", "max_gpu_fraction: 75 must be a number from 0 to 1"),
            ("{why: x, planner: annealed}", "planner: 'annealed' is not valid; did you mean annealing?"),
            (
                "{why: x, planner: [greedy]}",
                "planner: ['greedy'] is not valid; did you mean",
            ),
            ("{why: x, planner: dqngpu}", "planner: dqngpu requires model:, a file that"),
            ("{why: x, model: /m.npz}", "model: planner annealing does not use a model; leave it out"),
            ("{why: x, planner: dqngpu, model: m.npz}", "model: 'm.npz' must be an absolute path"),
            ("{why: x, mode: on}", "mode"),
            ("{why: x, who: y}", "who"),
        ],
    )
    def test_mistakes_in_colocation_are_named(self, line: str, complaint: str) -> None:
        text = f"version: 1\ngroups: {{vision: {{accounts: [vision]}}}}\ncolocation: {line}\n"
        assert any(complaint in mistake for mistake in mistakes(text))

    def test_the_default_mode_is_observe(self) -> None:
        policy = check("version: 1\ncolocation: {why: Small ones.}\n")
        assert policy.colocation is not None
        assert policy.colocation.mode == "observe"
