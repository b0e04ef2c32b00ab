"""slurm-gpuctld reports only observed jobs, ends only jobs after warnings, and repeats no action."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.controller.notices import status
from slurm_gpu.errors import OutsideError
from slurm_gpu.notices import ledger as ledgers
from slurm_gpu.policy.lua.installed import GroupInForce
from slurm_gpu.wire import Live, LiveDevice
from slurm_gpu.wire.answers.running import RecentXid
from tests.examples import examples

from .world import RULE, SETTINGS, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def ledger_of(world: World) -> ledgers.Ledger:
    return ledgers.read(world.directory / "slurm-gpu" / "notices.json")


def test_an_idle_job_is_warned_twice_then_ended_then_reported(world: World) -> None:
    world.hold(17)
    world.hold(18, user="bob", util_pct=60.0, used=True)
    world.run_for(130)
    assert world.reported() == [(30, "warning"), (60, "warning"), (120, "ended")]
    assert world.ended() == [(120, ["scancel", "17"])]
    assert world.reported("bob") == []
    acts = sorted(world.acts.values(), key=lambda one: one.at_s)
    assert [one.action for one in acts] == ["idle job warned", "idle job warned", "idle job cancelled"]
    assert acts[2].subject == "job 17 of alice"
    assert acts[2].why == "Others wait."
    assert len(acts[2].evidence["warned_s"]) == 2


def test_the_texts_contain_the_action_its_time_and_reason(world: World) -> None:
    world.hold(17)
    world.run_for(130)
    warning, _, ended = (one.text.body for _, one in world.sent)
    assert "They will be cancelled at 2026-11-21 14:00 UTC or later, unless" in warning
    assert "Reason: Others wait." in warning
    assert "They were cancelled at 2026-11-21 14:00 UTC." in ended


def test_the_last_task_of_an_array_is_ended_by_its_own_name(world: World) -> None:
    world.hold(17, id="17_9")
    world.hold(18, id="17_1", util_pct=50.0, used=True)
    world.run_for(121)
    assert world.ended() == [(120, ["scancel", "17_9"])]


def test_action_hold_requeues_and_holds(world: World) -> None:
    world.rule = replace(RULE, action="hold")
    world.hold(17)
    world.run_for(121)
    assert world.ended() == [(120, ["scontrol", "requeuehold", "17"])]
    assert "requeued and held" in world.sent[0][1].text.body
    assert {one.action for one in world.acts.values()} == {"idle job warned", "idle job held"}


def test_without_the_rule_it_is_a_notice_and_no_threat(world: World) -> None:
    world.rule = None
    world.hold(17)
    world.run_for(180)
    assert world.reported() == [(30, "never_used")]
    assert world.commands == []


@pytest.mark.parametrize(("mode", "kinds"), [("observe", ["never_used"]), ("advise", ["warning", "warning"])])
def test_on_trial_nothing_is_ended(world: World, mode: str, kinds: list[str]) -> None:
    world.rule = replace(RULE, mode=mode)
    world.hold(17)
    world.run_for(180)
    assert [kind for _, kind in world.reported()] == kinds
    assert world.commands == []
    assert all(
        "Nothing happens to them for now." in one.text.body for _, one in world.sent if one.kind == "warning"
    )


def test_by_default_nothing_is_sent_or_ended_and_the_status_shows_what_would_be(world: World) -> None:
    world.settings.write_text(SETTINGS.replace("mode: send", "mode: observe"))
    world.hold(17)
    world.run_for(160)
    assert (world.sent, world.commands, world.acts) == ([], [], {})
    path = world.directory / status.FILE_NAME
    seen = status.read(path)
    assert seen is not None
    assert [(one.user, one.kind, one.outcome.partition(";")[0]) for one in seen.outlook] == [
        ("alice", "warning", "would be sent now")
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_notices_yaml_nothing_is_polled_sent_or_ended(world: World) -> None:
    world.settings.unlink()
    world.hold(17)
    world.run_for(160)
    assert (world.sent, world.commands) == ([], [])
    assert not (world.directory / "slurm-gpu").exists()


def test_next_to_an_inactive_slurmctld_nothing_is_done(world: World) -> None:
    world.in_charge = False
    world.hold(17)
    world.run_for(160)
    assert (world.sent, world.commands) == ([], [])


def test_a_failover_continues_where_the_other_was(world: World) -> None:
    world.hold(17)
    world.run_for(70)
    world.start()
    world.run_for(60)
    assert world.reported() == [(30, "warning"), (60, "warning"), (120, "ended")]


@pytest.mark.parametrize(
    "unseen",
    [
        {"seen_gpus": 1},
        {"coverage": 0.9},
        {"used": None},
        {"util_pct": None},
        {"id": "17+0"},
    ],
)
def test_an_incompletely_observed_job_is_not_warned_or_ended(world: World, unseen: dict[str, object]) -> None:
    world.hold(17, **unseen)
    world.run_for(180)
    assert [kind for _, kind in world.reported() if kind != "never_used"] == []
    assert world.commands == []


def test_a_gpu_that_went_out_of_sight_at_the_last_moment_ends_nothing(world: World) -> None:
    job = world.hold(17)
    world.run_for(115)
    job.seen_gpus = 1
    world.run_for(30)
    assert world.commands == []


def test_a_job_that_used_a_gpu_once_is_reported_and_never_ended(world: World) -> None:
    job = world.hold(17, util_pct=80.0, used=True)
    world.run_for(20)
    job.util_pct = 0.0
    world.run_for(180)
    assert world.reported() == [(50, "used_then_idle")]
    assert world.commands == []


def test_a_job_that_computes_after_a_warning_is_left_alone(world: World) -> None:
    job = world.hold(17)
    world.run_for(70)
    job.util_pct, job.used = 50.0, True
    world.run_for(160)
    assert world.reported() == [(30, "warning"), (60, "warning")]
    assert world.commands == []


def test_a_suspended_job_is_warned_again(world: World) -> None:
    job = world.hold(17)
    world.run_for(70)
    job.state = "SUSPENDED"
    world.run_for(180)
    assert world.commands == []
    job.state = "RUNNING"
    world.run_for(70)
    assert world.reported() == [(30, "warning"), (60, "warning"), (280, "warning"), (310, "warning")]
    assert world.commands == []


def test_a_requeued_job_is_warned_again(world: World) -> None:
    world.settings.write_text(SETTINGS + "max_per_user_per_day: 20\n")
    world.hold(17)
    world.run_for(125)
    world.hold(17)
    world.run_for(125)
    assert [kind for _, kind in world.reported()] == ["warning", "warning", "ended"] * 2


def test_a_user_who_cannot_be_warned_loses_no_job_and_once_warned_has_the_whole_time(world: World) -> None:
    world.mail_is_down = True
    world.hold(17)
    world.run_for(50)
    world.mail_is_down = False
    world.run_for(150)
    assert [kind for _, kind in world.reported()] == ["warning", "warning", "ended"]
    (first_min, _), (second_min, _), (end_min, _) = world.reported()
    assert first_min > 50
    assert second_min >= first_min + 30
    assert end_min >= second_min + 60


def test_without_a_sent_warning_nothing_is_ended(world: World) -> None:
    world.mail_is_down = True
    world.hold(17)
    world.run_for(200)
    assert world.commands == []
    (notice,) = ledger_of(world).notices
    assert [str(one.state) for one in notice.deliveries.values()] == ["failed"]


def test_the_daily_limit_prevents_an_end_without_warning(world: World) -> None:
    world.settings.write_text(SETTINGS + "max_per_user_per_day: 1\n")
    world.hold(17)
    world.run_for(180)
    assert world.reported() == [(30, "warning")]
    assert world.commands == []


def test_exempt_users_and_groups_that_it_is_not_for_are_left_alone(world: World) -> None:
    world.settings.write_text(SETTINGS + "exempt_users: [alice]\n")
    world.rule = replace(RULE, exempt=(GroupInForce("leads", uids=frozenset({1001})),))
    world.hold(17)
    world.hold(18, user="bob")
    world.run_for(180)
    assert world.reported() == []
    assert world.reported("bob") == [(30, "never_used")]
    assert world.commands == []


def test_a_job_that_slurm_does_not_end_is_tried_a_few_times(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.refuses = True
    world.hold(17)
    world.run_for(180)
    assert [argv for _, argv in world.ended()] == [["scancel", "17"]] * 3
    assert "idle job 17 could not be ended" in caplog.text
    assert [kind for _, kind in world.reported()] == ["warning", "warning"]
    assert {one.action for one in world.acts.values()} == {"idle job warned"}


def test_after_a_kill_between_record_and_end_the_job_is_judged_again_and_reported_once(world: World) -> None:
    world.hold(17)
    world.run_for(119)
    ledger = ledger_of(world)
    ledger.ended.append(
        ledgers.End(
            run=next(iter(ledger.notices[0].runs)),
            id="17",
            user="alice",
            name="train",
            n_gpus=2.0,
            at_s=world.clock.wall(),
            how="cancel",
            since_s=world.clock.wall(),
        )
    )
    ledgers.write(world.directory / "slurm-gpu" / "notices.json", ledger, 0)
    world.start()
    world.run_for(20)
    assert len(world.ended()) == 1
    assert [kind for _, kind in world.reported()] == ["warning", "warning", "ended"]


def test_killed_between_ending_and_noting_it_the_audit_and_the_owner_learn_of_it(world: World) -> None:
    world.hold(17)
    world.run_for(119)
    ledger = ledger_of(world)
    ledger.ended.append(
        ledgers.End(
            run=next(iter(ledger.notices[0].runs)),
            id="17",
            user="alice",
            name="train",
            n_gpus=2.0,
            at_s=world.clock.wall(),
            how="cancel",
            since_s=world.clock.wall(),
        )
    )
    ledgers.write(world.directory / "slurm-gpu" / "notices.json", ledger, 0)
    world.jobs.clear()
    world.start()
    world.run_for(20)
    assert world.ended() == []
    assert [kind for _, kind in world.reported()] == ["warning", "warning", "ended"]
    assert "idle job cancelled" in {one.action for one in world.acts.values()}


def test_an_outage_of_slurm_gpudbd_judges_nothing_and_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.hold(17)
    world.run_for(40)
    world.is_down = True
    world.run_for(160)
    assert world.reported() == [(30, "warning")]
    assert world.commands == []
    assert caplog.text.count("no notices are sent and no idle jobs are ended: no answer") == 1


def test_a_damaged_ledger_is_no_empty_one(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.hold(17)
    world.run_for(40)
    (world.directory / "slurm-gpu" / "notices.json").write_text("{")
    world.start()
    world.run_for(200)
    assert world.reported() == [(30, "warning")]
    assert world.commands == []
    with pytest.raises(OutsideError):
        ledger_of(world)
    assert "cannot be read" in caplog.text


def test_an_error_in_notices_yaml_is_logged_once_and_stops_all_until_fixed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.settings.write_text("mode: sned\n")
    world.hold(17)
    world.run_for(60)
    assert caplog.text.count("mode: 'sned' is not valid; did you mean send?") == 1
    world.settings.write_text(SETTINGS)
    world.run_for(60)
    assert [kind for _, kind in world.reported()] == ["warning", "warning"]


def test_a_gpu_of_a_machine_without_slurm_is_none_of_the_job_with_the_same_number(world: World) -> None:
    world.hold(17, util_pct=90.0, used=True)
    of_slurm, idle = world.live, LiveDevice(util_pct=0.0, jobs=(17,))  # another machine's job 17
    world.live = lambda refresh: {**of_slurm(), "ws1": Live(at_s=world.clock.wall(), devices={"GPU-W": idle})}  # type: ignore[method-assign]
    world.run_for(60)
    assert world.reported() == []


def test_a_gpu_error_is_sent_at_once(world: World) -> None:
    world.hold(17, util_pct=70.0, used=True)
    world.run_for(2)
    at_s = int(world.clock.wall())
    world.xids.append(RecentXid(job_id=17, device="GPU-17-0", at_s=at_s, code=79))
    world.run_for(30)
    assert world.reported() == [(2, "xid")]


def test_shares_of_gpus_cause_no_notices(world: World) -> None:
    world.hold(17, n_gpus=0.5, seen_gpus=1)
    world.run_for(2)
    world.xids.append(RecentXid(job_id=17, device="GPU-17-0", at_s=int(world.clock.wall()), code=79))
    world.run_for(180)
    assert world.reported() == []
    assert world.commands == []


def test_the_status_is_read_unchanged(world: World) -> None:
    world.hold(17, name="x\n\x1b[2J")
    world.run_for(31)
    plain = json.loads((world.directory / status.FILE_NAME).read_text())
    seen = status.read(world.directory / status.FILE_NAME)
    assert seen is not None
    assert (plain["mode"], plain["cancels"]) == ("send", "enforce")
    assert [one.id for one in seen.outlook] == ["17"]


STEPS = st.lists(
    st.tuples(
        st.floats(1, 60),
        st.sampled_from(
            [
                "nothing",
                "used",
                "unseen GPU",
                "all seen",
                "low coverage",
                "whole coverage",
                "down",
                "back",
                "mail down",
                "mail up",
                "restart",
                "suspend",
                "resume",
                "requeued",
                "no live",
                "live",
            ]
        ),
    ),
    max_size=8,
)


@settings(max_examples=examples(10))
@given(steps=STEPS, idle_min=st.sampled_from([0, 65, 110]))
def test_no_job_is_ever_ended_unwarned_or_unobserved(
    steps: list[tuple[float, str]], idle_min: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    job = world.hold(17)
    world.run_for(idle_min)
    for minutes, event in steps:
        match event:
            case "used":
                job.util_pct, job.used = 50.0, True
            case "unseen GPU" | "all seen":
                job.seen_gpus = 1 if event == "unseen GPU" else 2
            case "low coverage" | "whole coverage":
                job.coverage = 0.5 if event == "low coverage" else 1.0
            case "down" | "back":
                world.is_down = event == "down"
            case "mail down" | "mail up":
                world.mail_is_down = event == "mail down"
            case "restart":
                world.start()
            case "suspend" | "resume":
                job.state = "SUSPENDED" if event == "suspend" else "RUNNING"
            case "no live" | "live":
                world.has_live = event == "live"
            case "requeued":
                job = world.hold(17)
        before = len(world.commands)
        world.run_for(minutes)
        if len(world.commands) > before:
            at_s, _ = world.commands[before]
            assert job.used is False
            assert (job.seen_gpus, job.coverage, job.state) == (2, 1.0, "RUNNING")
            assert not world.is_down
            warned = [
                sent_s
                for sent_s, one in world.sent
                if one.kind == "warning" and job.start_s <= sent_s <= at_s
            ]
            assert len(warned) >= 2
            assert at_s - max(warned) >= 3600 - 60
            assert at_s - job.start_s >= 7200 - 60
            break
