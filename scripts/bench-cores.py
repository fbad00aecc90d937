#!/usr/bin/env python3
"""Compares `wedjat leaf` on one core and on two with dpdk-testpmd on the same two ports, with as many replies as tasks,
and with tasks only.

The clients' port replays tasks without end, the workers' port replies of all workers in turn, or tasks as well; each core
has a queue of both, with a trace of its own. All programs run in turn, several rounds in one sitting: the ratios count. A figure is the
number of received packets a second. Results go to the screen and to bench-report/bench-cores.json.
"""

import argparse
import json
import os
import statistics
import struct
import sys
import tempfile

import bench

POLICIES = ["random", "horus", "jsq", "lsq-smart", "sed", "jbsq(k=2)", "cfcfs"]
MODES = ["csum", "5tswap", "io"]
CORES = (1, 2)
# Address and MAC address of the leaf at each port, with the prefix of that port's network.
PORTS = [("10.0.1.1", "02:00:00:00:00:01", "clients"), ("10.0.2.1", "02:00:00:00:00:02", "workers")]
SERVER_IP, SERVER_MAC = "10.0.2.11", "02:00:00:00:02:0b"
CLIENTS = 200
# Bounded policies receive more tasks than they may send: these wait, and are dropped beyond the queue or at the end.
ALLOWED_DROPS = {"queue_full", "shutdown"}


def client(number, port=0):
    """Address and MAC address of a client on the network of a port."""
    host = 20 + number % CLIENTS
    return f"10.0.{1 + port}.{host}", f"02:00:00:00:0{1 + port}:{host:02x}"


def task(number, port=0):
    header = struct.pack(">BHHHHH", bench.NEW_TASK, 1, 0, bench.NO_MEMBER, 0, number)
    body = struct.pack(">QQ", 50_000, number)
    (ip, from_mac), (leaf_ip, leaf_mac, _) = client(number, port), PORTS[port]
    return bench.frame(leaf_mac, from_mac, ip, leaf_ip, (40_000 + number, bench.TASK_PORT), header + body)


def reply(number, workers):
    worker = number % workers
    header = struct.pack(">BHHHHH", bench.TASK_DONE, 1, worker, 0, 1 + number % 3, number % bench.PACKETS)
    body = struct.pack(">QQ", 50_000, number)
    (ip, _), (_, leaf_mac, _) = client(number), PORTS[1]
    ports = (bench.TASK_PORT, 40_000 + number % bench.PACKETS)
    return bench.frame(leaf_mac, SERVER_MAC, SERVER_IP, ip, ports, header + body)


def write_traces(folder, workers):
    """Writes the traces of each port and core; returns their paths by port. All have the same length, so that no queue gets more.
    No workers stand for tasks only."""
    length = max(bench.PACKETS, workers)
    traces = []
    second = (lambda number: reply(number, workers)) if workers else (lambda number: task(number, 1))
    for port, packet in enumerate((task, second)):
        paths = [os.path.join(folder, f"{workers}-{port}-{core}.pcap") for core in range(max(CORES))]
        for core, path in enumerate(paths):
            # Each core begins elsewhere, so that both do not handle the same worker at the same time.
            first = core * length // max(CORES)
            bench.write_trace(path, [packet((first + number) % length) for number in range(length)])
        traces.append(paths)
    return traces


def eal(options, traces, cores):
    memory = ["--in-memory"] if options.hugepages else ["--no-huge"]
    devices = []
    for port, paths in enumerate(traces):
        queues = "".join(f",rx_pcap={path}" for path in paths[:cores])
        # Without a tx_pcap the driver drops what it sends.
        devices.append(f"--vdev=net_pcap{port}{queues},infinite_rx=1")
    return memory + ["--no-pci", "-m", "512"] + devices


def buffers(cores):
    """Packet buffers of a program; DPDK's pools are best with one less than a power of two."""
    return (bench.MBUFS + 1) * cores - 1


def cpus(cores):
    return sorted(os.sched_getaffinity(0))[-cores:]


def leaf_config(policy, workers, cores, state, side=None):
    text = f"""[leaf]
id = 100
cores = {cpus(cores)}
state = "{state}"
seed = 7
mbufs = {buffers(cores)}
"""
    for port, (ip, mac, usual_side) in enumerate(PORTS):
        text += f'[[port]]\ndevice = "net_pcap{port}"\nside = "{side or usual_side}"\nip = "{ip}/24"\nmac = "{mac}"\n'
    return text + f"""[[pool]]
id = 1
policy = "{policy}"
[[server]]
ip = "{SERVER_IP}"
mac = "{SERVER_MAC}"
workers = "0-{workers - 1}"
pool = 1
"""


def run_leaf(options, folder, traces, policy, workers, cores, side=None):
    def config(state):
        return leaf_config(policy, workers, cores, state, side)

    return bench.run_process(options, folder, "leaf", config, eal(options, traces, cores), "rx_packets", ALLOWED_DROPS)


