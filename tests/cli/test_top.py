"""`slurm-gpu top` draws every row at any size, prints once in a pipe, and updates on a terminal."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.alerts.alert import Alert, AlertKind
from slurm_gpu.cli.cluster.top_screen import Screen, StaleReason, draw
from slurm_gpu.cli.cluster.top_view import HELP, TopView
from slurm_gpu.monitor.cluster.overview import make_overview
from slurm_gpu.wire import Live, LiveDevice
from slurm_gpu.wire.answers.cluster import ClusterState
from tests.cli.conftest import CommandLine
from tests.monitor.clusters import NOW_S, cluster, holds, job, node, waiting

_ZONE = ZoneInfo("Asia/Seoul")
_ROOT = Path(__file__).resolve().parents[2]


def _small() -> ClusterState:
    return cluster(
        [
            node("n1", holds(25, 0, 1), holds(26, shared=[2])),
            node("n2", holds(27, 0, 1, 2, 3)),
            node("n3", holds(27, 0, 1, 2, 3)),
            node("n4", state="idle+drain", reason="disk is full", in_service=False, gpus={"v100": 2}),
        ],
        [
            job(25, "alice", end_s=NOW_S + 7500),
            job(26, "bob", n_gpus=0.5, end_s=None),
            job(27, "carol", state="COMPLETING", n_nodes=2),
            waiting(30, "Resources", n_gpus=8.0, start_s=NOW_S + 600),
            waiting(31, "Priority", n_tasks=10),
        ],
    )


def _live() -> dict[str, Live]:
    devices = {
        "a": LiveDevice(util_pct=100.0, mem_used_frac=0.5, jobs=(25,)),
        "b": LiveDevice(util_pct=0.0, mem_used_frac=0.1, jobs=(25,)),
        "c": LiveDevice(jobs=(26,)),
    }
    return {"n1": Live(at_s=NOW_S, devices=devices)}


def _drawn(state: ClusterState, *, alerts: list[Alert] | None = None, **given: Any) -> Screen:
    return draw(make_overview("neuron", state, _live(), [], alerts=alerts), NOW_S, _ZONE, **given)


def _plain(screen: Screen) -> list[str]:
    return [line.plain for line in screen.lines]


_AT_80_COLUMNS = """\
neuron  2026-11-18 20:06:40
a100      [|||||||||||.]              11 of 12 allocated,  1 free
v100      [xx]                         0 of  2 allocated,  0 free, 2 out
Nodes     3 mixed
          n4 idle+drain: disk is full
Waiting   11 jobs for 18 GPUs
          10 Priority: other jobs have a higher priority
           1 Resources, first in 10m00s: next in line; nothing suitable is free
Users     carol 8 · alice 2 · bob 0.5

NODE    STATE       GPU     USER            JOB  UTIL %  MEM %    FREES IN
n1      mixed       0-1     alice           25    50 █▁     30       2h05m
                    2 part  bob             26   –           –    no limit
                    3       free
