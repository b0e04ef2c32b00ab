"""Test `slurm-gpu report build`: period, destination, existing files and hostile names of users."""

import csv
import io
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import parse

import pyarrow.parquet
import pytest

from slurm_gpu.cli.main import main
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.database import settings
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.reports.page import png
from slurm_gpu.reports.page.plain_text import visible
from slurm_gpu.text.spreadsheet import defused
from tests.reports.filling import insert_nodes, insert_runs
from tests.reports.generated import Node
from tests.reports.page.example_figures import HOSTILE
from tests.reports.world import run_row

# 2026-11-22 12:00 in Seoul, a Sunday.
NOW_S = 1_795_316_400
HOUR = 3600
DAY = 24 * HOUR
# MariaDB and SQLite cannot store lone surrogates.
NAMES = [name for name in HOSTILE if "\ud800" not in name]
LOANS = "sg-loans"
POLICY = f"""\
version: 1
contact: gpu-help@example.edu
manages: {{qos: [sg-*], accounts: [vision]}}
bundles: {{train: {{gpus: 1, cpus: 8, memory: 64G}}}}
groups: {{vision: {{accounts: [vision]}}}}
owners: {{vision: {{gpus: 4, lend_in: {LOANS}, return_within: 10m}}}}
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Set up a database host with a recent run of each hostile user name."""
    place = tmp_path_factory.mktemp("host")
    (place / "slurm-gpudbd.yaml").write_text(f"url: sqlite:///{place}/slurm-gpu.db\n")
    (place / "slurm-gpu.yaml").write_text("cluster: c\ntimezone: Asia/Seoul\n")
    database = Database(f"sqlite:///{place}/slurm-gpu.db")
    database.upgrade()
    insert_nodes(database, [Node("n1", "a100", "east", 8)], NOW_S - 60 * DAY)
    runs = []
    for number, name in enumerate(NAMES, 1):
        start_s = NOW_S - (1 + number) * DAY
        who = dict.fromkeys(("name", "user", "account", "qos", "partition", "app", "app_field"), name)
        length = {"submit_s": start_s - 60, "start_s": start_s, "end_s": start_s + HOUR}
        runs.append(run_row(number, {**length, "mgpu": 1000, "nodes": ["n1"], "job_id": number, **who}))
    lent = {**runs[0], "run_id": len(NAMES) + 1, "job_id": len(NAMES) + 1, "qos": LOANS}
    insert_runs(database, [*runs, lent])
    database.engine.dispose()
    return place


