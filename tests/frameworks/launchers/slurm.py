# SPDX-License-Identifier: Apache-2.0
"""A Slurm of this user's own, of one node, in a folder: its two daemons, without authentication, on ports of
this machine that are free. It ends with the `with` block."""
import contextlib
import os
import shutil
import socket
import subprocess
import time

PROGRAMS = ("slurmctld", "slurmd", "srun")
START_SECONDS = 30

SETTINGS = """ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/daemon.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/daemon.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES OverSubscribe=YES
"""


def find(program):
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def is_installed():
    return all(find(program) for program in PROGRAMS)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def write_settings(folder):
    controller, daemon = free_ports(2)
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        os.makedirs(os.path.join(folder, name))
    path = os.path.join(folder, "slurm.conf")
    user = subprocess.run(["id", "-un"], check=True, capture_output=True, text=True).stdout.strip()
    with open(path, "w", encoding="utf-8") as file:
        file.write(SETTINGS.format(host=host, controller=controller, daemon=daemon, user=user, folder=folder))
    return path, host


def is_ready(environment):
    done = subprocess.run([find("srun"), "-n", "1", "true"], env=environment, stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=START_SECONDS, check=False)
    return done.returncode == 0


@contextlib.contextmanager
def cluster(folder):
    """The environment in which srun finds the cluster; None when it does not start."""
    path, host = write_settings(folder)
    # The daemons hand their own environment to nobody, but must not themselves be under the preload.
    environment = dict(os.environ, SLURM_CONF=path)
    daemons = []
    try:
        for command in ([find("slurmctld"), "-D", "-f", path], [find("slurmd"), "-D", "-f", path, "-N", host]):
            daemons.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        end = time.monotonic() + START_SECONDS
        ready = False
        while not ready and time.monotonic() < end and all(daemon.poll() is None for daemon in daemons):
            with contextlib.suppress(subprocess.TimeoutExpired):
                ready = is_ready(environment)
            time.sleep(0.0 if ready else 0.2)
        yield {"SLURM_CONF": path} if ready else None
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
