#!/usr/bin/env python3
"""Compares `wedjat leaf` on one core and on two with dpdk-testpmd on the same two ports, with as many replies as tasks,
with tasks only, and with direct return.

The clients' port replays tasks without end, the workers' port replies of all workers in turn, or tasks as well; each core
has a queue of both, with a trace of its own. With direct return the workers' port has reports of 30 completions for every
29 tasks of both ports, so that a queue of tasks drains. All programs run in turn, several rounds in one sitting: the
ratios count. A figure is the number of received packets a second that were not dropped. Results go to the screen and to
bench-report/bench-cores.json.
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
# Forwarding modes of dpdk-testpmd. The rates of csum are the reference of all ratios.
MODES = ["csum", "5tswap", "io"]
# Numbers of cores that are compared.
CORES = (1, 2)
# Leaf's address, MAC address and side at each port.
PORTS = [("10.0.1.1", "02:00:00:00:00:01", "clients"), ("10.0.2.1", "02:00:00:00:00:02", "workers")]
SERVER_IP, SERVER_MAC = "10.0.2.11", "02:00:00:00:02:0b"
CLIENTS = 200
# Code of a completion report, and its number of entries.
CODE_COMPLETIONS, COMPLETIONS = 25, 30
# Packets of each port and core in the smallest cycle of a trace with direct return, and reports among them at the workers'
# port: 58 tasks and 60 completions.
CYCLE, REPORTS = 30, 2
# Workers with direct return. The leaf applies the reports of a burst before its tasks, so up to 62 tasks are outstanding, nearly
# all that 32 workers take under a bound of two. Two or three reports in turn would leave tasks to wait.
DIRECT_WORKERS = 64
# A bounded policy queues the tasks beyond its bound. The full queue and the exit drop them. Dropped packets do not count.
ALLOWED_DROPS = {"queue_full", "shutdown"}


def client(number, port=0):
    """Returns the address and MAC address of a client on the network of a port."""
    host = 20 + number % CLIENTS
    return f"10.0.{1 + port}.{host}", f"02:00:00:00:0{1 + port}:{host:02x}"


def task(number, port=0):
    """Returns the packet of a task that takes 50,000 ns, as it arrives at a port."""
    header = struct.pack(">BHHHHH", bench.NEW_TASK, 1, 0, bench.NO_MEMBER, 0, number)
    body = struct.pack(">QQ", 50_000, number)
    (ip, from_mac), (leaf_ip, leaf_mac, _) = client(number, port), PORTS[port]
    return bench.frame(leaf_mac, from_mac, ip, leaf_ip, (40_000 + number, bench.TASK_PORT), header + body)


def reply(number, workers):
    """Returns the packet of a worker's reply to a client, with a queue length of 1 to 3."""
    worker = number % workers
    header = struct.pack(">BHHHHH", bench.TASK_DONE, 1, worker, 0, 1 + number % 3, number % bench.PACKETS)
    body = struct.pack(">QQ", 50_000, number)
    (ip, _), (_, leaf_mac, _) = client(number), PORTS[1]
    ports = (bench.TASK_PORT, 40_000 + number % bench.PACKETS)
    return bench.frame(leaf_mac, SERVER_MAC, SERVER_IP, ip, ports, header + body)


def report(number, workers):
    """Returns the packet of a server's report of COMPLETIONS tasks, of its workers in turn."""
    done = [(number * COMPLETIONS + each) % workers for each in range(COMPLETIONS)]
    header = struct.pack(">BHHHHH", CODE_COMPLETIONS, 1, done[0], bench.NO_MEMBER, COMPLETIONS, number)
    entries = b"".join(struct.pack(">HHI", worker, 1 + worker % 3, 0) for worker in done)
    leaf_ip, leaf_mac, _ = PORTS[1]
    return bench.frame(leaf_mac, SERVER_MAC, SERVER_IP, leaf_ip, (bench.TASK_PORT, bench.TASK_PORT), header + entries)


def report_or_task(number, workers):
    """Returns a packet of the workers' port under direct return. Both ports have equally many packets."""
    reports = number * REPORTS // CYCLE
    is_report = (number + 1) * REPORTS // CYCLE > reports
    return report(reports, workers) if is_report else task(number, 1)


def write_traces(folder, workers, direct=False):
    """Writes a trace for each port and core. Returns the paths, one list per port. All traces have the same length, so
    that no queue gets more packets. With 0 workers the second port receives tasks instead of replies."""
    length = max(bench.PACKETS, workers)
    traces = []
    if direct:
        length -= length % CYCLE
        at_second_port = lambda number: report_or_task(number, workers)
    elif workers:
        at_second_port = lambda number: reply(number, workers)
    else:
        at_second_port = lambda number: task(number, 1)
    for port, packet in enumerate((task, at_second_port)):
        paths = [os.path.join(folder, f"{workers}-{direct}-{port}-{core}.pcap") for core in range(max(CORES))]
        for core, path in enumerate(paths):
            # Each core starts at another packet, so that no two cores handle the same worker at the same time.
            first = core * length // max(CORES)
            bench.write_trace(path, [packet((first + number) % length) for number in range(length)])
        traces.append(paths)
    return traces


