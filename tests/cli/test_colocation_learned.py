"""The speeds of GPU-sharing jobs, as learned by slurm-gpuctld, are written as a table for training."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pytest

from slurm_gpu.cli.colocation.learned import measured_of, write_learned
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.colocation.tables.pair_file import write_csv
from slurm_gpu.colocation.tables.read import read_table
from slurm_gpu.controller.colocation import store as stores
from slurm_gpu.controller.colocation.store import ColocationStore
from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.slurm.client import SlurmSettings
from tests.cli.installation import Installation


@pytest.fixture
def site(installed: Installation, tmp_path: Path) -> CommandSite:
    installed.conf["StateSaveLocation"] = str(tmp_path)
    return installed.at().site


@pytest.fixture
def settings(site: CommandSite) -> SlurmSettings:
    return site.slurm.settings()


@pytest.fixture
def store() -> ColocationStore:
    found = ColocationStore()
    found.ran_alone("alice/train", 100, 0.3, 0.5)
    found.ran_alone("bert", 50, 0.4, None)
    found.ran_with("alice/train", "bert", 0.8)
    found.ran_with("bert", "alice/train", 0.9)
    found.ran_with("bert", "bert", 0.7)
    found.ran_with("bert", "forgotten", 0.6)
    return found


@pytest.mark.parametrize("name", ["out.csv", "out.json"])
def test_the_written_table_can_be_read(
    site: CommandSite, settings: SlurmSettings, store: ColocationStore, tmp_path: Path, name: str
) -> None:
    stores.write(stores.path_of(settings), store, 0, os.geteuid())
    write_learned(site, tmp_path / name, "a100")
    table = read_table(tmp_path / name)
    assert (table.gpu_model, table.names) == ("a100", ("alice/train", "bert"))
    assert table.alone_per_s == (0.01, 0.02)
    assert table.together((0, 1)) == (0.8, 0.9)
    assert table.together((1, 1)) == (0.7, 0.7)


def test_a_pair_with_only_one_measured_speed_is_left_out(store: ColocationStore) -> None:
    del store.speeds["bert", "alice/train"]
    assert measured_of(store, "a100").groups == [(1, 1)]


def test_a_pair_that_ran_out_of_memory_cannot_run_together(store: ColocationStore, tmp_path: Path) -> None:
    store.ran_alone("large", 100, 0.6, 0.5)
    store.part("large", "bert")
    store.part("large", "large")
    store.part("large", "forgotten")
    store.part("alice/train", "bert")  # separated because the jobs ran slower than promised
    write_csv(tmp_path / "out.csv", [measured_of(store, "a100")])
    table = read_table(tmp_path / "out.csv")
    assert table.names == ("alice/train", "bert", "large")
    assert (table.together((1, 2)), table.together((2, 2))) == ((0, 0), (0, 0))
    assert (table.together((0, 1)), table.together((0, 2))) == ((0.8, 0.9), (None, None))


def test_the_longest_key_that_job_submit_lua_writes_is_accepted(
    store: ColocationStore, tmp_path: Path
) -> None:
    key = "/".join(quote("안녕" * 14)[: 80 * 3] for _ in range(2))
    store.ran_alone(key, 100, 0.3, 0.5)
    write_csv(tmp_path / "out.csv", [measured_of(store, "a100")])
    assert len(key) == 481
    assert key in read_table(tmp_path / "out.csv").names


def test_an_empty_store_and_an_unknown_format_are_reported(site: CommandSite, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no measured speeds"):
        write_learned(site, tmp_path / "out.csv", "any")
    with pytest.raises(UsageError, match=r"ends in \.csv or \.json"):
        write_learned(site, tmp_path / "out.txt", "any")


def test_a_damaged_store_is_an_error_and_not_an_empty_store(
    site: CommandSite, settings: SlurmSettings, tmp_path: Path
) -> None:
    path = stores.path_of(settings)
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(OutsideError, match="cannot be read"):
        write_learned(site, tmp_path / "out.csv", "any")
