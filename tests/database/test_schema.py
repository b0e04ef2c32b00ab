import gc
import json
import os
import pwd
import ssl
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import alembic.command
import pymysql
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, select, text

from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.writer import read_record
from slurm_gpu.database.reservations.store import find
from slurm_gpu.database.storage import engine as engine_module
from slurm_gpu.database.storage.engine import Database, UnusableDatabaseError, head_revision
from slurm_gpu.database.storage.schema import device, metadata, run, run_device
from slurm_gpu.database.storage.upgrade import upgrade_database
from slurm_gpu.errors import DatabaseError
from slurm_gpu.wire import DeviceFacts, Mean
from slurm_gpu.wire.record import as_of_wire_1
from tests.database.samples import CLUSTER, T0, gpu, record, row


def test_migrations_make_the_tables_that_queries_expect(fresh_database: Database) -> None:
    with fresh_database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_upgrade_may_be_run_again(url: str) -> None:
    assert upgrade_database(url).after == upgrade_database(url).after == head_revision()


def test_each_step_of_an_upgrade_can_be_repeated(url: str) -> None:
    """Repeat each step, because MariaDB keeps its tables if it is killed before it records the new schema."""
    database = Database(url)
    if database.is_sqlite:
        Path(str(database.url.database)).parent.mkdir()
    script = ScriptDirectory.from_config(engine_module._alembic(None))
    steps = [one.revision for one in reversed(list(script.walk_revisions()))]
    with database.engine.connect() as connection:
        for before, step in pairwise(steps):
            for _ in range(2):
                alembic.command.upgrade(engine_module._alembic(connection), step)
                connection.execute(text(f"UPDATE alembic_version SET version_num = '{before}'"))
                connection.commit()
            alembic.command.upgrade(engine_module._alembic(connection), step)
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    database.dispose()


def test_an_upgrade_keeps_what_an_older_version_stored(url: str) -> None:
    database = Database(url)
    if database.is_sqlite:
        Path(str(database.url.database)).parent.mkdir()
    with database.engine.connect() as connection:
        alembic.command.upgrade(engine_module._alembic(connection), "0001")
    old = MetaData()
    old.reflect(database.engine)
    sent = record(power_w=Mean(10.0, 250.0, 100.0, 300.0), throttle_s={"sw_power_cap": 1.5})
    wire = as_of_wire_1(sent.to_wire())
    columns = {name: wire.pop(name) for name in set(wire) & set(old.tables["run_device"].columns.keys())}
    texts = {"statistics": json.dumps(wire), "util_hist_ms": json.dumps(columns.pop("util_hist_ms"))}
    imported = run_row(row(), {})._asdict()
    del imported["requested_mgpu"]
    imported |= {name: json.dumps(imported[name]) for name in ("tres_requested", "tres_allocated")}
    with database.engine.begin() as connection:
        connection.execute(old.tables["run"].insert(), {**imported, "derive_due": True})
        connection.execute(old.tables["run_device"].insert(), {**columns, **texts, "match_due": True})
    database.upgrade()
    assert database.schema() == head_revision()
    assert reconcile(database) == 1
    with database.reading() as connection:
        stored = connection.execute(select(run_device)).mappings().one()
        assert read_record(stored) == sent
        shown = connection.execute(select(run)).mappings().one()
        assert (shown["ugpucore"], shown["app"], shown["name"]) == (40.0, None, "train")
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    database.dispose()


def test_an_upgrade_keeps_which_devices_a_node_has(url: str) -> None:
    database = Database(url)
    if database.is_sqlite:
        Path(str(database.url.database)).parent.mkdir()
    with database.engine.connect() as connection:
        alembic.command.upgrade(engine_module._alembic(connection), "0002")
    old = MetaData()
    old.reflect(database.engine)
    with database.engine.begin() as connection:
        connection.execute(old.tables["device"].insert(), gpu().to_wire())
    database.upgrade()
    with database.reading() as connection:
        (stored,) = connection.execute(select(device)).mappings()
        assert DeviceFacts.from_wire(dict(stored)) == gpu()
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    database.dispose()


def test_an_upgrade_counts_the_requested_gpus_of_runs(url: str) -> None:
    database = Database(url)
    if database.is_sqlite:
        Path(str(database.url.database)).parent.mkdir()
    with database.engine.connect() as connection:
        alembic.command.upgrade(engine_module._alembic(connection), "0014")
    old = MetaData()
    old.reflect(database.engine)
    asked: dict[str, int | None] = {
        "{}": None,
        '{"cpu": 1}': 0,
        '{"cpu": 1, "gres/gpu": 2, "gres/gpu:a100": 2}': 2000,
        '{"gres/gpu:a100": 4, "gres/gpu:v100": 4}': 8000,
        '{"gres/shard": 2}': None,
        '{"gres/mps": 50}': None,
    }
    imported = run_row(row(), {})._asdict() | {"tres_allocated": "{}", "derive_due": True}
    del imported["requested_mgpu"]
    with database.engine.begin() as connection:
        for n, tres in enumerate(asked):
            connection.execute(old.tables["run"].insert(), imported | {"job_id": n, "tres_requested": tres})
    database.upgrade()
    with database.reading() as connection:
        found = connection.execute(select(run.c.requested_mgpu).order_by(run.c.job_id)).scalars().all()
        assert found == list(asked.values())
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    database.dispose()


