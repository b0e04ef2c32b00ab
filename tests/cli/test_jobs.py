"""`slurm-gpu jobs` prints 0 for a measured zero and a dash for a gap, and passes filters to the database."""

import csv
import io
import json
import os
import pwd
import re
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from slurm_gpu.cli.runs.filters import SORTS
from slurm_gpu.cli.runs.jobs import CSV_COLUMNS
from slurm_gpu.cli.runs.run_columns import TITLES
from slurm_gpu.database.queries.run_filter import SORTS as DATABASE_SORTS
from tests.cli.conftest import CommandLine, make_run
from tests.slurm.recorded import NOW_S

_GAPS = {"ugpucore": None, "ugpumem": None, "coverage": None, "energy_j": None}


@pytest.fixture(autouse=True)
def _caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let alice call the commands."""
    alice = pwd.struct_passwd(("alice", "x", 1001, 1001, "", "/home/alice", "/bin/sh"))
    monkeypatch.setattr("slurm_gpu.cli.users.pwd.getpwuid", lambda uid: alice)


def _row(slurm_gpu: CommandLine, *columns: str) -> list[str]:
    """Return the cells of the first row in these columns, which contain no spaces."""
    assert slurm_gpu("jobs", "-o", ",".join(columns)) == 0
    return slurm_gpu.rows()[1]


def test_one_row_per_run(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(), make_run(id="16_3", user="bob", name=None, state="FAILED")]
    assert slurm_gpu("jobs", "-a") == 0
    assert [re.split(r"  +", line) for line in slurm_gpu.out.splitlines()] == [
        [
            *("JobID", "name", "user", "account", "state", "nNODE", "nGPU", "elapsed/limit", "end"),
            *("WAIT_h", "RUN_h", "uGPUcore", "uGPUmem", "coverage"),
        ],
        [
            *("17", "train", "alice", "vision", "COMPLETED", "1", "2", "1h00m/2h00m", "2026-11-21 20:15"),
            *("0.500", "1.00", "42.2", "10.0", "0.99"),
        ],
        [
            *("16_3", "–", "bob", "vision", "FAILED", "1", "2", "1h00m/2h00m", "2026-11-21 20:15"),
            *("0.500", "1.00", "42.2", "10.0", "0.99"),
        ],
    ]


def test_by_default_the_runs_of_the_caller_are_listed_without_the_user(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run()]
    slurm_gpu("jobs")
    assert slurm_gpu.database.asked == {"user": "alice", "limit": 101}
    assert "user" not in slurm_gpu.rows()[0]
    for all_users in ("-a", "--all-users"):
        slurm_gpu("jobs", all_users)
        assert slurm_gpu.database.asked == {"limit": 101}
        assert "user" in slurm_gpu.rows()[0]
    assert slurm_gpu("jobs", "-a", "-u", "bob") == 2
    assert slurm_gpu.err == "slurm-gpu: --all-users and --user are mutually exclusive\n"


def test_a_running_job_shows_the_end_by_its_time_limit_and_a_pending_job_none(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(state="RUNNING", end_s=None, elapsed_s=7000, suspended_s=600)]
    assert _row(slurm_gpu, "elapsed/limit", "end") == ["1h56m/2h00m", "by", "2026-11-21", "21:25"]
    slurm_gpu.database.runs = [
        make_run(state="RUNNING", end_s=None, elapsed_s=7000, time_limit_s=None),
    ]
    assert _row(slurm_gpu, "elapsed/limit", "end") == ["1h56m/–", "–"]
    slurm_gpu.database.runs = [
        make_run(state="PENDING", start_s=None, end_s=None, elapsed_s=0, n_gpus=None, n_gpus_requested=4.0)
    ]
    assert _row(slurm_gpu, "state", "nGPU", "elapsed/limit", "end") == ["PENDING", "4", "–/2h00m", "–"]


def test_short_options_are_those_of_sacct_and_squeue(slurm_gpu: CommandLine):
    words = "-u bob -A vision -p gpu -q high -S 2d -E 1d -s R,PD,CD,F,TO"
    assert slurm_gpu("jobs", *words.split()) == 0
    assert slurm_gpu.database.asked == {
        "user": "bob",
        "accounts": ("vision",),
        "partition": "gpu",
        "qos": "high",
        "since_s": NOW_S - 2 * 86400,
        "until_s": NOW_S - 86400,
        "states": ("RUNNING", "PENDING", "COMPLETED", "FAILED", "TIMEOUT"),
        "limit": 101,
    }


def test_jobs_are_found_by_id_without_their_records(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(devices=()), make_run(id="18", user="bob"), make_run(id="19")]
    assert slurm_gpu("jobs", "-j", "18,17,99") == 0
    assert [row[0] for row in slurm_gpu.rows()[1:]] == ["18", "17"]
    assert slurm_gpu.err == "Slurm's accounting has no job 99; slurm-gpu job 99 also finds held jobs\n"
    slurm_gpu("jobs", "-j", "17", "--json")
    (run,) = json.loads(slurm_gpu.out)["runs"]
    assert "devices" not in run
    assert slurm_gpu("jobs", "-j", "17", "-s", "F") == 2
    assert slurm_gpu.err == (
        "slurm-gpu: --jobs lists all runs of the given jobs, newest first: leave out --state F\n"
    )
    assert slurm_gpu("jobs", "-j", ",") == 2


def test_format_chooses_columns_by_title_or_key(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run()]
    slurm_gpu("jobs", "--format", "nodes,jobid, END_S,ugpucore,exit_code")
    assert slurm_gpu.rows()[0] == ["nodes", "JobID", "end", "uGPUcore", "exit_code"]
    slurm_gpu("jobs", "--csv", "-o", "JobID,elapsed/limit,name")
    assert slurm_gpu.out == "id,elapsed_s,time_limit_s,name\n17,3600,7200,train\n"
    assert slurm_gpu("jobs", "-o", "JobID,nonsense") == 2
    assert slurm_gpu.err == (
        f"slurm-gpu: --format: 'nonsense' is not a column; the columns are {', '.join(TITLES)}\n"
    )
    assert slurm_gpu("jobs", "-o", "JobID", "--json") == 2


def test_on_a_narrow_terminal_the_last_chosen_columns_are_left_out(
    slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    slurm_gpu.database.runs = [make_run()]
    slurm_gpu("jobs", "-o", "coverage,RUN_h,submit,account,JobID")
    assert slurm_gpu.err == "columns not shown: JobID, account; use a wider terminal, -o or --json\n"


def test_each_column_can_be_printed_and_exported(slurm_gpu: CommandLine, tmp_path: Path):
    slurm_gpu.database.runs = [make_run()]
    every = ",".join(TITLES)
    assert slurm_gpu("jobs", "-o", every) == 0
    assert slurm_gpu("jobs", "--csv", "-o", every) == 0
    csv_keys = slurm_gpu.out.splitlines()[0].split(",")
    assert set(csv_keys) <= make_run().to_json().keys()
    assert slurm_gpu("jobs", "--parquet", str(tmp_path / "x.parquet"), "-o", every) == 0
    assert parquet.read_table(tmp_path / "x.parquet").column_names == csv_keys


def test_zero_is_printed_as_0_and_none_as_a_dash(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [
        make_run(id="1", wait_h=0.0, ugpucore=0.0, ugpumem=0.0, coverage=1.0),
        make_run(id="2", ugpucore=0.01),
        make_run(id="3", **_GAPS),
        make_run(id="4", n_gpus=0.0, **_GAPS),
        make_run(
            id="5", start_s=None, end_s=None, elapsed_s=None, wait_h=None, run_h=None, n_gpus=None, **_GAPS
        ),
        make_run(id="6", coverage=0.0, ugpucore=None, ugpumem=None),
    ]
    slurm_gpu("jobs", "-o", "JobID,nGPU,WAIT_h,RUN_h,uGPUcore,uGPUmem,coverage")
    cells = {row[0]: row[1:] for row in slurm_gpu.rows()}
    assert cells["1"] == ["2", "0", "1.00", "0", "0", "1.00"]
    assert cells["2"][3] == "0.0"
    assert cells["3"] == ["2", "0.500", "1.00", "–", "–", "–"]
    assert cells["4"] == ["0", "0.500", "1.00", "–", "–", "–"]
    assert cells["5"] == ["–", "–", "–", "–", "–", "–"]
    assert cells["6"] == ["2", "0.500", "1.00", "–", "–", "0*"]


def test_json_and_csv_distinguish_zero_and_gaps(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(ugpucore=0.0, ugpumem=None)]
    slurm_gpu("jobs", "--json")
    (run,) = json.loads(slurm_gpu.out)["runs"]
    assert run["uGPUcore"] == 0.0
    assert run["uGPUmem"] is None
    assert run["WAIT_h"] == 0.5
    slurm_gpu("jobs", "--csv")
    (row,) = csv.DictReader(io.StringIO(slurm_gpu.out))
    assert (row["uGPUcore"], row["uGPUmem"], row["id"], row["nGPU"]) == ("0.0", "", "17", "2.0")


def test_values_with_low_coverage_are_marked(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(coverage=0.79), make_run(id="18", coverage=0.8)]
    slurm_gpu("jobs")
    assert slurm_gpu.rows()[1][-3:] == ["42.2*", "10.0*", "0.79*"]
    assert slurm_gpu.rows()[2][-3:] == ["42.2", "10.0", "0.80"]
    assert slurm_gpu.err == "* not reliable: measured for less than 80% of the time\n"


def test_quarters_of_gpus_are_shown(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(n_gpus=0.25)]
    assert _row(slurm_gpu, "nGPU") == ["0.25"]


def test_filters_reach_the_database(slurm_gpu: CommandLine):
    slurm_gpu(
        "jobs",
        "--user",
        "alice",
        "--account",
        "vision",
        "--state",
        "failed,TIMEOUT",
        "--since",
        "2026-11-01",
        "--until",
        "2d",
        "--limit",
        "7",
    )
    assert slurm_gpu.database.asked == {
        "user": "alice",
        "accounts": ("vision",),
        "states": ("FAILED", "TIMEOUT"),
        "since_s": 1793458800,  # midnight in Seoul
        "until_s": NOW_S - 2 * 86400,
        "limit": 8,
    }


@pytest.mark.parametrize("when", ["yesterday", "7", "2026-13-01", "9" * 12 + "d", "9" * 400 + "d"])
def test_an_invalid_time_is_quoted(slurm_gpu: CommandLine, when: str):
    assert slurm_gpu("jobs", "--since", when) == 2
    assert slurm_gpu.err.startswith(f"slurm-gpu: --since {when}: use a date")


def test_an_interval_that_ends_before_it_begins_is_an_error(slurm_gpu: CommandLine):
    assert slurm_gpu("jobs", "--since", "2026-11-02", "--until", "2026-11-01T12:00") == 2
    assert slurm_gpu.err == (
        "slurm-gpu: --until 2026-11-01T12:00 (2026-11-01 12:00:00) must be later than "
        "--since 2026-11-02 (2026-11-02 00:00:00)\n"
    )
    assert slurm_gpu("jobs", "--since", "2d", "--until", "1d") == 0
    assert slurm_gpu("jobs", "--since", "1d", "--until", "2d") == 2


def test_an_unknown_state_is_an_error(slurm_gpu: CommandLine):
    assert slurm_gpu("jobs", "--state", "FAILED,foo") == 2
    assert slurm_gpu.err.startswith(
        "slurm-gpu: --state FOO: Slurm has no such state; its states are BOOT_FAIL, "
    )
    assert slurm_gpu("jobs", "--state", "pd, oom") == 0
    assert slurm_gpu.database.asked["states"] == ("PENDING", "OUT_OF_MEMORY")


def test_json_and_csv_have_the_same_short_numbers(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(run_h=20 / 3600, ugpucore=39.0148263753414, wait_h=1e-9)]
    slurm_gpu("jobs", "--csv")
    (row,) = csv.DictReader(io.StringIO(slurm_gpu.out))
    assert (row["RUN_h"], row["uGPUcore"], row["WAIT_h"]) == ("0.005556", "39.014826", "1e-09")
    slurm_gpu("jobs", "--json")
    (run,) = json.loads(slurm_gpu.out)["runs"]
    assert (run["RUN_h"], run["uGPUcore"], run["WAIT_h"]) == (0.005556, 39.014826, 1e-9)


@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",)])
@pytest.mark.parametrize(
    ("words", "searched"),
    [
        ("", "searched your runs (alice); to search more, use -a for all users"),
        ("-a", "searched the runs of all users"),
        ("-a -S 2d", "searched the runs of all users with --since 2d; to search more, use an earlier -S"),
        (
            "-u root -S 2d -s F",
            "searched the runs of root with --since 2d --state F; "
            "to search more, use -a for all users, an earlier -S or fewer filters",
        ),
    ],
)
def test_an_empty_list_says_what_was_searched_and_how_to_search_more(
    slurm_gpu: CommandLine, words: str, searched: str, form: tuple[str, ...]
):
    assert slurm_gpu("jobs", *words.split(), *form) == 0
    assert slurm_gpu.err == f"no runs match\n{searched}\n"


def test_an_unknown_user_is_reported_if_no_run_matches(slurm_gpu: CommandLine):
    assert slurm_gpu("jobs", "--user", "nobody,nobody9") == 0
    assert slurm_gpu.err.endswith("\nthis host has no user nobody9\n")
    slurm_gpu.database.runs = [make_run(user="nobody9")]
    slurm_gpu("jobs", "--user", "nobody9")
    assert slurm_gpu.err == ""


@pytest.mark.parametrize("command", ["jobs", "nodes"])
def test_two_formats_are_an_error(slurm_gpu: CommandLine, command: str):
    assert slurm_gpu(command, "--json", "--csv") == 2
    assert slurm_gpu.err == "slurm-gpu: --json and --csv are mutually exclusive\n"


def test_at_80_columns_a_long_name_is_shortened_and_every_run_has_one_line(
    slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    slurm_gpu.database.runs = [make_run(name="department-of-computer-vision", id="1234567_12"), make_run()]
    slurm_gpu("jobs")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", slurm_gpu.out).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert " ".join(lines[1].split()) == ("1234567_12 depar… CD 2 1h00m/2h00m 11-21 20:15 42.2 10.0 0.99")


@pytest.mark.parametrize(
    ("columns", "row", "left_out"),
    [
        (
            60,
            "1234567_12 train CD 12.25 1h00m/2h00m 42.2",
            "RUN_h, nNODE, WAIT_h, account, coverage, uGPUmem, end",
        ),
        (
            40,
            "1234567_12 CD 12.25 42.2",
            "RUN_h, nNODE, WAIT_h, account, coverage, uGPUmem, end, name, elapsed/limit",
        ),
    ],
)
def test_on_a_narrower_terminal_whole_columns_are_left_out_and_named(
    slurm_gpu: CommandLine, monkeypatch: pytest.MonkeyPatch, columns: int, row: str, left_out: str
):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    slurm_gpu.database.runs = [make_run(user="department-of-vision", id="1234567_12", n_gpus=12.25)]
    slurm_gpu("jobs")
    table = re.sub(r"\x1b\[[0-9;]*m", "", slurm_gpu.out)
    assert max(map(len, table.splitlines())) <= columns
    assert " ".join(table.splitlines()[1].split()) == row
    assert slurm_gpu.err == f"columns not shown: {left_out}; use a wider terminal, -o or --json\n"


def test_a_truncated_list_prints_a_remark(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(id=str(n)) for n in range(9)]
    slurm_gpu("jobs", "--limit", "3")
    assert len(slurm_gpu.rows()) == 4
    assert slurm_gpu.err == "the last 3 runs; there are more (--limit, --page 2)\n"


def test_control_characters_in_names_are_replaced(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(account="v\x1b[31mx[bold]y")]
    assert _row(slurm_gpu, "account") == ["v�[31mx[bold]y"]


def test_names_are_not_formulas_in_a_spreadsheet(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(app='=HYPERLINK("http://x","y")', account="-1+1")]
    slurm_gpu("jobs", "--csv")
    (row,) = csv.DictReader(io.StringIO(slurm_gpu.out))
    assert (row["app"], row["account"], row["user"]) == ('\'=HYPERLINK("http://x","y")', "'-1+1", "alice")


def test_control_characters_in_json_are_escaped(slurm_gpu: CommandLine):
    account = "v\x1b[31m \x9b31m \u202egnp 연구"
    slurm_gpu.database.runs = [make_run(account=account)]
    slurm_gpu("jobs", "--json")
    assert all(character.isprintable() or character == "\n" for character in slurm_gpu.out)
    assert "연구" in slurm_gpu.out
    assert json.loads(slurm_gpu.out)["runs"][0]["account"] == account


def test_a_page_continues_where_the_previous_page_ended(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(id=str(n)) for n in range(8)]
    shown = []
    for page in (1, 2, 3):
        assert slurm_gpu("jobs", "--limit", "3", "--page", str(page)) == 0
        shown.append([row[0] for row in slurm_gpu.rows()[1:]])
    assert shown == [["0", "1", "2"], ["3", "4", "5"], ["6", "7"]]
    assert slurm_gpu.err == ""
    slurm_gpu("jobs", "--limit", "3", "--page", "2")
    assert slurm_gpu.err == "these are 3 runs, page 2; there are more (--limit, --page 3)\n"
    slurm_gpu("jobs", "--limit", "3", "--page", "4")
    assert slurm_gpu.err == "page 4 does not exist: 8 runs match, and the last page is 3\n"
    slurm_gpu("jobs", "--all")
    assert len(slurm_gpu.rows()) == 9


def test_all_filters_reach_the_database(slurm_gpu: CommandLine):
    slurm_gpu(
        "jobs",
        "--all-users",
        "--partition",
        "gpu",
        "--qos",
        "high",
        "--app",
        "GROMACS",
        "--gpu-type",
        "a100",
        "--server-type",
        "dgx",
        "--zone",
        "pod1",
        "--min-gpus",
        "0.5",
        "--sort",
        "RUN_h",
        "--ascending",
    )
    assert slurm_gpu.database.asked == {
        "partition": "gpu",
        "qos": "high",
        "app": "GROMACS",
        "gpu_type": "a100",
        "server_type": "dgx",
        "zone": "pod1",
        "min_gpus": 0.5,
        "sort": "RUN_h",
        "ascending": True,
        "limit": 101,
        "since_s": NOW_S - 30 * 86400,
    }


def test_pages_that_the_database_would_read_completely_cover_thirty_days(slurm_gpu: CommandLine):
    """No index has the order of utilisation; with a million runs such a page took five seconds."""
    slurm_gpu.database.runs = [make_run()]
    note = "runs of the last 30 days; -S selects an earlier start, and --all lists all runs\n"
    for options in (["--sort", "uGPUcore"], ["-p", "gpu"], ["-q", "high"], ["--min-gpus", "8"]):
        assert slurm_gpu("jobs", *options) == 0
        assert slurm_gpu.database.asked["since_s"] == NOW_S - 30 * 86400
        assert slurm_gpu.err.endswith(note)
    for options in (["--sort", "end"], ["-s", "F"], ["-A", "vision"], ["--sort", "uGPUcore", "--all"]):
        assert slurm_gpu("jobs", *options) == 0
        assert "since_s" not in slurm_gpu.database.asked
        assert note not in slurm_gpu.err
    slurm_gpu("jobs", "--sort", "uGPUcore", "-S", "90d")
    assert slurm_gpu.database.asked["since_s"] == NOW_S - 90 * 86400
    slurm_gpu("jobs", "--sort", "uGPUcore", "-E", "90d")
    assert "since_s" not in slurm_gpu.database.asked


def test_the_sort_keys_are_those_of_the_database():
    assert SORTS == DATABASE_SORTS


def test_a_team_selects_its_accounts(slurm_gpu: CommandLine):
    path = slurm_gpu.config
    path.write_text(path.read_text() + "\nteam:\n  vision: ai\n  nlp: ai\n  chem: science\n")
    slurm_gpu("jobs", "--team", "ai")
    assert slurm_gpu.database.asked["accounts"] == ("ai", "nlp", "vision"), (
        "an account without a team is its own team"
    )
    slurm_gpu("jobs", "--team", "ai", "--account", "nlp")
    assert slurm_gpu.database.asked["accounts"] == ("nlp",)
    slurm_gpu("jobs", "--team", "physics")
    assert slurm_gpu.database.asked["accounts"] == ("physics",), "an account without a team is its own team"
    assert slurm_gpu("jobs", "--team", "ai", "--account", "chem") == 2
    assert slurm_gpu.err.startswith(
        "slurm-gpu: --account chem: the account belongs to team science, not to ai"
    )
    assert slurm_gpu("jobs", "--team", "vision") == 2
    assert slurm_gpu.err.startswith("slurm-gpu: --team vision: no account belongs to that team")


def test_a_parquet_file_does_not_replace_a_pipe(slurm_gpu: CommandLine, tmp_path: Path):
    """As root, `--parquet /dev/null` would otherwise replace the device with a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert slurm_gpu("jobs", "--parquet", str(pipe)) == 2
    assert f"--parquet {pipe}: not a regular file" in slurm_gpu.err
    assert pipe.is_fifo()