def eal(options, traces, cores):
    """Returns the EAL arguments: a device for each port, with a queue for each core."""
    memory = ["--in-memory"] if options.hugepages else ["--no-huge"]
    devices = []
    for port, paths in enumerate(traces):
        queues = "".join(f",rx_pcap={path}" for path in paths[:cores])
        # Without a tx_pcap the driver drops all sent packets.
        devices.append(f"--vdev=net_pcap{port}{queues},infinite_rx=1")
    return memory + ["--no-pci", "-m", "512"] + devices


def buffers(cores):
    """Returns the number of packet buffers of a program. DPDK recommends one less than a power of two."""
    return (bench.MBUFS + 1) * cores - 1


def cpus(cores):
    """Returns the CPUs of the polling cores: the last of this process."""
    return sorted(os.sched_getaffinity(0))[-cores:]


def leaf_config(policy, workers, cores, state, side=None, direct=False):
    """Returns a leaf's configuration. `side` replaces the side of both ports."""
    # With two ports for clients, direct return needs a service address.
    replies = f'replies = "direct"\nservice = "{PORTS[0][0]}"\n' if direct else ""
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
{replies}[[server]]
ip = "{SERVER_IP}"
mac = "{SERVER_MAC}"
workers = "0-{workers - 1}"
pool = 1
"""


def passed(core):
    """Returns the number of packets that a core of a leaf has received and not dropped."""
    return core["counters"]["rx_packets"] - sum(core["drops"].values())


def run_leaf(options, folder, traces, policy, workers, cores, side=None, direct=False):
    """Returns the leaf's rates of received packets a second, one for each slice of the run."""
    def config(state):
        return leaf_config(policy, workers, cores, state, side, direct)

    return bench.run_process(options, folder, "leaf", config, eal(options, traces, cores), passed, ALLOWED_DROPS)


def run_testpmd(options, mode, traces, cores):
    """Returns testpmd's packet rates, one for each slice of the run. Without a spare CPU the control thread, which
    mostly sleeps, shares one with a forwarding thread."""
    forwarding_cpus = cpus(cores)
    spare = (cpu for cpu in sorted(os.sched_getaffinity(0)) if cpu not in forwarding_cpus)
    control = next(spare, forwarding_cpus[0])
    # LCORE@CPU: several lcores may share a CPU.
    lcores = ",".join(f"{number}@{cpu}" for number, cpu in enumerate([control] + forwarding_cpus))
    devices = ["--lcores", lcores, "--main-lcore", "0"] + eal(options, traces, cores)
    forwarding = [f"--forward-mode={mode}", f"--nb-cores={cores}", f"--rxq={cores}", f"--txq={cores}"]
    return bench.run_forwarder(options, devices, forwarding + [f"--total-num-mbufs={buffers(cores)}"], len(PORTS))


def measure(options, folder):
    """Returns two lists for each variant (name, workers, cores), with a value per round: its rate, and that of csum on as
    many cores, in packets a second in the least disturbed slices. On several cores csum runs again after each variant. The
    clock of a machine with several busy CPUs may change for minutes."""
    traces = {workers: write_traces(folder, workers) for workers in {0, DIRECT_WORKERS, *options.workers}}
    direct_traces = write_traces(folder, DIRECT_WORKERS, direct=True)
    variants = [(mode, options.workers[0], cores) for mode in MODES for cores in CORES]
    variants += [(f"{policy}, tasks", options.workers[0], cores) for policy in options.tasks for cores in CORES]
    variants += [(f"{policy}, direct", DIRECT_WORKERS, cores) for policy in options.direct for cores in CORES]
    variants += [(policy, workers, cores) for workers in options.workers for policy in options.policies for cores in CORES]
    through = [(policy, DIRECT_WORKERS, min(CORES)) for policy in options.direct]
    variants += [variant for variant in through if variant not in variants]
    samples = {variant: [] for variant in variants}
    references = {variant: [] for variant in variants}
    ceiling = MODES[0]
    for number in range(options.rounds):
        for name, workers, cores in variants:
            bench.progress(f"round {number + 1} of {options.rounds}: {name}, {workers} workers, {cores} cores")
            if name in MODES:
                rates = run_testpmd(options, name, traces[workers], cores)
            elif name.endswith(", tasks"):
                rates = run_leaf(options, folder, traces[0], name.removesuffix(", tasks"), workers, cores, "both")
            elif name.endswith(", direct"):
                policy = name.removesuffix(", direct")
                rates = run_leaf(options, folder, direct_traces, policy, workers, cores, "both", direct=True)
            else:
                rates = run_leaf(options, folder, traces[workers], name, workers, cores)
            samples[name, workers, cores].append(bench.least_disturbed(rates))
            if name != ceiling and cores > min(CORES):
                rates = run_testpmd(options, ceiling, traces[options.workers[0]], cores)
                references[name, workers, cores].append(bench.least_disturbed(rates))
            else:
                references[name, workers, cores].append(samples[ceiling, options.workers[0], cores][-1])
    bench.progress("")
    return samples, references