@pytest.fixture
def report(host: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the command on the database host at NOW_S."""
    monkeypatch.setattr(settings, "DEFAULT_PATH", host / "slurm-gpudbd.yaml")

    def run(*arguments: str | Path) -> int:
        site = CommandSite(config_path=host / "slurm-gpu.yaml", wall=lambda: NOW_S)
        return main(["report", "build", *map(str, arguments)], site)

    return run


class _Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_data(self, data: str) -> None:
        self.found.add(data)


def _texts(page: Path) -> set[str]:
    texts = _Texts()
    texts.feed(page.read_text("utf-8"))
    return texts.found


def test_every_file_is_there_for_its_owner_and_names_that_users_choose_are_text_in_it(
    report, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
):
    # test_charts.py checks PNG files, which take longest.
    monkeypatch.setattr(png, "write_png", lambda drawing, path: path.write_bytes(b"PNG"))
    assert report("--since", "30d", "--out", tmp_path / "r") == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path}/r/report.html\n"
    assert re.fullmatch(r"\d+ figures of \d+ runs, with \d+ files of tables and figures\n", err)

    page = (tmp_path / "r/report.html").read_text("utf-8")
    assert {*map(visible, NAMES)} <= _texts(tmp_path / "r/report.html")
    assert page.count("<script") == 3
    links = set(re.findall(r'href="((?:tables|figures)/[^"]+)"', page))
    there = {path for path in (tmp_path / "r").rglob("*") if path.is_file()}
    unlinked = there - {tmp_path / "r/report.html"} - {tmp_path / "r" / link for link in links}
    # A figure without data is one line of the page; it has a table, but no picture.
    assert {path.parent.name for path in unlinked} == {"tables"}
    assert {path.stem for path in unlinked} == {
        "charge_per_account",
        "forecasts_against_outcomes",
        "lent_gpu_hours",
        "low_priority_small_jobs",
        "utilisation_by_zone_and_scale",
        "allocated_but_idle",
    }
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "r").rglob("*")} == {0}
    with (tmp_path / "r/tables/jobs.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["JobName"] for row in rows} == {defused(name) for name in NAMES}
    stored = pyarrow.parquet.read_table(tmp_path / "r/tables/jobs.parquet")
    assert set(stored["user"].to_pylist()) == set(NAMES)
    for picture in (tmp_path / "r/figures").glob("*.svg"):
        parse(picture)


@pytest.mark.parametrize(
    ("span", "directory", "days"),
    [
        ("day", "2026-11-21", "21 November 2026, Asia/Seoul"),
        ("week", "2026-W46", "9 November to 15 November 2026, Asia/Seoul"),
        ("month", "2026-10", "1 October to 31 October 2026, Asia/Seoul"),
    ],
)
def test_the_last_whole_day_week_or_month(report, tmp_path: Path, span: str, directory: str, days: str):
    assert report("--last", span, "--out", tmp_path, "--page-only") == 0
    assert [path.name for path in tmp_path.iterdir()] == [directory]
    assert days in (tmp_path / directory / "report.html").read_text("utf-8")
    assert [path.name for path in (tmp_path / directory).iterdir()] == ["report.html"]


def test_a_second_report_replaces_the_first(report, tmp_path: Path, capsys):
    for _ in range(2):
        assert report("--since", "2026-11-01", "--until", "2026-11-20", "--out", tmp_path, "--page-only") == 0
    assert "calculating the figures" not in "".join(capsys.readouterr()), "no bar where there is no terminal"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--since", "yesterday"],
            "--since yesterday: use a date (2026-10-01) or whole days ago",
        ),
        (["--since", "12h"], "--since 12h: use a date (2026-10-01) or whole days ago"),
        (
            ["--until", "2026-11-01T12:00"],
            "--until 2026-11-01T12:00: use a date (2026-10-01) or whole days ago",
        ),
        (["--since", "2026-11-02", "--until", "2026-11-01"], "ends on 2026-11-01, but begins on 2026-11-02"),
        (["--since", "2027-01-01"], "--since 2027-01-01 is in the future: today is 2026-11-22"),
        (["--last", "day", "--since", "2026-11-02"], "--last cannot be combined with --since or --until"),
        (["--last", "year"], "'year' is not one of 'day', 'week', 'month'"),
    ],
)
def test_invalid_days_are_reported_with_valid_ones(report, tmp_path: Path, capsys, arguments, says: str):
    assert report(*arguments, "--out", tmp_path / "r") == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_bundles_and_loans_are_those_of_the_policy(report, tmp_path: Path):
    (tmp_path / "policy.yaml").write_text(POLICY)
    assert report("--out", tmp_path / "r", "--page-only", "--policy", tmp_path / "policy.yaml") == 0
    texts = _texts(tmp_path / "r/report.html")
    assert "train" in texts, "a bundle is a resource type"
    assert any(text.startswith("Small jobs of low priority had ") for text in texts)


def test_without_a_policy_server_types_are_resource_types_and_nothing_is_lent(report, tmp_path: Path):
    assert report("--out", tmp_path, "--page-only") == 0
    texts = _texts(tmp_path / "report.html")
    assert "train" not in texts
    assert ": No small job of low priority had a GPU in this period." in texts
    assert report("--out", tmp_path, "--page-only", "--low-priority", LOANS) == 0
    assert any(
        text.startswith("Small jobs of low priority had ") for text in _texts(tmp_path / "report.html")
    )


def test_an_invalid_policy_is_reported_and_a_default_one_stops_no_report(
    report, host: Path, tmp_path: Path, capsys
):
    wrong = POLICY.replace("gpus: 1", "gpus: some")
    (tmp_path / "policy.yaml").write_text(wrong)
    assert report("--out", tmp_path / "r", "--policy", tmp_path / "policy.yaml") == 2
    assert f"{tmp_path}/policy.yaml:4:25: gpus: 'some' must be a number" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
    (host / "policy.yaml").write_text(wrong)
    try:
        assert report("--out", tmp_path / "r", "--page-only") == 0
    finally:
        (host / "policy.yaml").unlink()
    assert f"{host}/policy.yaml is ignored: " in capsys.readouterr().err


def test_a_file_is_no_place_for_a_report(report, tmp_path: Path, capsys):
    (tmp_path / "r").write_text("precious")
    assert report("--out", tmp_path / "r") == 2
    assert f"--out {tmp_path}/r is a file" in capsys.readouterr().err
    assert (tmp_path / "r").read_text() == "precious"


def test_an_unwritable_directory_is_reported(report, capsys):
    assert report("--out", "/proc/reports") == 3
    assert "cannot write to /proc/reports: " in capsys.readouterr().err


def test_on_another_host_the_database_host_is_named(report, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(settings, "DEFAULT_PATH", tmp_path / "none.yaml")
    monkeypatch.setattr(settings, "DEFAULT_DATABASE", tmp_path / "none.db")
    assert report("--out", tmp_path / "r") == 2
    assert "run this on slurm-gpudbd's host" in capsys.readouterr().err


def test_a_database_without_tables_is_not_taken_for_an_idle_cluster(report, tmp_path: Path, capsys):
    (tmp_path / "db.yaml").write_text(f"url: sqlite:///{tmp_path}/new.db\n")
    assert report("--out", tmp_path / "r", "--database-config", tmp_path / "db.yaml") == 3
    assert "slurm-gpu db upgrade" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_moves_on_a_terminal(report, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert report("--out", tmp_path, "--page-only") == 0
    assert "calculating the figures" in terminal.getvalue()
    assert capsys.readouterr().out == f"{tmp_path}/report.html\n"
