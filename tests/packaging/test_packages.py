"""The packages of `make rpm` have the right parts, requirements and content, and builds are reproducible."""

import hashlib
import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.packaging.conftest import PARTS, ROOT, Built

pytestmark = [pytest.mark.lab, pytest.mark.long]


def _query(package: Path, *options: str) -> list[str]:
    command = ["rpm", "-qp", "--nosignature", *options, package]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def _provided_libraries(package: Path) -> set[str]:
    return {
        line.partition("(python3dist(")[2].partition(")")[0]
        for line in _query(package, "--provides")
        if line.startswith("bundled(")
    }


def test_there_is_a_source_package_and_each_part_for_each_architecture(built: Built) -> None:
    architectures = {path.name.rsplit(".", 2)[1] for path in built.directory.glob("*.rpm")}
    assert architectures == {"src", "x86_64", "aarch64", "noarch"}
    for arch in ("x86_64", "aarch64"):
        assert len({built.package(part, arch) for part in PARTS}) == len(PARTS) == 8


def test_a_node_gets_pynvml_and_pyyaml_and_nothing_else_of_others(built: Built) -> None:
    node, common = built.package("-node"), built.package("")
    assert _provided_libraries(node) == {"nvidia-ml-py"}
    assert _provided_libraries(common) == {"pyyaml"}
    carried = {
        line.removeprefix("/usr/lib64/slurm-gpu/").split("/")[1]
        for line in [*_query(node, "--list"), *_query(common, "--list")]
        if line.startswith("/usr/lib64/slurm-gpu/") and line.count("/") > 4
    }
    modules = {name for name in carried if not name.endswith(".dist-info")}
    assert modules == {"slurm_gpu", "yaml", "_yaml", "pynvml.py", "__pycache__"}


def test_the_build_prints_the_size_and_the_files_of_the_node_package(built: Built) -> None:
    assert all(line in built.printed for line in _query(built.package("-node"), "--list"))
    size = _query(built.package("-node", "x86_64"), "--queryformat", "%{SIZE} bytes\n")[0]
    assert size in built.printed


def test_packages_need_each_other_in_the_same_version_and_python_and_munge(built: Built) -> None:
    version = _query(built.package(""), "--queryformat", "%{VERSION}-%{RELEASE}\n")[0]
    for part in PARTS[1:]:
        assert any(
            line.startswith("slurm-gpu") and line.endswith(f" = {version}") and "client" not in line
            for line in _query(built.package(part), "--requires")
        )
    needed = _query(built.package(""), "--requires")
    assert "python3.11" in needed
    assert "libmunge.so.2()(64bit)" in needed
    for part in (
        "-db",
        "-controller",
        "-web",
    ):  # these packages create SlurmUser before they install files that belong to this user
        assert "shadow-utils" in _query(built.package(part), "--requires")


def test_numpy_comes_with_the_database_and_a_controller_recommends_that(built: Built) -> None:
    assert "numpy" in _provided_libraries(built.package("-db"))
    assert "slurm-gpu-db" in _query(built.package("-controller"), "--recommends")
    assert not any("slurm-gpu-db" in line for line in _query(built.package("-controller"), "--requires"))
    learned = _provided_libraries(built.package("-learn"))
    assert {"scikit-learn", "scipy"} <= learned
    assert "numpy" not in learned


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_compiled_code_is_for_the_architecture(built: Built, arch: str, tmp_path: Path) -> None:
    machine = {"x86_64": 62, "aarch64": 183}[arch]  # e_machine of elf(5)
    for part in ("", "-node", "-client", "-db", "-web", "-report", "-learn"):
        _unpack(built.package(part, arch), tmp_path / part.strip("-"))
    found = {path: path.read_bytes()[18] for path in tmp_path.rglob("*.so")}
    assert len(found) > 4
    assert set(found.values()) == {machine}