def test_an_upgrade_gives_a_reservation_its_uid_where_the_users_runs_leave_no_doubt(url: str) -> None:
    database = Database(url)
    if database.is_sqlite:
        Path(str(database.url.database)).parent.mkdir()
    with database.engine.connect() as connection:
        alembic.command.upgrade(engine_module._alembic(connection), "0012")
    old = MetaData()
    old.reflect(database.engine)
    runs = [("one", 1001), ("one", 1001), ("one", None), ("two", 1002), ("two", 1003), ("unknown", None)]
    asked = {
        "cluster": CLUSTER,
        "account": "a",
        "partition": "p",
        "gpus": 8,
        "n_nodes": 1,
        "duration_s": 60,
        "earliest_s": T0,
        "why": "w",
        "state": "requested",
        "requested_s": T0,
    }
    with database.engine.begin() as connection:
        for number, (user, uid) in enumerate(runs, 1):
            imported = run_row(row(job_id=number, user=user, uid=uid), {})._asdict()
            imported |= {name: json.dumps(imported[name]) for name in ("tres_requested", "tres_allocated")}
            connection.execute(old.tables["run"].insert(), {**imported, "derive_due": True})
        for user in ("one", "two", "unknown", "never"):
            connection.execute(old.tables["reservation"].insert(), {**asked, "user": user})
    database.upgrade()
    with database.reading() as connection:
        found = {one.user: one.uid for one in find(connection, CLUSTER, 0, [])}
    assert found == {"one": 1001, "two": None, "unknown": None, "never": None}
    database.dispose()


def test_an_upgrade_gives_runs_of_machines_without_slurm_the_uid_of_their_users_name(url: str) -> None:
    database = Database(url)
    if database.is_sqlite:
        Path(str(database.url.database)).parent.mkdir()
    with database.engine.connect() as connection:
        alembic.command.upgrade(engine_module._alembic(connection), "0013")
    old = MetaData()
    old.reflect(database.engine)
    with database.engine.begin() as connection:
        runs = [("host:ws1", "daemon"), ("host:ws1", "no-such-user"), (CLUSTER, "daemon")]
        for number, (cluster, user) in enumerate(runs, 1):
            given = row(cluster=cluster, job_id=number, user=user, uid=None)
            imported = run_row(given, {})._asdict()
            imported |= {name: json.dumps(imported[name]) for name in ("tres_requested", "tres_allocated")}
            connection.execute(old.tables["run"].insert(), {**imported, "derive_due": True})
    database.upgrade()
    with database.reading() as connection:
        found = dict(map(tuple, connection.execute(select(run.c.job_id, run.c.uid))))
    assert found == {1: pwd.getpwnam("daemon").pw_uid, 2: None, 3: None}
    database.dispose()


def test_a_database_of_a_newer_version_is_refused(fresh_database: Database) -> None:
    with fresh_database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(UnusableDatabaseError, match=r"schema 9999, made by a newer slurm-gpu"):
        fresh_database.upgrade()


def test_the_chain_of_migrations_has_one_end() -> None:
    scripts = ScriptDirectory.from_config(engine_module._alembic(None))
    assert len(scripts.get_heads()) == 1
    assert len(list(scripts.walk_revisions())) == len(list((Path(scripts.dir) / "versions").glob("0*.py")))


def test_migrations_import_no_code_that_may_change_after_them() -> None:
    folder = Path(ScriptDirectory.from_config(engine_module._alembic(None)).dir)
    files = [*folder.glob("*.py"), *(folder / "versions").glob("*.py")]
    assert len(files) > 15
    lines = [line.split() for file in files for line in file.read_text().splitlines()]
    assert [
        line for line in lines if line[:1] in (["from"], ["import"]) and line[1].startswith("slurm_gpu")
    ] == []


def test_sqlite_is_made_in_a_private_folder(tmp_path: Path) -> None:
    upgrade_database(f"sqlite:///{tmp_path / 'new' / 'x.db'}")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


