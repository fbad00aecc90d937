#!/usr/bin/env python3
"""The leaf on AF_PACKET beside nginx's balancing of UDP, between sockets of the kernel in network namespaces of one machine.

Alternating runs, on a quiet machine and beside busy neighbours; and a leaf that sleeps beside one that polls, for tasks with pauses between
them. Needs root, ip, a C compiler and nginx with its stream module.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
SCHEDULER = "10.77.1.1"
WORKERS = [f"10.77.2.{host}" for host in range(11, 15)]
# A namespace for each: clients, scheduler, workers.
PLACES = ["c", "l", "w"]
FIGURES = ["tasks", "p50", "p99"]

LEAF = """\
[leaf]
id = 1
cores = [{cpu}]
poll = "{poll}"
state = "{folder}/state"
[[port]]
device = "net_af_packet0,iface=lc"
side = "clients"
ip = "10.77.1.1/24"
[[port]]
device = "net_af_packet1,iface=lw"
side = "workers"
ip = "10.77.2.1/24"
[[pool]]
id = 1
policy = "{policy}"
"""
SERVER = '[[server]]\nip = "{ip}"\nworkers = "{worker}"\npool = 1\n'

NGINX = """\
load_module {module};
user root;
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log crit;
events {{ worker_connections 16384; }}
stream {{
    upstream workers {{ random two least_conn; {servers} }}
    server {{
        listen 10.77.1.1:1234 udp;
        proxy_pass workers;
        proxy_requests 1;
        proxy_responses 1;
        proxy_timeout 1s;
    }}
}}
"""


def call(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


class Net:
    """Three hosts: clients and workers, each joined to the scheduler's by a pair of interfaces."""

    def __init__(self):
        self.name = f"wjb{os.getpid()}"

    def __enter__(self):
        for place in PLACES:
            call("ip", "netns", "add", self.of(place))
            call("ip", "-n", self.of(place), "link", "set", "lo", "up")
        clients, workers = ["10.77.1.2"], WORKERS
        for place, addresses, gateway in [("c", clients, SCHEDULER), ("w", workers, "10.77.2.1")]:
            near, far = f"l{place}", f"{place}0"
            call("ip", "-n", self.of("l"), "link", "add", near, "type", "veth", "peer", "name", far, "netns", self.of(place))
            call("ip", "-n", self.of("l"), "link", "set", near, "up")
            call("ip", "-n", self.of(place), "link", "set", far, "up")
            for address in addresses:
                call("ip", "-n", self.of(place), "address", "add", f"{address}/24", "dev", far)
            call("ip", "-n", self.of(place), "route", "add", "default", "via", gateway)
        return self

    def __exit__(self, *_):
        for place in PLACES:
            subprocess.run(["ip", "netns", "del", self.of(place)], check=False)

    def of(self, place):
        return self.name + place

    def within(self, place, *words):
        return ["ip", "netns", "exec", self.of(place), *map(str, words)]

    def own_addresses(self, are_wanted):
        """The kernel of the scheduler's host has them for nginx, and none for the leaf, which has its own."""
        for port, address in [("lc", "10.77.1.1/24"), ("lw", "10.77.2.1/24")]:
            call("ip", "-n", self.of("l"), "address", "flush", "dev", port)
            if are_wanted:
                call("ip", "-n", self.of("l"), "address", "add", address, "dev", port)
        # Neither side goes by what it knew of the other one.
        for place in PLACES:
            call("ip", "-n", self.of(place), "neighbour", "flush", "all")


class Process:
    """Ends with its block, and must be alive until then."""

    def __init__(self, command, **more):
        self.command, self.more = command, more

    def __enter__(self):
        self.process = subprocess.Popen(self.command, text=True, **self.more)
        return self.process

    def __exit__(self, failed, *_):
        ended = self.process.poll()
        if ended is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        elif failed is None:
            sys.exit(f"{self.command[0]} ended early, with {ended}")


def ask(net, ends, *how):
    """What a client sees; before that it asks for as long as the scheduler does not answer yet."""
    until = time.monotonic() + 30
    probe = net.within("c", ends, "ask", SCHEDULER, 1, 0.1)
    while subprocess.run(probe, capture_output=True).returncode != 0:
        if time.monotonic() > until:
            sys.exit("the scheduler does not answer")
    return json.loads(call(*net.within("c", ends, *how)))


