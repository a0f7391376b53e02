#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Connects to rank 0 of jobs over TCP as a stranger without the token, in random ways, and checks that the jobs go on.

    tests/faults/attack_net.py PROGRAM [--runs N] [--seed S]

PROGRAM is built of besieged.cpp. In each run, processes flood the port, at a random rate, with or without bytes, or keep hundreds
of connections, before the ranks meet or after; rank 0 may open 64 to 1024 files. All ranks must meet and end without an error,
and no call may last for longer than the deadline. All sockets are on loopback; the strangers end with the run.
"""
import argparse
import errno
import os
import random
import resource
import socket
import subprocess
import sys
import time

DEADLINE = 15  # seconds; the ranks' own
GARBAGE = [b"", b"x", b"garbage", b"distx/3l", b"distx/3l" + bytes(64), b"GET / HTTP/1.1\r\n\r\n", bytes(5000)]


def connection(port):
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex(("127.0.0.1", port))
    return made


def said(made, data):
    try:
        made.send(data)
    except OSError:
        pass  # not connected yet, or closed


def flood(port, rate, data, seconds):
    """Connects and closes `rate` times a second; 0: as fast as it can."""
    began, count = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        try:
            made = connection(port)
        except OSError:
            continue
        if data:
            said(made, data)
        made.close()
        count += 1
        if rate and count > rate * (time.monotonic() - began):
            time.sleep(0.001)


def stay(port, count, data, seconds):
    """Keeps connections, and replaces those that are closed."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    end = time.monotonic() + seconds
    idle = [None] * min(count, limit - 64)
    while time.monotonic() < end:
        for i, made in enumerate(idle):
            try:
                closed = made is None or not made.recv(4096, socket.MSG_DONTWAIT)
            except OSError as error:
                closed = error.errno not in (errno.EAGAIN, errno.EINPROGRESS)
            if closed:
                if made is not None:
                    made.close()
                idle[i] = connection(port)
                said(idle[i], data)
        time.sleep(0.01)


def listens(port):
    """Returns once rank 0 listens, as the system lists its sockets: a connection would count as an attack."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        with open("/proc/net/tcp", encoding="ascii") as table:
            for line in table:
                words = line.split()
                if words[1].endswith(f":{port:04X}") and words[3] == "0A":
                    return
        time.sleep(0.005)


def free_port(draw):
    """Returns a port that no stranger's own end can have."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as text:
        first = int(text.read().split()[0])
    while True:
        port = draw.randrange(10000, max(first, 10001))
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED:
                return port


def run(program, draw):
    """Returns the way of the attack, and what is wrong."""
    port, size = free_port(draw), draw.choice([2, 3])
    files, seconds = draw.choice([64, 128, 256, 512, 1024]), draw.choice([0, 1, 2])
    data, early = draw.choice(GARBAGE), draw.random() < 0.6
    if draw.random() < 0.5:
        attack = ["--flood", str(draw.choice([0, 1000, 5000, 20000, 20000]))]
        strangers = draw.choice([1, 2])
    else:
        attack = ["--stay", str(draw.choice([50, 200, 400, 1000, 3000]))]
        strangers = 1
    way = f"{' '.join(attack)} by {strangers}, {len(data)} bytes, {'early' if early else 'late'}, {size} ranks, {files} files, {seconds} s"
    environment = dict(os.environ, DISTX_TOKEN=f"secret {draw.random()}")
    ranks, besiegers = [], []

    def start(rank):
        command = [program, *map(str, (port, rank, size, DEADLINE, seconds, files))]
        ranks.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))

    def besiege():
        command = [sys.executable, os.path.abspath(__file__), str(port), *attack, "--data", data.hex(), "--seconds", "60"]
        besiegers.extend(subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(strangers))

    problems = []
    try:
        start(0)
        listens(port)
        if early:
            besiege()
            time.sleep(0.3)
        for rank in range(1, size):
            start(rank)
        if not early:
            besiege()
        for rank, process in enumerate(ranks):
            try:
                output = process.communicate(timeout=3 * DEADLINE)[0]
            except subprocess.TimeoutExpired:
                problems.append(f"rank {rank} hangs")
                continue
            slowest = float(output.partition("slowest ")[2].split(" ")[0] or "inf") if "slowest" in output else float("inf")
            if process.returncode != 0 or slowest > DEADLINE + 1:
                problems.append(f"rank {rank} ended with {process.returncode}: {output.strip()}")
            way += f", {slowest:.2f}"
    finally:
        for process in ranks + besiegers:
            process.kill()
            process.wait()
    return way, problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", help="besieged; or, of a stranger, the port")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flood", type=int)
    parser.add_argument("--stay", type=int)
    parser.add_argument("--data", default="")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    if options.flood is not None:
        return flood(int(options.program), options.flood, bytes.fromhex(options.data), options.seconds)
    if options.stay is not None:
        return stay(int(options.program), options.stay, bytes.fromhex(options.data), options.seconds)
    draw, wrong = random.Random(options.seed), 0
    for number in range(options.runs):
        way, problems = run(options.program, draw)
        wrong += bool(problems)
        print(f"{number}: {way}: {'; '.join(problems) or 'right'}", flush=True)
    print(f"{options.runs} runs, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
