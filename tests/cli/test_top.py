"""`slurm-gpu top` draws every row at any size, prints once in a pipe, and updates on a terminal."""

import json
import os
import pty
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.alerts.alert import Alert, AlertKind
from slurm_gpu.cli.cluster.keys import END, keys
from slurm_gpu.cli.cluster.top_order import SORTS, sorted_jobs
from slurm_gpu.cli.cluster.top_screen import Screen, StaleReason, draw, draw_keys
from slurm_gpu.cli.cluster.top_view import KEYS, Filter, Pane, View
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
    assert lines[-1] == "nodes 1–5 of 5 · ?: keys · q: quit · tab: jobs · /: filter · s: sort"


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


@given(_clusters(), st.integers(20, 200), st.integers(10, 60), st.sampled_from(Pane))
def test_at_any_size_lines_fit_and_the_pages_show_each_row_once(
    state: ClusterState, width: int, height: int, pane: Pane
) -> None:
    overview = make_overview("neuron", state, {}, [])
    first, seen = 0, 0
    while True:
        view = View(pane=pane, first={pane: first})
        screen = draw(overview, NOW_S, _ZONE, width=width, height=height, view=view)
        assert len(screen.lines) == height
        assert max(line.cell_len for line in screen.lines) <= width
        seen += screen.shown if screen.first == first else screen.first + screen.shown - first
        first = screen.first + screen.shown
        if first >= screen.rows:
            break
    assert seen == len(overview.rows if pane is Pane.NODES else overview.jobs)


def _large(n_nodes: int, n_waiting: int) -> ClusterState:
    """Return nodes with four jobs each, and pending jobs."""
    nodes = [
        node(f"gpu{n:03}", *(holds(4 * n + gpu, gpu) for gpu in range(4))) for n in range(1, n_nodes + 1)
    ]
    jobs = [job(job_id, f"user{job_id}") for job_id in range(4, 4 * n_nodes + 4)]
    return cluster(nodes, [*jobs, *(waiting(1000 + n) for n in range(n_waiting))])


@pytest.mark.parametrize(("n_nodes", "n_waiting"), [(40, 60), (40, 0), (3, 60), (3, 3)])
def test_at_140_by_50_both_panes_fill_the_screen(n_nodes: int, n_waiting: int) -> None:
    lines = _plain(_drawn(_large(n_nodes, n_waiting), width=140, height=50))
    assert any("FREES IN" in line for line in lines)
    assert any("ELAPSED/LIMIT" in line for line in lines)
    if n_nodes + n_waiting > 10:
        body = lines[lines.index("") + 1 : -1]
        assert [line for line in body if not line.strip(" │")] in ([], [""]), "no line is blank"
        assert max(len(line.rstrip(" │")) for line in body) > 90


def test_at_80_by_24_tab_switches_between_nodes_and_jobs() -> None:
    state, view = _large(40, 60), View()
    assert "FREES IN" in "".join(_plain(_drawn(state, width=80, height=24, view=view)))
    view = view.pressed("tab", 10, 100)
    lines = _plain(_drawn(state, width=80, height=24, view=view))
    assert not any("FREES IN" in line for line in lines)
    assert any(
        re.match(r"4 +train +user4 +vision +running +1 +– +1h00m/2h00m +gpu001$", line) for line in lines
    )


def test_the_jobs_show_pending_jobs_with_their_reason() -> None:
    lines = _plain(_drawn(_small(), width=120, height=24, view=View(pane=Pane.JOBS)))
    rows = [" ".join(line.split()) for line in lines]
    assert "25 train alice vision gpu running 1 50 1h00m/2h05m n1" not in rows
    assert "25 train alice vision gpu running 1 50 1h00m/2h00m n1" in rows
    assert "27 train carol vision gpu completing 1 – 1h00m/2h00m n[2-3]" in rows
    assert "31 train alice vision gpu pending 1×10 – –/2h00m Priority" in rows


