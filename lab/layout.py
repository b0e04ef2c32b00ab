"""The paths and ports of the lab: one directory, one directory of devices, one range of ports."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DIRECTORY_VARIABLE = "SLURM_GPU_LAB_DIR"
PORT_VARIABLE = "SLURM_GPU_LAB_PORT"
# The lab sets this variable in the environment of every process that it starts, so that down() finds them.
# ``lab/env`` does not print the variable: the lab must not kill an editor started from a user's shell.
TAG_VARIABLE = "SLURM_GPU_LAB_TAG"

# If this variable is set to any value, the lab runs slurm-gpu from installed packages, not from the checkout.
INSTALLED_VARIABLE = "SLURM_GPU_LAB_INSTALLED"

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class NodePaths:
    """Files of one simulated node."""

    root: Path
    devices: Path

    @property
    def spool(self) -> Path:
        """The spool directory of slurmd."""
        return self.root / "spool"

    @property
    def run(self) -> Path:
        """The counterpart of /run/slurm-gpu on a real node."""
        return self.root / "run"

    @property
    def hook_events(self) -> Path:
        """The directory of the event files of prolog and epilog."""
        return self.run / "jobs"

    @property
    def state(self) -> Path:
        """The counterpart of /var/lib/slurm-gpu on a real node."""
        return self.root / "state"

    @property
    def world(self) -> Path:
        """The file with the state of the node's simulated GPUs."""
        return self.root / "gpus.world"

    @property
    def mig_minors(self) -> Path:
        """The counterpart of /proc/driver/nvidia-caps/mig-minors on a real node; exists only with MIG."""
        return self.root / "mig-minors"


@dataclass(frozen=True)
class Layout:
    """Paths and ports of one lab; derived paths are properties, and no path is created here."""

    root: Path = Path("/run/slurm-gpu-lab")
    devices: Path = Path("/dev/slurm-gpu-lab")
    port: int = 17000

    @classmethod
    def from_environment(cls) -> Layout:
        """Return the layout that the environment sets, by default with the port of the running lab."""
        root = Path(os.environ.get(DIRECTORY_VARIABLE, str(cls.root))).absolute()
        port = os.environ.get(PORT_VARIABLE)
        if port is None and (saved := cls(root).port_file).exists():
            port = saved.read_text()
        return cls(root, port=cls.port if port is None else int(port))

    def node(self, name: str) -> NodePaths:
        """Return the paths of node ``name``."""
        return NodePaths(self.root / "nodes" / name, self.devices / name)

    # Directories

    @property
    def etc(self) -> Path:
        """The configuration directory: the lab's /etc/slurm and /etc/slurm-gpu in one."""
        return self.root / "etc"

    @property
    def bin(self) -> Path:
        """The directory of commands that ``lab/env`` puts first in PATH."""
        return self.root / "bin"

    @property
    def lib(self) -> Path:
        """The directory of the simulated libnvidia-ml.so.1."""
        return self.root / "lib"

    @property
    def log(self) -> Path:
        """The directory with one log file per daemon."""
        return self.root / "log"

    @property
    def pids(self) -> Path:
        """The directory with the process ID and start time of each daemon, one file per daemon."""
        return self.root / "pids"

    @property
    def home(self) -> Path:
        """The parent of the home directories of the lab's users."""
        return self.root / "home"

    @property
    def truth(self) -> Path:
        """The directory in which simgpu records the true use of GPUs by simulated jobs."""
        return self.root / "truth"

    @property
    def stamps(self) -> Path:
        """The directory in which the lab's own hooks record the allocation times of each job."""
        return self.root / "stamps"

    @property
    def munge(self) -> Path:
        """The directory with the key, socket and seed of the lab's munged."""
        return self.root / "munge"

    @property
    def mariadb(self) -> Path:
        """The directory with the data, socket and configuration of the lab's MariaDB."""
        return self.root / "mariadb"

    @property
    def slurmctld(self) -> Path:
        """The state directory of slurmctld."""
        return self.root / "slurmctld"

    @property
    def database(self) -> Path:
        """The directory with slurm-gpudbd's sockets and state."""
        return self.root / "slurm-gpudbd"

    @property
    def database_world(self) -> Path:
        """The file with the clock setting of slurm-gpudbd's host (lab/clocks.py)."""
        return self.root / "slurm-gpudbd.world"

    @property
    def controller_run(self) -> Path:
        """The counterpart of /run/slurm-gpu on a real controller."""
        return self.root / "run"

    @property
    def policy_state(self) -> Path:
        """The directory in which `slurm-gpu policy apply` keeps replaced scripts."""
        return self.root / "policy"

    # Files

    @property
    def slurm_conf(self) -> Path:
        """The path of slurm.conf, to which SLURM_CONF is set."""
        return self.etc / "slurm.conf"

    @property
    def site_file(self) -> Path:
        """The site file of slurm-gpu."""
        return self.etc / "slurm-gpu.yaml"

    @property
    def database_file(self) -> Path:
        """The file with slurm-gpudbd's database URL, mode 0600."""
        return self.etc / "slurm-gpudbd.yaml"

    @property
    def web_file(self) -> Path:
        """The configuration file of slurm-gpuweb, mode 0600."""
        return self.etc / "slurm-gpuweb.yaml"

    @property
    def policy_file(self) -> Path:
        """The policy that the lab applies."""
        return self.etc / "policy.yaml"

    @property
    def munge_socket(self) -> Path:
        """Socket of the lab's munged."""
        return self.munge / "munge.socket"

    @property
    def mariadb_socket(self) -> Path:
        """Socket of the lab's MariaDB."""
        return self.mariadb / "mariadb.sock"

    @property
    def database_socket(self) -> Path:
        """Unix socket of slurm-gpudbd."""
        return self.database / "slurm-gpudbd.sock"

    @property
    def options_file(self) -> Path:
        """The file with the options of the running lab."""
        return self.root / "options.json"

    @property
    def port_file(self) -> Path:
        """The file with the first port of the running lab."""
        return self.root / "port"

    @property
    def associations_file(self) -> Path:
        """The file of Slurm's accounts and users that sacctmgr loads."""
        return self.etc / "associations.cfg"

    @property
    def finished_file(self) -> Path:
        """The file that up() creates once it has succeeded."""
        return self.root / "up.finished"

    # Ports

    @property
    def slurmctld_port(self) -> int:
        """Port of slurmctld."""
        return self.port + 1

    @property
    def slurmdbd_port(self) -> int:
        """Port of slurmdbd."""
        return self.port + 2

    @property
    def mariadb_port(self) -> int:
        """The port of MariaDB; slurmdbd has no option for a Unix socket."""
        return self.port + 3

    @property
    def database_port(self) -> int:
        """Port of slurm-gpudbd."""
        return self.port + 4

    @property
    def web_port(self) -> int:
        """Port of slurm-gpuweb."""
        return self.port + 5

    def slurmd_port(self, node_number: int) -> int:
        """Port of the slurmd of node ``node_number`` (1, 2, …)."""
        return self.port + 10 + node_number
