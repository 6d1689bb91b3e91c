"""A SLURM of one node, from the packages slurm-wlm and munge, in a folder of its own; needs root.

python tests/slurm_node.py    until Ctrl-C; it says what to set so that `sbatch` and the others find it
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
DEADLINE = 120.0

# No cgroups and no systemd. More processors than there are, so that jobs need not wait for each other. A requeued job
# starts when its old credential has expired, normally after two minutes. `low` and `graceful` are preempted for `high`.
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=5
ReturnToService=2
KillWait=10
OverTimeLimit=0
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES PriorityTier=1 GraceTime=0
PartitionName=graceful Nodes={host} PriorityTier=1 GraceTime=60
PartitionName=high Nodes={host} PriorityTier=2 PreemptMode=OFF
"""


def why_not() -> str | None:
    """Why it cannot be started here; None if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "slurmctld and slurmd are started as root"


@contextmanager
def slurm_node() -> Iterator[dict[str, str]]:
    """The daemons, up and ready; yields the variables that `sbatch` and the others need."""
    with tempfile.TemporaryDirectory(prefix="slurm") as name, ExitStack() as stack:  # short, as a socket's path must be
        folder = Path(name)
        folder.chmod(0o755)
        variables = {"SLURM_CONF": str(_write_config(folder))}
        for command in _daemons(folder):
            log = stack.enter_context(open(folder / f"{command[0]}.out", "wb"))
            daemon = subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=log)
            stack.callback(_stop, daemon)
        stack.callback(_cancel_all, variables)
        _wait(lambda: _output(["sinfo", "-h", "-o", "%T"], variables) == "idle", folder)
        yield variables


def _write_config(folder: Path) -> Path:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    ports = {name: _free_port() for name in ("controller_port", "node_port")}
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, folder=folder, **ports))
    return folder / "slurm.conf"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _daemons(folder: Path) -> list[list[str]]:
    """In the foreground: children of ours, which cannot be mistaken for those of another SLURM."""
    files = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
    munged = ["munged", "--foreground", *(f"--{flag}={folder}/munge.{end}" for flag, end in files.items())]
    return [munged, ["slurmctld", "-D"], ["slurmd", "-D"]]


def _output(command: list[str], variables: dict[str, str]) -> str:
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    return done.stdout.strip()


def _wait(ready: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + DEADLINE
    while not ready():
        if time.monotonic() > end:
            logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(folder.glob("*.out")))
            raise TimeoutError(f"SLURM is not up after {DEADLINE:.0f} s:\n{logs}")
        time.sleep(0.2)


def _cancel_all(variables: dict[str, str]) -> None:
    """Jobs outlive the daemons that started them."""
    _output(["scancel", "--signal=KILL", "--full", "--user=root"], variables)
    _output(["scancel", "--user=root"], variables)
    end = time.monotonic() + DEADLINE
    while _output(["squeue", "--noheader"], variables) and time.monotonic() < end:
        time.sleep(0.2)


def _stop(daemon: subprocess.Popen) -> None:
    daemon.terminate()
    try:
        daemon.wait(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


if __name__ == "__main__":
    if reason := why_not():
        sys.exit(reason)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with slurm_node() as variables, suppress(KeyboardInterrupt):
        print("\n".join(f"export {name}={value}" for name, value in variables.items()), flush=True)
        signal.pause()