def _ids(state: ClusterState, view: View) -> list[str]:
    overview = make_overview(
        "neuron", state, _live(), [], user=view.shown.user, account=view.shown.account, words=view.shown.words
    )
    return [shown.job.id for shown in sorted_jobs(overview.jobs, view.sort, view.is_reverse)]


def _pressed(view: View, *keys: str) -> View:
    for key in keys:
        view = view.pressed(key, 10, 100)
    return view


def test_s_sorts_and_r_reverses_with_gaps_last() -> None:
    jobs = [job(25, "bob", end_s=NOW_S + 9), job(26, "alice", end_s=NOW_S + 1), job(27, "carol", end_s=None)]
    state = cluster([node("n1", holds(27, 0), holds(26, 1), holds(25, 2))], jobs)
    by_sort = {}
    view = View()
    for _ in SORTS:
        by_sort[view.sort] = _ids(state, view)
        view = view.pressed("s", 10, 100)
    assert view.sort == SORTS[0]
    assert by_sort["node"] == ["27", "26", "25"]
    assert by_sort["job"] == ["25", "26", "27"]
    assert by_sort["user"] == ["26", "25", "27"]
    assert by_sort["end"] == ["26", "25", "27"]
    assert _ids(state, View(sort="end", is_reverse=True)) == ["25", "26", "27"]


def test_a_slash_filters_by_user_account_partition_and_text() -> None:
    state = cluster(
        [node("n1", holds(1, 0), holds(2, 1)), node("n2", holds(3, 0))],
        [job(1, "alice"), job(2, "alice", name="Jupyter"), job(3, "bob", account="nlp"), waiting(4)],
    )
    assert _ids(state, _pressed(View(), "/", *"u:alice", "enter")) == ["1", "2", "4"]
    assert _ids(state, _pressed(View(), "/", *"account:nlp", "enter")) == ["3"]
    assert _ids(state, _pressed(View(), "/", *"jupyter", "enter")) == ["2"]
    assert _ids(state, _pressed(View(), "/", *"N1 train", "enter")) == ["1"]
    assert _ids(state, _pressed(View(), "/", *"pendinx", "backspace", "g", "enter")) == ["4"]
    narrowed = _pressed(View(), "/", *"p:gpu u:bob x", "enter")
    assert str(narrowed.shown) == "user:bob partition:gpu x"
    assert str(_pressed(narrowed, "/", "q", "escape").shown) == str(narrowed.shown)
    assert str(_pressed(narrowed, "escape").shown) == ""


def test_m_shows_only_the_jobs_of_the_caller() -> None:
    mine = View(me="bob").pressed("m", 10, 100)
    assert _ids(_small(), mine) == ["26"]
    assert _ids(_small(), mine.pressed("m", 10, 100)) == _ids(_small(), View())
    assert View().pressed("m", 10, 100).shown == Filter(), "a caller without a name has no jobs"


def test_with_a_filter_free_gpus_are_only_found_by_text() -> None:
    def owners(**selected: Any) -> list[str]:
        rows = make_overview("neuron", _small(), {}, [], **selected).rows
        return [shown.row.job.user if shown.row.job else "" for shown in rows]

    assert owners(words=("n1",)) == ["alice", "bob", ""]
    assert owners(words=("free",)) == [""]
    assert owners(account="vision") == ["alice", "bob", "carol"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 50), (20, 10)])
def test_a_question_mark_shows_every_key(width: int, height: int) -> None:
    lines = draw_keys(width, height)
    assert len(lines) == height
    assert max(line.cell_len for line in lines) <= width
    if width >= 80:
        shown = " ".join(" ".join(line.plain.split()) for line in lines)
        assert all(what in shown for key in KEYS for what in key)
    view = View().pressed("?", 10, 100)
    assert (view.shows_keys, view.pressed("s", 10, 100)) == (True, View())


def test_the_last_line_names_filter_and_order() -> None:
    view = View(shown=Filter(user="bob"), sort="end", is_reverse=True)
    foot = _plain(_drawn(_small(), width=80, height=24, view=view))[-1]
    assert foot.startswith("nodes 1–5 of 5 · filter user:bob · by end, reversed · ?: keys")
    typed = _plain(_drawn(_small(), width=80, height=24, view=View(prompt="user:b")))[-1]
    assert typed.startswith("filter: user:b▏  enter: apply")


