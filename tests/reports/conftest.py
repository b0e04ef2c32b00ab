from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_gpu.config.site import ServerType, SiteConfig
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.reports.figure import Figure
from slurm_gpu.reports.load import ReportData, load
from slurm_gpu.reports.period import ReportPeriod
from tests.database.conftest import database, mariadb, shared_database, shared_databases, short_path
from tests.reports.filling import fill
from tests.reports.flat import all_figures
from tests.reports.generated import (
    RATES,
    SINCE,
    TIMEZONE,
    UNTIL,
    Accounting,
    as_day,
    epoch_s,
    generate,
)

__all__ = ["database", "mariadb", "shared_database", "shared_databases", "short_path"]

NOW_S = epoch_s(*UNTIL) + 86400


@pytest.fixture(scope="session")
def site() -> SiteConfig:
    return SiteConfig(
        cluster="neuron",
        timezone=TIMEZONE,
        team={f"acct{i:02d}": f"team{i % 12:02d}" for i in range(40)},
        server_types={name: ServerType("", rate) for name, rate in RATES.items()},
    )


@pytest.fixture(scope="session")
def centre() -> Accounting:
    """Return the generated accounting with 39,470 jobs with GPUs."""
    return generate()


@pytest.fixture(scope="session")
def accounts(
    centre: Accounting, site: SiteConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReportData]:
    """Return the generated accounting as read by slurm_gpu."""
    path: Path = tmp_path_factory.mktemp("centre") / "centre.db"
    made = Database(f"sqlite:///{path}")
    made.upgrade()
    fill(made, centre)
    period = ReportPeriod(since=as_day(SINCE), until=as_day(UNTIL), timezone=TIMEZONE)
    yield load(made, site, period, NOW_S)
    made.dispose()


@pytest.fixture(scope="session")
def figures(accounts: ReportData) -> dict[str, Figure]:
    """Return all figures of the generated accounting, by ID."""
    return {figure.id: figure for figure in all_figures(accounts)}