def test_a_parquet_file_has_all_runs_with_gaps_as_null(slurm_gpu: CommandLine, tmp_path: Path):
    path = tmp_path / "runs.parquet"
    slurm_gpu.database.runs = [make_run(id=str(n), ugpumem=None, gpu_type=None) for n in range(150)]
    assert slurm_gpu("jobs", "--parquet", str(path)) == 0
    assert (slurm_gpu.out, slurm_gpu.err) == ("", f"{path} has 150 runs\n")
    table = parquet.read_table(path)
    assert tuple(table.column_names) == CSV_COLUMNS
    assert table.num_rows == 150
    first = table.slice(0, 1).to_pylist()[0]
    assert (first["id"], first["uGPUcore"], first["uGPUmem"], first["gpu_type"]) == ("0", 42.25, None, None)
    assert (first["nGPU"], first["start_s"], first["WAIT_h"]) == (2.0, NOW_S - 7200, 0.5)
    slurm_gpu.database.runs = []
    assert slurm_gpu("jobs", "--parquet", str(path)) == 0
    assert parquet.read_table(path).num_rows == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--all --limit 3", "--all cannot be combined with --limit or --page"),
        ("--parquet x --csv", "--parquet writes a file and prints nothing"),
        ("--sort name", "invalid value for '--sort'"),
        ("--min-gpus -1", "'-1' is not a number of GPUs from 0 to 1,000,000, such as 0.25 or 8"),
        ("--min-gpus x", "invalid value for '--min-gpus': 'x' is not a number of GPUs from 0"),
        ("--min-gpus nan", "'nan' is not a number of GPUs"),
    ],
)
def test_conflicting_options_are_an_error(slurm_gpu: CommandLine, words: str, message: str):
    assert slurm_gpu("jobs", *words.split()) == 2
    assert message in slurm_gpu.err


def test_a_file_that_cannot_be_written_is_named(slurm_gpu: CommandLine, tmp_path: Path):
    path = tmp_path / "nowhere" / "runs.parquet"
    assert slurm_gpu("jobs", "--parquet", str(path)) == 3
    assert slurm_gpu.err == f"slurm-gpu: {path} cannot be written: No such file or directory\n"