n[2-3]  mixed       0-3     carol           27   –           –  completing
n4      idle+drain  0-1     out of service"""


def test_the_screen_at_80_columns() -> None:
    assert "\n".join(_plain(_drawn(_small(), width=80))) == _AT_80_COLUMNS


def test_all_lines_of_a_terminal_are_used() -> None:
    lines = _plain(_drawn(_small(), width=80, height=24))
    assert len(lines) == 24
    assert lines[-1] == "?: keys · q: quit"


def test_pending_jobs_fill_the_space_below_the_table() -> None:
    lines = _plain(_drawn(_small(), width=140, height=50))
    heading = next(place for place, line in enumerate(lines) if line.startswith("PENDING JOB"))
    assert lines[heading + 1].split()[:2] == ["30", "alice"]
    assert "next in line; nothing suitable is free" in lines[heading + 1]
    assert lines[heading + 2].split()[0] == "31"
    assert len(lines) == 50
    assert not any(line.startswith("PENDING JOB") for line in _plain(_drawn(_small(), width=80, height=15)))


def test_a_wide_terminal_shows_accounts_and_names_of_jobs() -> None:
    wide, narrow = (_plain(_drawn(_small(), width=width)) for width in (140, 119))
    assert any(line.startswith("NODE") and "ACCOUNT" in line and "NAME" in line for line in wide)
    assert not any("ACCOUNT" in line for line in narrow)


def _view(*pressed: str) -> TopView:
    view = TopView("alice")
    for key in pressed:
        view.press(key)
    return view


def _users(view: TopView) -> list[str | None]:
    overview = view.arranged(make_overview("neuron", _small(), _live(), []))
    return [None if shown.row.job is None else shown.row.job.user for shown in overview.rows]


@pytest.mark.parametrize(
    ("pressed", "users"),
    [
        ("", ["alice", "bob", None, "carol", None]),
        ("s", ["alice", "bob", "carol", None, None]),
        ("ss", ["alice", "bob", "carol", None, None]),
        ("sss", ["alice", "bob", "carol", None, None]),
        ("ssss", ["alice", "bob", None, "carol", None]),
        ("/ali\r", ["alice"]),
        ("/n4\r", [None]),
        ("/26\r", ["bob"]),
        ("/xyz\x7f\x7f\x7fn2", ["carol"]),
        ("/xyz\x1b", ["alice", "bob", None, "carol", None]),
        ("/q?sm", []),
    ],
)
def test_keys_sort_and_filter_the_rows(pressed: str, users: list[str | None]) -> None:
    assert _users(_view(*pressed)) == users


def test_a_filter_applies_to_pending_jobs() -> None:
    overview = make_overview("neuron", _small(), {}, [])
    assert [job.id for job in _view(*"/31").arranged(overview).pending] == ["31"]
    assert not _view(*"/bob").arranged(overview).pending


def test_the_foot_shows_the_choices() -> None:
    assert _view().status == ""
    assert _view(*"sm/al").status == "sorted by user · your jobs · filter: al_"
    screen = _drawn(_small(), width=80, height=24, status=_view(*"s").status)
    assert _plain(screen)[-1] == "sorted by user · ?: keys · q: quit"


def test_the_question_mark_shows_the_keys() -> None:
    assert not _view("?", "?").shows_help
    assert _view("?").shows_help
    lines = _plain(_drawn(_small(), width=100, height=40, help_lines=HELP))
    assert len(lines) == 40
    assert all(any(line.startswith(text[:60]) for line in lines) for text in HELP)


@given(st.lists(st.sampled_from([*"qs/?m abc\r\x1b\x7f", "page down", "up"]), max_size=30))
def test_any_keys_leave_a_valid_view(pressed: list[str]) -> None:
    view = _view(*pressed)
    assert len(_users(view)) <= 5
    assert view.is_typing or not view.press("x")


def test_jobs_with_alerts_are_listed_and_marked() -> None:
    alert = Alert(
        job_id=25, kind=AlertKind.PARTLY_UNUSED, devices=("b",), since_s=NOW_S - 3600.0, coverage=0.9
    )
    lines = _plain(_drawn(_small(), alerts=[alert], width=80))
    assert "! alice 25: 1 GPU never used, unlike the others, for 1h00m" in lines
    assert any(" 25! " in line for line in lines)


def test_while_slurm_gpudbd_is_unreachable_the_last_state_is_shown_with_its_age() -> None:
    stale = StaleReason(why="slurm-gpudbd at http://dbhost:6829 cannot be reached", since_s=NOW_S - 95)
    lines = _plain(_drawn(_small(), width=80, stale=stale))
    assert lines[1] == "! 1m35s old: slurm-gpudbd at http://dbhost:6829 cannot be reached"
    assert any("alice" in line for line in lines)


def test_an_old_answer_of_slurmctld_is_shown_with_its_age() -> None:
    overview = make_overview("neuron", _small(), {}, [])
    assert "last answered 5m00s ago" in draw(overview, NOW_S + 300, _ZONE).lines[0].plain


def test_control_characters_in_names_are_replaced() -> None:
    state = cluster(
        [node("n1", holds(7, 0)), node("n2", state="down", reason="\x1b[2J\x07", in_service=False)],
        [job(7, "ev\x1bil"), waiting(8, "Bad\x1b]0;x\x07")],
    )
    assert all(line.isprintable() for line in _plain(_drawn(state)))


@st.composite
def _clusters(draw: st.DrawFn) -> ClusterState:
    users = st.text("abcdefghijklmnop", min_size=1, max_size=20)
    jobs = [job(n, draw(users)) for n in range(1, 12)]
    nodes = [
        node(
            f"gpu{n:03}",
            *(holds(draw(st.integers(1, 11)), place) for place in range(draw(st.integers(0, 4)))),
        )
        for n in range(draw(st.integers(0, 30)))
    ]
    reasons = [
        "Priority",
        "Resources",
        "QOSMaxGRESPerUser",
        "SomethingNew",
        "Licenses",
        "BeginTime",
        "Dependency",
    ]
    waits = [waiting(100 + n, reason) for n, reason in enumerate(draw(st.lists(st.sampled_from(reasons))))]
    return cluster(nodes, [*jobs, *waits])


@given(_clusters(), st.integers(20, 200), st.integers(10, 60))
def test_at_any_size_lines_fit_and_the_pages_show_each_row_once(
    state: ClusterState, width: int, height: int
) -> None:
    overview = make_overview("neuron", state, {}, [])
    first, seen = 0, 0
    while True:
        screen = draw(overview, NOW_S, _ZONE, width=width, height=height, first=first)
        assert len(screen.lines) == height
        assert max(line.cell_len for line in screen.lines) <= width
        seen += screen.shown if screen.first == first else screen.first + screen.shown - first
        first = screen.first + screen.shown
        if first >= screen.rows:
            break
    assert seen == len(overview.rows)


def test_in_a_pipe_it_is_printed_once_without_colors(slurm_gpu: CommandLine) -> None:
    slurm_gpu.database.cluster_state, slurm_gpu.database.lives = _small(), _live()
    slurm_gpu.site.wall = lambda: NOW_S
    assert slurm_gpu("top") == 0
    assert "\x1b" not in slurm_gpu.out
    assert re.search(r"^n1 +mixed +a100 +0-1 +alice +25 +50 █▁ +30 +2h05m$", slurm_gpu.out, re.MULTILINE)
    assert not any(line != line.rstrip() for line in slurm_gpu.out.splitlines())


def test_json_has_a_row_for_each_node(slurm_gpu: CommandLine) -> None:
    slurm_gpu.database.cluster_state, slurm_gpu.database.lives = _small(), _live()
    slurm_gpu("top", "--json")
    answer = json.loads(slurm_gpu.out)
    assert [(row["nodes"], row["user"], row["util_pct"]) for row in answer["rows"][:2]] == [
        (["n1"], "alice", [100.0, 0.0]),
        (["n1"], "bob", [None]),
    ]
    assert [row["nodes"] for row in answer["rows"] if row["user"] == "carol"] == [["n2"], ["n3"]]
    assert answer["waiting"][0] == {
        "reason": "Priority",
        "meaning": "other jobs have a higher priority",
        "jobs": 10,
        "gpus": 10,
        "next_start_s": None,
    }
    assert answer["attention"] is None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--partition", "gpus"), "no node is in this partition; the partitions are gpu"),
        (("--interval", "5"), "use a duration from 1s to 1h"),
        (("--interval", "2h"), "use a duration from 1s to 1h"),
    ],
)
def test_wrong_usage(slurm_gpu: CommandLine, argv: tuple[str, ...], message: str) -> None:
    slurm_gpu.database.cluster_state = _small()
    assert slurm_gpu("top", *argv) == 2
    assert message in slurm_gpu.err


def test_an_unreachable_slurm_gpudbd_is_reported(slurm_gpu: CommandLine) -> None:
    assert slurm_gpu("top") == 3
    assert "slurm-gpudbd at http://dbhost:6829 cannot be reached" in slurm_gpu.err


_FOLLOWED = """\
import sys
from tests.cli.conftest import Database
from tests.cli.test_top import _live, _small
from slurm_gpu.cli.main import main
from slurm_gpu.cli.site import CommandSite
from pathlib import Path
database = Database()
database.cluster_state, database.lives = _small(), _live()
sys.exit(main(["top"], CommandSite(Path(sys.argv[1]), connect_database=lambda _: database)))
"""


def test_on_a_terminal_it_runs_until_q_and_restores_the_terminal(tmp_path: Path) -> None:
    config = tmp_path / "slurm-gpu.yaml"
    config.write_text("cluster: neuron\n")
    master, slave = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"}
    argv = [sys.executable, "-c", _FOLLOWED, str(config)]
    with subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=environ, cwd=_ROOT) as process:
        os.close(slave)
        printed = b""
        asked_to_quit = False
        while True:
            try:
                printed += (part := os.read(master, 65536))
            except OSError:  # the other end of the terminal was closed
                break
            if not part:
                break
            if b"q: quit" in printed and not asked_to_quit:
                os.write(master, b"q")
                asked_to_quit = True
        assert process.wait() == 0
    os.close(master)
    assert b"alice" in printed
    assert b"\x1b[3" not in printed  # no color
    # The alternate screen was entered and left, and the cursor is back.
    assert printed.rindex(b"\x1b[?1049l") > printed.index(b"\x1b[?1049h")
    assert printed.rindex(b"\x1b[?25h") > printed.rindex(b"\x1b[?25l")