def test_python_finds_compiled_code_that_fits_and_names_its_place(built: Built, tmp_path: Path) -> None:
    for part in ("", "-node"):
        _unpack(built.package(part), tmp_path)
    carried = tmp_path / "usr/lib64/slurm-gpu"
    for source in carried.rglob("*.py"):
        compiled = source.parent / "__pycache__" / f"{source.stem}.cpython-311.pyc"
        head = compiled.read_bytes()[:16]
        assert int.from_bytes(head[4:8], "little") == 0, "Python must compare times, as it does by default"
        assert int.from_bytes(head[8:12], "little") == int(source.stat().st_mtime), source
        assert int.from_bytes(head[12:16], "little") == source.stat().st_size, source
        assert str(ROOT).encode() not in compiled.read_bytes()
    (units,) = carried.rglob("units.cpython-311.pyc")
    assert b"/usr/lib64/slurm-gpu/common/slurm_gpu/text/units.py" in units.read_bytes()


def test_every_command_and_file_has_its_manual_page(built: Built) -> None:
    files = [file for package in built.packages for file in _query(package, "--list")]
    pages = {file.rpartition("/")[2] for file in files if file.startswith("/usr/share/man/man")}
    for file in files:
        if file.startswith("/usr/bin/"):
            assert f"{Path(file).name}.1.gz" in pages
        elif file.startswith("/usr/sbin/"):
            assert f"{Path(file).name}.8.gz" in pages
        elif file.startswith("/etc/slurm-gpu/") and not file.endswith("applications.yaml"):
            assert f"{Path(file).name}.5.gz" in pages


def test_a_password_file_is_the_daemons_alone_and_the_rest_is_for_all_to_read(built: Built) -> None:
    for package in built.packages:
        for line in _query(package, "--queryformat", "[%{FILEMODES:perms} %{FILEUSERNAME} %{FILENAMES}\n]"):
            mode, user, name = line.split(" ", 2)
            if name == "/etc/slurm-gpu/slurm-gpudbd.yaml":
                assert (mode, user) == ("-rw-------", "slurm")
            elif name == "/etc/slurm-gpu/slurm-gpuweb.yaml":
                assert (mode, user) == ("-rw-------", "slurm-gpu-web")
            else:
                assert mode[7] == "r" or mode[0] == "l", line
                assert mode[8] != "w", line


def test_configuration_files_are_kept_by_upgrades(built: Built) -> None:
    configured = {
        name
        for package in built.packages
        for name in _query(package, "--configfiles")
        if name.startswith("/etc/slurm-gpu/")
    }
    assert configured == {
        f"/etc/slurm-gpu/{name}.yaml"
        for name in ("slurm-gpu", "applications", "slurm-gpudbd", "slurm-gpuweb", "policy")
    }
    for package in built.packages:
        for line in _query(package, "--queryformat", "[%{FILEFLAGS:fflags} %{FILENAMES}\n]"):
            if line.partition(" ")[2] in configured:
                assert "n" in line.partition(" ")[0], f"{line} is not noreplace"


def test_the_source_package_rebuilds_with_no_network_to_the_same_bytes(built: Built, tmp_path: Path) -> None:
    stamp = _query(built.source, "--queryformat", "%{BUILDTIME}\n")[0]
    define = [f"--define=_topdir {tmp_path}", f"--define=_dbpath {tmp_path}/db", "--define=dist .el9"]
    command = [
        "nice",
        "unshare",
        "--net",
        "rpmbuild",
        "--quiet",
        "--nodeps",
        "--rebuild",
        *define,
        built.source,
    ]
    environment = os.environ | {"SOURCE_DATE_EPOCH": stamp}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert _digests(list(tmp_path.rglob("slurm-gpu*.rpm"))) == _digests(built.packages)


def _digests(packages: list[Path]) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in packages}


def test_rpmlint_finds_nothing(built: Built) -> None:
    config = ROOT / "packaging/rpm/rpmlint.toml"
    packages = sorted(built.directory.glob("*.rpm"))
    done = subprocess.run(
        ["rpmlint", "--config", config, *packages], capture_output=True, text=True, check=False
    )
    assert "0 errors, 0 warnings" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def _unpack(package: Path, into: Path) -> None:
    into.mkdir(exist_ok=True)
    with subprocess.Popen(["rpm2cpio", package], stdout=subprocess.PIPE) as archive:
        subprocess.run(
            ["cpio", "--extract", "--make-directories", "--preserve-modification-time", "--quiet"],
            stdin=archive.stdout,
            cwd=into,
            check=True,
        )
    for path in into.rglob("*"):
        if path.is_file():
            path.chmod(path.stat().st_mode | stat.S_IRUSR)
