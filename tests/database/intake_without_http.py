"""Store shipments without HTTP."""

import json
from typing import Any

from sqlalchemy import func, select

from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.ingest.intake import Intake
from slurm_gpu.database.ingest.shipment import parse_shipment
from slurm_gpu.database.live.memory import LiveState
from slurm_gpu.database.storage.engine import Database
from tests.database.samples import CLUSTER, FakeClock, MemorySlurm

N1, N2 = "127.0.1.1", "127.0.1.2"


class Gate:
    """An Intake with its clock, Slurm and memory; `ship` passes it a serialised shipment of n1."""

    def __init__(self, database: Database, slurm: MemorySlurm | None = None) -> None:
        self.database, self.clock = database, FakeClock()
        self.slurm = MemorySlurm() if slurm is None else slurm
        self.memory = LiveState.fresh(self.clock)
        self.board, self.wants = self.memory.board, self.memory.wants
        view = SlurmView(self.slurm, self.clock, lambda name: frozenset({name}))
        self.intake = Intake(database, view, CLUSTER, self.clock, self.memory)

    def ship(self, *, node: str = "n1", address: str | None = N1, **lists: Any) -> dict[str, Any]:
        def wire(item: Any) -> Any:
            return item.to_wire() if hasattr(item, "to_wire") else item

        items = {
            name: [wire(item) for item in value] if isinstance(value, list) else wire(value)
            for name, value in lists.items()
        }
        body = json.dumps({"wire": 1, "node": node, "boot_id": "boot", **items}).encode()
        return self.intake.take(parse_shipment(body, ""), address)

    def count(self, table: Any) -> int:
        with self.database.reading() as connection:
            return connection.execute(select(func.count()).select_from(table)).scalar_one()


def whys(answer: dict[str, Any], kind: str) -> dict[int, str]:
    """Return the reasons of rejected items of a kind, by index."""
    return {item["index"]: item["why"] for item in answer[f"rejected_{kind}"]}