def scheduler(name, net, arguments, folder):
    """The command that runs it; both on one CPU, the same."""
    servers = enumerate(WORKERS)
    if name == "nginx":
        path = folder / "nginx.conf"
        upstream = " ".join(f"server {ip}:1234;" for ip in WORKERS)
        path.write_text(NGINX.format(module=MODULE, folder=folder, servers=upstream))
        return net.within("l", "taskset", "-c", arguments.cpu, "nginx", "-c", path)
    path = folder / "leaf.toml"
    poll = arguments.poll if name == "leaf" else name
    text = LEAF.format(cpu=arguments.cpu, poll=poll, folder=folder, policy=arguments.policy)
    path.write_text(text + "".join(SERVER.format(ip=ip, worker=worker) for worker, ip in servers))
    return net.within("l", arguments.bin / "wedjat", "leaf", "--quiet", "--config", path)


def busy(count):
    """Neighbours that compute and nothing else."""
    return [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]


def measure(net, arguments, folder, ends, names, neighbours, *how):
    """A run of each scheduler for each round, the order turned every other time."""
    rows = {name: [] for name in names}
    others = busy(neighbours)
    try:
        for turn in range(arguments.runs):
            for name in sorted(rows, reverse=turn % 2 == 1):
                net.own_addresses(name == "nginx")
                with Process(scheduler(name, net, arguments, folder), stdout=subprocess.DEVNULL):
                    rows[name].append(ask(net, ends, *how))
    finally:
        for other in others:
            other.kill()
            other.wait()
    return rows


def show(title, rows):
    """Medians, and the median of the ratios of runs that stood beside each other."""
    print(f"\n{title}")
    for name, runs in rows.items():
        figures = {key: statistics.median(run[key] for run in runs) for key in FIGURES}
        lost = sum(run["lost"] for run in runs)
        print(f"  {name:9}{figures['tasks']:10.0f} tasks/s   p50 {figures['p50']:8.1f} us   p99 {figures['p99']:8.1f} us   {lost} lost")
    (one, ours), (other, theirs) = rows.items()
    pairs = list(zip(ours, theirs))
    ratios = {key: statistics.median(own[key] / its[key] for own, its in pairs) for key in FIGURES}
    print(f"  {one}/{other}: " + "   ".join(f"{key} {ratio:.2f}" for key, ratio in ratios.items()))
    more = {key: statistics.median(own[key] - its[key] for own, its in pairs) for key in FIGURES[1:]}
    print(f"  {one}-{other}: " + "   ".join(f"{key} {us:.1f} us" for key, us in more.items()))
    return {"runs": rows, "ratios": ratios, "differences": more}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, required=True, help="where cargo built, target/release")
    parser.add_argument("--runs", type=int, default=7, help="runs of each, on a quiet machine and beside neighbours")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--window", type=int, default=16, help="tasks that the client has under way, 1 to 1024")
    parser.add_argument("--neighbours", type=int, default=4, help="busy processes")
    parser.add_argument("--pause", type=float, default=5.0, help="milliseconds between tasks of which each wakes the leaf")
    parser.add_argument("--cpu", type=int, default=min(os.sched_getaffinity(0)), help="of both schedulers")
    parser.add_argument("--poll", choices=["adaptive", "busy"], default="adaptive", help="of the leaf")
    parser.add_argument("--policy", default="horus", help="of the leaf")
    parser.add_argument("--out", type=Path, help="write all figures there, as JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("making network namespaces and raw sockets needs root")
    if not MODULE.exists():
        sys.exit(f"{MODULE} is missing: apt-get install nginx libnginx-mod-stream, or scripts/deps.sh bench")
    with tempfile.TemporaryDirectory() as folder, Net() as net:
        folder = Path(folder)
        ends = folder / "ends"
        call("cc", "-O2", "-o", ends, HERE / "bench-sockets.c")
        served = Process(net.within("w", ends, "serve", *WORKERS), stdout=subprocess.PIPE)
        with served as workers:
            workers.stdout.readline()  # they are ready
            schedulers, window = ["leaf", "nginx"], ["ask", SCHEDULER, arguments.window, arguments.seconds]
            seldom = ["ask-seldom", SCHEDULER, arguments.pause, arguments.seconds]
            figures = {
                title: show(title, measure(net, arguments, folder, ends, *how))
                for title, how in [
                    ("quiet", [schedulers, 0, *window]),
                    (f"beside {arguments.neighbours} busy processes", [schedulers, arguments.neighbours, *window]),
                    (f"a task {arguments.pause:g} ms after each answer", [["adaptive", "busy"], 0, *seldom]),
                ]
            }
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