@pytest.mark.parametrize("password", ["p@ss", "p@ss/w0rd", "p/ss@w0rd", "@/@"])
def test_a_password_with_address_characters_is_recognised_and_not_shown(password: str) -> None:
    """Test an @ in a password: the text after it would appear as a host name in the log and in doctor."""
    with pytest.raises(UnusableDatabaseError, match="other characters as %XX") as raised:
        Database(f"mysql+pymysql://slurm_gpu:{password}@localhost/slurm_gpu")
    assert "w0rd" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql+pymysql://slurm_gpu:pw@localhost", "the database name is missing"),
        ("mysql+pymysql://slurm_gpu:pw@localhost/?unix_socket=/run/mysqld/mysqld.sock", "name is missing"),
        (
            "mysql+nodriver://slurm_gpu:pw@localhost/slurm_gpu",
            r"write mysql\+pymysql:// instead of mysql\+nod",
        ),
        ("mysql://slurm_gpu:pw@localhost/slurm_gpu", r"write mysql\+pymysql:// instead of mysql://"),
        ("sqlite:///var/lib/slurm-gpu/slurm-gpu.db", "four slashes, as in sqlite:////var/"),
    ],
)
def test_other_missing_parts_of_an_address_are_reported(url: str, said: str) -> None:
    with pytest.raises(UnusableDatabaseError, match=rf"^url in slurm-gpudbd\.yaml: .*{said}"):
        Database(url)


@pytest.mark.parametrize("url", ["", "nonsense", "postgresql://x/y", "sqlite://", "mysql+nodriver://x/y"])
def test_an_invalid_url_is_an_error_with_advice(url: str) -> None:
    with pytest.raises(UnusableDatabaseError, match=r"^url in slurm-gpudbd\.yaml: ") as raised:
        Database(url)
    assert raised.value.exit_code == 2  # systemd does not start slurm-gpudbd again


# PyMySQL leaves the Unix socket of a failed connection to the garbage collector.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("url", "reads_authorities"),
    [
        ("mysql+pymysql://me@localhost/x?unix_socket=/nowhere/mysqld.sock", False),
        ("mysql+pymysql://me@localhost/x?unix_socket=/nowhere/mysqld.sock&ssl_verify_cert=true", True),
        ("mysql+pymysql://me@127.0.0.1:1/x", True),
    ],
)
def test_whom_to_trust_over_tls_is_no_matter_on_a_unix_socket(
    url: str, reads_authorities: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    make = ssl.create_default_context

    def noted(*given: Any, **named: Any) -> ssl.SSLContext:
        asked.append(given)
        return make(*given, **named)

    monkeypatch.setattr(ssl, "create_default_context", noted)
    with pytest.raises(DatabaseError, match="the database does not answer"), Database(url).reading():
        pass
    assert bool(asked) is reads_authorities
    gc.collect()


@pytest.mark.parametrize(
    ("code", "waiting_helps"), [(1045, False), (1044, False), (1049, False), (2003, True)]
)
def test_waiting_helps_with_an_unreachable_database_but_not_with_a_wrong_password(
    monkeypatch: pytest.MonkeyPatch, code: int, waiting_helps: bool
) -> None:
    def connect(**_: object) -> None:
        raise pymysql.err.OperationalError(code, "reason")

    answer = "does not answer: .*reason" if waiting_helps else "refuses slurm-gpudbd: .*reason.*check user"
    monkeypatch.setattr(pymysql, "connect", connect)
    with pytest.raises(DatabaseError, match=answer) as error:
        Database("mysql+pymysql://slurm_gpu:secret@localhost/slurm_gpu").server()
    assert isinstance(error.value, UnusableDatabaseError) is not waiting_helps


@pytest.mark.parametrize("has_directory", [True, False])
def test_the_file_of_sqlite_is_named_with_its_owners(tmp_path: Path, has_directory: bool) -> None:
    path = tmp_path / "new" / "slurm-gpu.db"
    if has_directory:
        path.mkdir(parents=True)  # SQLite cannot open a directory
    me = pwd.getpwuid(os.geteuid()).pw_name
    with pytest.raises(DatabaseError) as error, Database(f"sqlite:///{path}").reading():
        pass
    named = f"{path} belongs to {me}, {path.parent} belongs to {me}" if has_directory else str(path)
    assert str(error.value) == (
        f"the database does not answer: unable to open database file ({named}; this process runs as {me})"
    )


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("localhost/slurm_gpu?unix_socket=/nosuch/mysqld.sock", "unix_socket=/nosuch/mysqld.sock"),
        ("127.0.0.1:1/slurm_gpu", "127.0.0.1:1"),
    ],
)
def test_the_address_of_mariadb_is_named_with_its_key(
    monkeypatch: pytest.MonkeyPatch, host: str, named: str
) -> None:
    def connect(**_: object) -> None:
        raise pymysql.err.OperationalError(2003, "Can't connect to MySQL server on 'localhost'")

    monkeypatch.setattr(pymysql, "connect", connect)
    with (
        pytest.raises(DatabaseError, match="the database does not answer: ") as error,
        Database(f"mysql+pymysql://slurm_gpu:secret@{host}").reading(),
    ):
        pass
    assert str(error.value).endswith(f" ({named} is from url in slurm-gpudbd.yaml)")
