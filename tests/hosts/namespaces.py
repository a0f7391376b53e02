# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Hosts made of Linux namespaces on this machine."""
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid

TOOLS = ("unshare", "nsenter", "ip", "tc", "mount", "hostname")
libc = ctypes.CDLL(None)


def reason_against():
    """Returns why hosts cannot be made here, or nothing."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"there is no {' and no '.join(absent)} (packages util-linux, iproute2, mount, hostname)"
    tried = "mount -t tmpfs none /dev/shm && ip link add switch type bridge && ip link add one type veth peer name two"
    done = subprocess.run(["unshare", "-n", "-u", "-m", "--propagation", "private", "sh", "-c", tried], capture_output=True,
                          text=True, check=False, stdin=subprocess.DEVNULL)
    return f"namespaces are not permitted here ({done.stderr.strip()})" if done.returncode else None


class Hosts:
    """node1 … nodeN (10.77.0.1 …) and a switch between them. Each has its own network, host name, /etc/hosts, boot id and
    /dev/shm; files and process ids are this machine's. All of it ends with this process."""

    def __init__(self, count, megabits=1000):
        self.names = [f"node{number + 1}" for number in range(count)]
        self.folder = tempfile.mkdtemp()
        self.holders = {"switch": self.hold("-n", "true")}
        self.enter("switch", "ip link add switch type bridge && ip link set switch up")
        with open(os.path.join(self.folder, "hosts"), "w", encoding="utf-8") as file:
            file.write("127.0.0.1 localhost\n" + "".join(f"10.77.0.{i + 1} {name}\n" for i, name in enumerate(self.names)))
        for number, name in enumerate(self.names):
            boot = os.path.join(self.folder, name + ".boot")
            with open(boot, "w", encoding="ascii") as file:
                file.write(f"{uuid.uuid4()}\n")
            holder = self.hold("-num", f"hostname {name} && mount --bind {self.folder}/hosts /etc/hosts && mount --bind {boot} "
                               "/proc/sys/kernel/random/boot_id && mount -t tmpfs none /dev/shm && ip link set lo up")
            self.holders[name] = holder
            with open(os.path.join(self.folder, name), "w", encoding="ascii") as file:
                file.write(str(holder.pid))
            self.enter("switch", f"ip link add {name} type veth peer name eth0 netns {holder.pid} && "
                       f"ip link set {name} master switch up")
            self.enter(name, f"ip addr add 10.77.0.{number + 1}/24 dev eth0 && ip link set eth0 up && "
                       f"tc qdisc add dev eth0 root tbf rate {megabits}mbit burst 128kb latency 20ms")
        # A remote shell for launchers: agent NODE WORD...
        self.agent = os.path.join(self.folder, "agent")
        with open(self.agent, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nnode=$1\nshift\nexec nsenter -t "$(cat {self.folder}/"$node")" -n -u -m -- sh -c "$*"\n')
        os.chmod(self.agent, 0o755)

    @staticmethod
    def hold(flags, prepare):
        """Starts a process whose namespaces are a host; it ends with this one."""
        holder = subprocess.Popen(["unshare", flags, *(["--propagation", "private"] if "m" in flags else []), "sh", "-c",
                                   prepare + " && echo ready && exec sleep infinity"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, text=True,
                                  preexec_fn=lambda: libc.prctl(1, signal.SIGKILL))
        if holder.stdout.readline() != "ready\n":
            raise OSError(f"a host cannot be made: {prepare}")
        return holder

    def words(self, name, *words):
        """Returns the command that runs these words on a host."""
        return ["nsenter", "-t", str(self.holders[name].pid), "-n", *(["-u", "-m"] if name != "switch" else []), "--",
                *(str(word) for word in words)]

    def enter(self, name, script):
        subprocess.run(self.words(name, "sh", "-c", script), check=True, stdin=subprocess.DEVNULL)

    def start(self, name, *words, **variables):
        """Starts a program on a host, with these variables; its output is text in one pipe."""
        return self.started(self.words(name, *words), **variables)

    @staticmethod
    def started(command, **variables):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**plain_environment(), **variables}, start_new_session=True,
                                preexec_fn=lambda: libc.prctl(1, signal.SIGKILL))

    def mpirun(self, slots, *words, **variables):
        """Returns the command of Open MPI's mpirun on node1, with these slots on the hosts and these variables."""
        file = os.path.join(self.folder, "slots")
        with open(file, "w", encoding="ascii") as out:
            out.writelines(f"{name} slots={count}\n" for name, count in zip(self.names, slots))
        variables = {"TERM": "dumb", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **variables}
        return self.words("node1", "env", *(f"{name}={value}" for name, value in variables.items()), "mpirun", "-np", sum(slots),
                          "--hostfile", file, "--mca", "plm_rsh_agent", self.agent, "--bind-to", "none", *words)

    def link(self, name, state):
        """Plugs a host's cable in or out: "up" or "down"."""
        self.enter("switch", f"ip link set {name} {state}")

    def finish(self, processes, seconds):
        """Waits for processes; ends all that run on the hosts if these are not done in time. Returns their statuses and what
        they wrote."""
        end = time.monotonic() + seconds
        done = []
        for process in processes:
            try:
                text, _ = process.communicate(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.crash()
                text = process.communicate()[0] + "\n(did not end in time)"
            done.append((process.returncode, text))
        return done

    def crash(self):
        """Ends all processes on the hosts."""
        spaces = {os.readlink(f"/proc/{holder.pid}/ns/net") for holder in self.holders.values()}
        kept = {holder.pid for holder in self.holders.values()}
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and int(entry) not in kept and os.readlink(f"/proc/{entry}/ns/net") in spaces:
                    os.kill(int(entry), signal.SIGKILL)
            except OSError:
                pass  # it has ended

    def close(self):
        self.crash()
        for holder in self.holders.values():
            holder.kill()
            holder.wait()
            holder.stdout.close()
        shutil.rmtree(self.folder)


def plain_environment():
    """This one without what a launcher sets."""
    foreign = ("DISTX_", "OMPI_", "PMI", "MPI_", "SLURM_", "WORLD_", "RANK", "LOCAL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