def test_in_a_pipe_it_is_printed_once_without_colors(slurm_gpu: CommandLine) -> None:
    slurm_gpu.database.cluster_state, slurm_gpu.database.lives = _small(), _live()
    slurm_gpu.site.wall = lambda: NOW_S
    assert slurm_gpu("top") == 0
    assert "\x1b" not in slurm_gpu.out
    assert re.search(r"^n1 +mixed +a100 +0-1 +alice +25 +50 █▁ +30 +2h05m$", slurm_gpu.out, re.MULTILINE)
    assert not any(line != line.rstrip() for line in slurm_gpu.out.splitlines())


def test_me_and_account_select_rows(slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    bob = pwd.struct_passwd(("bob", "x", 1002, 1002, "", "/home/bob", "/bin/sh"))
    monkeypatch.setattr("slurm_gpu.cli.users.pwd.getpwuid", lambda uid: bob)
    slurm_gpu.database.cluster_state = _small()
    for words, users in (
        ("--me", {"bob"}),
        ("-u alice", {"alice"}),
        ("-A vision -p gpu", {"alice", "bob", "carol"}),
        ("-A nlp", set()),
    ):
        assert slurm_gpu("top", "--json", *words.split()) == 0
        assert {row["user"] for row in json.loads(slurm_gpu.out)["rows"]} == users


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
        (("--me", "--user", "bob"), "--me and --user are mutually exclusive"),
    ],
)
def test_wrong_usage(slurm_gpu: CommandLine, argv: tuple[str, ...], message: str) -> None:
    slurm_gpu.database.cluster_state = _small()
    assert slurm_gpu("top", *argv) == 2
    assert message in slurm_gpu.err


def test_an_unreachable_slurm_gpudbd_is_reported(slurm_gpu: CommandLine) -> None:
    assert slurm_gpu("top") == 3
    assert "slurm-gpudbd at http://dbhost:6829 cannot be reached" in slurm_gpu.err


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make the slave of a pseudo-terminal the standard input, and return the master."""
    master, slave = pty.openpty()
    with os.fdopen(slave) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        yield master


def test_keys_that_arrive_together_are_read_one_by_one(terminal: int) -> None:
    with keys() as pressed:
        os.write(terminal, "a\x1b[B\x1bOA\t/é\x7f\r\x1b".encode())
        read = [pressed(5.0) for _ in range(9)]
        assert read == ["a", "down", "up", "tab", "/", "é", "backspace", "enter", "escape"]
        assert pressed(0.0) == ""


def test_a_closed_terminal_ends_the_screen(terminal: int) -> None:
    with keys() as pressed:
        os.close(terminal)
        assert pressed(5.0) == END


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


def test_on_a_terminal_it_filters_until_q_and_restores_the_terminal(tmp_path: Path) -> None:
    config = tmp_path / "slurm-gpu.yaml"
    config.write_text("cluster: neuron\n")
    master, slave = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"}
    argv = [sys.executable, "-c", _FOLLOWED, str(config)]
    with subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=environ, cwd=_ROOT) as process:
        os.close(slave)
        printed = b""
        typed: list[bytes] = []
        while True:
            try:
                printed += (part := os.read(master, 65536))
            except OSError:  # the other end of the terminal was closed
                break
            if not part:
                break
            for after, keys_typed in ((b"q: quit", b"/bob\r"), (b"filter bob", b"q")):
                if after in printed and keys_typed not in typed:
                    os.write(master, keys_typed)
                    typed.append(keys_typed)
        assert process.wait() == 0
    os.close(master)
    assert b"alice" in printed
    assert b"\x1b[3" not in printed  # no color
    # The alternate screen was entered and left, and the cursor is back.
    assert printed.rindex(b"\x1b[?1049l") > printed.index(b"\x1b[?1049h")
    assert printed.rindex(b"\x1b[?25h") > printed.rindex(b"\x1b[?25l")
