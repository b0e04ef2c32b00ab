"""Charges per account: GPU-hours × the rate of the server type."""

from __future__ import annotations

import numpy as np

from slurm_gpu.reports.figure import Figure, FigureTable, TableColumn
from slurm_gpu.reports.figures.ranking import bars, largest_first, shown_names
from slurm_gpu.reports.job_table import MGPU_S_PER_GPU_H, JobTable
from slurm_gpu.reports.wording import gpu_hours, money, percent, several

_NO_CURRENCY = "`currency` in slurm-gpu.yaml names the currency of the charges."


def charge_per_account(jobs: JobTable) -> Figure:
    """Return charges by account and server type; GPU-hours without a rate are in a separate column."""
    shares = jobs.shares
    accounts, types = shown_names(jobs.account), list(shares.server_type.names)
    n_types = max(len(types), 1)
    account = jobs.account.codes[shares.run].astype(np.int64) % len(accounts)
    cell = account * n_types + shares.server_type.codes
    size = len(accounts) * n_types
    allocated = np.zeros(size, np.int64)
    np.add.at(allocated, cell, shares.mgpu_s)
    unpriced = np.isnan(shares.charge)
    free = np.zeros(size, np.int64)
    np.add.at(free, cell[unpriced], shares.mgpu_s[unpriced])
    charge = np.bincount(cell, np.nan_to_num(shares.charge), size)
    of_account = charge.reshape(-1, n_types).sum(axis=1)
    by_allocated = allocated.reshape(-1, n_types).sum(axis=1)
    order = sorted(
        np.flatnonzero(by_allocated).tolist(),
        key=lambda place: (-of_account[place], -by_allocated[place], accounts[place]),
    )
    rows = [
        place * n_types + kind
        for place in order
        for kind in largest_first(types, allocated[place * n_types : (place + 1) * n_types])
    ]
    table = FigureTable(
        name="charge_per_account",
        title="Charge per account",
        columns=[
            TableColumn("account", "", "The Slurm account."),
            TableColumn("server_type", "", "The server type of the GPUs."),
            TableColumn("gpu_h", "GPU-hours", "Allocated GPU-hours in the period."),
            TableColumn("charge", jobs.currency, "GPU-hours × rate_per_gpu_hour in slurm-gpu.yaml."),
            TableColumn(
                "unpriced_gpu_h", "GPU-hours", "GPU-hours without a charge: their server type has no rate."
            ),
        ],
        data={
            "account": [accounts[row // n_types] for row in rows],
            "server_type": [types[row % n_types] for row in rows],
            "gpu_h": allocated[rows] / MGPU_S_PER_GPU_H,
            "charge": charge[rows],
            "unpriced_gpu_h": free[rows] / MGPU_S_PER_GPU_H,
        },
    )
    by_type = charge.reshape(-1, n_types)[order].T
    return Figure(
        id="charge-per-account",
        title=table.title,
        reading=_reading(
            [accounts[place] for place in order], of_account[order].tolist(), int(free.sum()), jobs.currency
        ),
        table=table,
        chart=bars(
            [accounts[place] for place in order],
            {name: amounts for name, amounts in zip(types, by_type, strict=False) if amounts.any()},
            jobs.currency,
        ),
        notes=[] if jobs.currency or not charge.any() else [_NO_CURRENCY],
    )


def _reading(accounts: list[str], charges: list[float], unpriced_mgpu_s: int, currency: str) -> str:
    total = sum(charges)
    rest = gpu_hours(unpriced_mgpu_s / MGPU_S_PER_GPU_H)
    if not total:
        return f"There were no charges; {rest} had no rate_per_gpu_hour in slurm-gpu.yaml."
    total_text = f"total {money(total, currency)}"
    charged = f"Charges of account {accounts[0]} {total_text}"
    if len(accounts) > 1:
        largest = f"{money(charges[0], currency)} ({percent(charges[0], total)}) for {accounts[0]}"
        charged = f"Charges of {several(len(accounts), 'account')} {total_text}, the largest being {largest}"
    return f"{charged}; {rest} had no rate." if unpriced_mgpu_s else f"{charged}."