def run_testpmd(options, mode, traces, cores):
    """The control thread shares a CPU with a forwarding one where there are too few; it sleeps between questions."""
    on = cpus(cores)
    control = next((cpu for cpu in sorted(os.sched_getaffinity(0)) if cpu not in on), on[0])
    # Each logical core of EAL on its CPU: several may be on one.
    lcores = ",".join(f"{number}@{cpu}" for number, cpu in enumerate([control] + on))
    devices = ["--lcores", lcores, "--main-lcore", "0"] + eal(options, traces, cores)
    forwarding = [f"--forward-mode={mode}", f"--nb-cores={cores}", f"--rxq={cores}", f"--txq={cores}"]
    return bench.run_forwarder(options, devices, forwarding + [f"--total-num-mbufs={buffers(cores)}"], len(PORTS))


def measure(options, folder):
    """Packets a second of each variant in its least-disturbed slices, once a round: by name, workers and cores."""
    traces = {workers: write_traces(folder, workers) for workers in [0] + options.workers}
    variants = [(mode, options.workers[0], cores) for mode in MODES for cores in CORES]
    variants += [(f"{policy}, tasks", options.workers[0], cores) for policy in options.tasks for cores in CORES]
    variants += [(policy, workers, cores) for workers in options.workers for policy in options.policies for cores in CORES]
    samples = {variant: [] for variant in variants}
    for number in range(options.rounds):
        for name, workers, cores in variants:
            bench.progress(f"round {number + 1} of {options.rounds}: {name}, {workers} workers, {cores} cores")
            if name in MODES:
                rates = run_testpmd(options, name, traces[workers], cores)
            elif name.endswith(", tasks"):
                rates = run_leaf(options, folder, traces[0], name.removesuffix(", tasks"), workers, cores, "both")
            else:
                rates = run_leaf(options, folder, traces[workers], name, workers, cores)
            samples[name, workers, cores].append(bench.least_disturbed(rates))
    bench.progress("")
    return samples


def rows(options, samples):
    """A row for each mode and policy: rates, and the ratios to csum, taken within a round, then their median."""
    least, most = CORES

    def ratio(calculate):
        return statistics.median(
            calculate({variant: values[number] for variant, values in samples.items()}) for number in range(options.rounds)
        )

    ceiling = ("csum", options.workers[0])
    named = [(mode, options.workers[0]) for mode in MODES]
    named += [(f"{policy}, tasks", options.workers[0]) for policy in options.tasks]
    named += [(policy, workers) for workers in options.workers for policy in options.policies]
    return [
        {
            "name": name,
            "workers": workers,
            "mpps": [statistics.median(samples[name, workers, cores]) / 1e6 for cores in CORES],
            "of_csum": ratio(lambda pps, one=(name, workers): pps[*one, least] / pps[*ceiling, least]),
            "scaling": ratio(lambda pps, one=(name, workers): pps[*one, most] / pps[*one, least]),
            "scaling_of_csum": ratio(
                lambda pps, one=(name, workers): pps[*one, most] / pps[*one, least] * pps[*ceiling, least] / pps[*ceiling, most]
            ),
        }
        for name, workers in named
    ]


def show(options, table):
    print(f"half replies, or tasks only; memory: {'hugepages' if options.hugepages else 'no hugepages (--no-huge)'}")
    print(f"{'':14} {'workers':>8} {'1 core':>8} {'of csum':>8} {'2 cores':>8} {'2 / 1':>8} {'of csum':>8}")
    for row in table:
        workers = "" if row["name"] in MODES else row["workers"]
        one, two = row["mpps"]
        print(
            f"{row['name']:14} {workers:>8} {one:7.2f}M {row['of_csum']:8.2f} {two:7.2f}M {row['scaling']:8.2f} {row['scaling_of_csum']:8.2f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="target/release", help="folder of the programs (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each variant (%(default)s)")
    parser.add_argument("--seconds", type=int, default=2, help="length of a run (%(default)s)")
    parser.add_argument("--policies", nargs="+", default=POLICIES, help="the pool's policies (%(default)s)")
    parser.add_argument("--tasks", nargs="*", default=["horus"], help="the policies measured with tasks only (%(default)s)")
    parser.add_argument("--workers", nargs="+", type=int, default=list(bench.POOLS), help="the pool's sizes (%(default)s)")
    parser.add_argument("--no-huge", action="store_true", help="without hugepages, also where there are some")
    parser.add_argument("--out", default="bench-report", help="folder for bench-cores.json (%(default)s)")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < max(CORES):
        sys.exit(f"found {len(os.sched_getaffinity(0))} CPU; the comparison needs {max(CORES)}")
    with tempfile.TemporaryDirectory() as folder, bench.hugepages(not options.no_huge) as options.hugepages:
        samples = measure(options, folder)
    table = rows(options, samples)
    show(options, table)
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, "bench-cores.json")
    pps = [{"name": name, "workers": workers, "cores": cores, "pps": values} for (name, workers, cores), values in samples.items()]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"manifest": bench.manifest(options), "pps": pps, "rows": table}, file, indent=2)
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
