"""State on disk is readable by the next release, and by the previous one after a downgrade."""

import json
import shutil
from pathlib import Path

import pytest

from slurm_gpu import __version__
from slurm_gpu.controller.queue.usage import Usage
from slurm_gpu.controller.snapshot.snapshot_file import Snapshot, parse, read_fresh, render
from slurm_gpu.errors import OutsideError
from slurm_gpu.node.shipping.journal import DurableMap
from slurm_gpu.node.shipping.spool import FORMAT, NewerSpoolError, Spool
from slurm_gpu.policy.journal import ApplyJournal as PolicyJournal
from slurm_gpu.policy.journal import ApplyState
from slurm_gpu.wire.record import as_of_wire_1
from tests.upgrade import write_state
from tests.upgrade.releases import BEFORE, run

DATA = Path(__file__).parent / "data"
RELEASES = sorted(path.name for path in DATA.iterdir())
READ = """
import json, sys
from pathlib import Path
from slurm_gpu import __version__
from slurm_gpu.node.shipping.spool import Spool
spool = Spool(Path(sys.argv[1]))
queue = getattr(spool, "queue", spool)  # the spool itself in 0.1
items = queue.waiting(100, set(queue.waiting_keys()))
print(json.dumps({
    "version": __version__,
    "is_whole": spool.is_whole,
    "open": sorted(a.key.job_id for a in spool.allocations()),
    "waiting": sorted(item.key for item in items),
    "wires": {item.key: item.wire for item in items},
    "last": spool.last_record("0" * 15 + "2", "GPU-0").to_wire(),
}))
spool.save_event(__import__("slurm_gpu.wire").records.Event(node="n1", boot_id="b", n=1, at_s=1, kind="x"))
spool.commit()
spool.close()
"""


@pytest.mark.parametrize("release", RELEASES)
def test_the_spool_of_an_older_release_is_taken_over_whole(tmp_path: Path, release: str) -> None:
    directory = tmp_path / "spool"
    shutil.copytree(DATA / release / "spool", directory)
    spool = Spool(directory)
    assert spool.is_whole
    assert spool.allocations() == [write_state.allocation(2), write_state.allocation(3)]
    items = {item.key: item for item in spool.queue.waiting(100, set(spool.queue.waiting_keys()))}
    assert sorted(items) == [
        *(f"event/{write_state.T0 * 10**6}", f"host/{1:016x}", f"host/{2:016x}", f"record/{1:016x}/GPU-0"),
        *(f"record/{2:016x}/GPU-0", f"record/{2:016x}/GPU-1", f"run/{write_state.T0}"),
    ]
    assert items[f"record/{1:016x}/GPU-0"].wire == as_of_wire_1(
        write_state.record(1, 9, final=True).to_wire()
    )
    assert spool.queue.urgent(10) == 4  # records of ended jobs
    assert spool.last_record(f"{3:016x}", "GPU-1") == write_state.record(3, 4, final=False, device="GPU-1")
    assert spool.last_host(f"{2:016x}") == write_state.host(2, 4, final=False)
    assert spool.last_run(write_state.T0) == write_state.RUN
    assert spool.next_job_id(0) == write_state.T0 + 1
    spool.close()


def test_the_previous_release_continues_our_spool_and_we_its(tmp_path: Path, before: Path) -> None:
    directory = tmp_path / "spool"
    write_state.write_spool(directory)
    read = json.loads(run(before, "-c", READ, str(directory)))
    assert (read["version"], read["is_whole"], read["open"]) == (BEFORE, True, [2, 3])
    assert len(read["waiting"]) == 7
    assert read["wires"][f"record/{1:016x}/GPU-0"] == as_of_wire_1(
        write_state.record(1, 9, final=True).to_wire()
    )
    assert read["last"] == as_of_wire_1(write_state.record(2, 4, final=False).to_wire())
    spool = Spool(directory)
    assert spool.is_whole
    assert len(spool.queue) == 8  # and its later records
    assert len(spool.allocations()) == 2
    spool.close()


def test_a_spool_contains_its_format_and_version(tmp_path: Path) -> None:
    Spool(tmp_path).close()
    journal = DurableMap(tmp_path)
    assert journal.get("format") == {"format": FORMAT, "version": __version__}
    journal.close()


def test_a_spool_in_a_newer_format_is_refused_with_advice(tmp_path: Path) -> None:
    journal = DurableMap(tmp_path)
    journal.put("format", {"format": FORMAT + 1, "version": "9.9.0"})
    journal.put("record/1/GPU-0", {"in": "another form"})
    journal.commit()
    journal.close()
    before = (tmp_path / "log").read_bytes()
    for _ in range(2):  # the lock is released
        with pytest.raises(
            NewerSpoolError, match=r"slurm-gpud 9\.9\.0 wrote this in format 2.*install 9\.9\.0"
        ):
            Spool(tmp_path)
    assert (tmp_path / "log").read_bytes() == before


def test_unknown_keys_of_a_spool_are_kept(tmp_path: Path) -> None:
    journal = DurableMap(tmp_path)
    journal.put("step/1/0/3", {"phases": [1, 2]})
    journal.commit()
    journal.close()
    spool = Spool(tmp_path)
    for seq in range(3000):  # until the log is rewritten
        spool.save_record(write_state.record(1, seq, final=False))
        spool.commit()
    spool.close()
    assert (tmp_path / "log").stat().st_size < 2 << 20
    journal = DurableMap(tmp_path)
    assert journal.get("step/1/0/3") == {"phases": [1, 2]}
    journal.close()


# On the controller


@pytest.mark.parametrize("release", RELEASES)
def test_a_policy_applied_by_an_older_release_can_be_rolled_back(release: str) -> None:
    (entry,) = PolicyJournal(DATA / release / "policy").entries()
    assert (entry.state, entry.cluster, entry.at) == (ApplyState.DONE, "lab", "2026-05-28 20:26:40 UTC")


def test_an_apply_of_a_newer_form_is_named_and_not_guessed_at(tmp_path: Path) -> None:
    (file,) = (DATA / "0.1.0" / "policy").iterdir()
    newer = json.loads(file.read_text()) | {"version": 2}
    (tmp_path / file.name).write_text(json.dumps(newer))
    with pytest.raises(OutsideError, match=r"was written by another version of slurm-gpu \(2\)"):
        PolicyJournal(tmp_path).entries()


def test_a_snapshot_of_another_form_is_none_and_lines_of_the_future_are_passed_over(tmp_path: Path) -> None:
    snapshot = Snapshot(generation=7, as_of_s=1000, groups_id="g", usage=Usage({}, {}))
    text = render(snapshot)
    head, *rest = text.splitlines(keepends=True)
    assert parse("".join([head, "mood good\n", *rest])) == parse(text)
    path = tmp_path / "snapshot.txt"
    path.write_text(text)
    assert read_fresh(path, 1000.0) == parse(text)
    path.write_text(text.replace("slurm-gpu-snapshot 1", "slurm-gpu-snapshot 2"))
    assert read_fresh(path, 1000.0) is None