def rows(options, samples, references):
    """Returns a row for each mode and policy. Rates and ratios are medians of the rounds."""
    least, most = CORES

    def ratio(calculate):
        """Returns the median of `calculate` over the rounds. Its arguments have a round's rates of each variant, and of csum."""
        in_round = lambda rates, number: {variant: values[number] for variant, values in rates.items()}
        return statistics.median(
            calculate(in_round(samples, number), in_round(references, number)) for number in range(options.rounds)
        )

    def scaling_of_csum(pps, csum, key):
        """Returns how `key` scales relative to csum."""
        return pps[*key, most] / csum[*key, most] / (pps[*key, least] / csum[*key, least])

    subjects = [(mode, options.workers[0]) for mode in MODES]
    subjects += [(f"{policy}, tasks", options.workers[0]) for policy in options.tasks]
    subjects += [(f"{policy}, direct", DIRECT_WORKERS) for policy in options.direct]
    subjects += [(policy, workers) for workers in options.workers for policy in options.policies]
    return [
        {
            "name": name,
            "workers": workers,
            "mpps": [statistics.median(samples[name, workers, cores]) / 1e6 for cores in CORES],
            "of_csum": ratio(lambda pps, csum, key=(name, workers): pps[*key, least] / csum[*key, least]),
            "scaling": ratio(lambda pps, _, key=(name, workers): pps[*key, most] / pps[*key, least]),
            "scaling_of_csum": ratio(lambda pps, csum, key=(name, workers): scaling_of_csum(pps, csum, key)),
        }
        for name, workers in subjects
    ]


def direct_ratios(options, samples):
    """Returns, for each policy measured with direct return, the tasks a second of one core over those through the leaf, with
    as many workers: the median of the rounds."""

    def ratio(policy):
        at = (DIRECT_WORKERS, CORES[0])
        pairs = zip(samples[f"{policy}, direct", *at], samples[policy, *at])
        tasks = 1 - REPORTS / (2 * CYCLE)
        return statistics.median(direct * tasks / (through / 2) for direct, through in pairs)

    return {policy: ratio(policy) for policy in options.direct}


def show(options, table, ratios):
    print(f"half replies, tasks only, or direct return; memory: {'hugepages' if options.hugepages else 'no hugepages (--no-huge)'}")
    print(f"{'':14} {'workers':>8} {'1 core':>8} {'of csum':>8} {'2 cores':>8} {'2 / 1':>8} {'of csum':>8}")
    for row in table:
        workers = "" if row["name"] in MODES else row["workers"]
        one, two = row["mpps"]
        print(
            f"{row['name']:14} {workers:>8} {one:7.2f}M {row['of_csum']:8.2f} {two:7.2f}M {row['scaling']:8.2f} {row['scaling_of_csum']:8.2f}"
        )


    for policy, ratio in ratios.items():
        print(f"{policy}, one core, {DIRECT_WORKERS} workers: {ratio:.2f} times the tasks a second with direct return")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="target/release", help="folder of the programs (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each variant (%(default)s)")
    parser.add_argument("--seconds", type=int, default=2, help="length of a run (%(default)s)")
    parser.add_argument("--policies", nargs="+", default=POLICIES, help="the pool's policies (%(default)s)")
    parser.add_argument("--tasks", nargs="*", default=["horus"], help="the policies measured with tasks only (%(default)s)")
    parser.add_argument("--direct", nargs="*", default=["horus"], help="the policies measured with direct return (%(default)s)")
    parser.add_argument("--workers", nargs="+", type=int, default=list(bench.POOLS), help="the pool's sizes (%(default)s)")
    parser.add_argument("--no-huge", action="store_true", help="without hugepages, also where there are some")
    parser.add_argument("--out", default="bench-report", help="folder for bench-cores.json (%(default)s)")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < max(CORES):
        sys.exit(f"found {len(os.sched_getaffinity(0))} CPU; the comparison needs {max(CORES)}")
    with tempfile.TemporaryDirectory() as folder, bench.hugepages(not options.no_huge) as options.hugepages:
        samples, references = measure(options, folder)
    table = rows(options, samples, references)
    ratios = direct_ratios(options, samples)
    show(options, table, ratios)
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, "bench-cores.json")
    pps = [
        {"name": name, "workers": workers, "cores": cores, "pps": values, "csum_pps": references[name, workers, cores]}
        for (name, workers, cores), values in samples.items()
    ]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"manifest": bench.manifest(options), "pps": pps, "rows": table, "direct": ratios}, file, indent=2)
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
