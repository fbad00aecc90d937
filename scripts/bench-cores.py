#!/usr/bin/env python3
"""Compares `wedjat leaf` on one core and on two with dpdk-testpmd on the same two ports, with as many replies as tasks,
with tasks only, and with direct return.

The clients' port replays tasks without end, the workers' port replies of all workers in turn, or tasks as well; each core
has a queue of both, with a trace of its own. With direct return the workers' port has reports of 30 completions for every
29 tasks of both ports, so that a queue of tasks drains. All programs run in turn, several rounds in one sitting: the
ratios count. A figure is the number of received packets a second that were not dropped. Results go to the screen and to
bench-report/bench-cores.json.

A host may place the CPUs of a virtual machine on cores with or without a common cache, and change this at any time. The
round trip of a cache line between the CPUs shows which. So the script compares each run on two cores with a run of csum at
the same round trip. Runs at clearly different round trips have separate columns.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile

import bench

POLICIES = ["random", "horus", "jsq", "lsq-smart", "sed", "jbsq(k=2)", "cfcfs"]
# Forwarding modes of dpdk-testpmd. The rates of csum are the reference of all ratios.
MODES = ["csum", "5tswap", "io"]
# Ends of the names of policies measured with tasks only and with direct return.
TASKS, DIRECT = ", tasks", ", direct"
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
# Round trips of a cache line before, between and after two runs count as equal if none is more than this many times another
# one. Round trips of different columns are further apart.
STEADY = 1.8
# Attempts to measure a variant and csum on two cores at equal round trips.
ATTEMPTS = 4


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


def line_cycles(options):
    """Returns the round trip of a cache line between the polling cores, in cycles of the time stamp counter."""
    cpu_list = ",".join(str(cpu) for cpu in cpus(max(CORES)))
    command = [os.path.join(options.bin, "wedjat-testbed"), "bench-host", "--cpus", cpu_list, "--format", "json"]
    command += ["--rounds", "3", "--tasks", "4000", "--load-seconds", "0", "--kills", "0"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if run.returncode != 0:
        bench.fail("wedjat-testbed bench-host", run.stdout + run.stderr)
    return next(figure["value"] for figure in json.loads(run.stdout) if figure["name"] == "cache_line_round_trip")


def run_variant(options, folder, traces, variant):
    """Returns a variant's packets a second in its least disturbed slices."""
    name, workers, cores = variant
    if name in MODES:
        rates = run_testpmd(options, name, traces[workers], cores)
    elif name.endswith(TASKS):
        rates = run_leaf(options, folder, traces[0], name.removesuffix(TASKS), workers, cores, "both")
    elif name.endswith(DIRECT):
        rates = run_leaf(options, folder, traces["direct"], name.removesuffix(DIRECT), workers, cores, "both", direct=True)
    else:
        rates = run_leaf(options, folder, traces[workers], name, workers, cores)
    return bench.least_disturbed(rates)


def run_beside_csum(options, folder, traces, variant):
    """Returns the packets a second of a variant and those of csum on as many cores; on several cores at the same round trip of
    a cache line, with this round trip. Returns `None` if the round trip changes during each attempt."""
    csum = (MODES[0], options.workers[0], variant[2])
    if csum[2] == min(CORES):
        return {"pps": run_variant(options, folder, traces, variant), "csum_pps": run_variant(options, folder, traces, csum)}
    for _ in range(ATTEMPTS):
        sample, trips = {}, [line_cycles(options)]
        for key, each in (("pps", variant), ("csum_pps", csum)):
            sample[key] = run_variant(options, folder, traces, each)
            trips.append(line_cycles(options))
        if max(trips) <= STEADY * min(trips):
            return sample | {"line_cycles": statistics.median(trips)}
    return None


def measure(options, folder):
    """Returns the samples of each variant (name, workers, cores), at most one for each round. A sample has the round, the packets
    a second of the variant and of csum on as many cores, and on several cores the round trip of a cache line."""
    traces = {workers: write_traces(folder, workers) for workers in {0, DIRECT_WORKERS, *options.workers}}
    traces["direct"] = write_traces(folder, DIRECT_WORKERS, direct=True)
    variants = [(mode, options.workers[0], cores) for mode in MODES for cores in CORES]
    variants += [(policy + TASKS, options.workers[0], cores) for policy in options.tasks for cores in CORES]
    variants += [(policy + DIRECT, DIRECT_WORKERS, cores) for policy in options.direct for cores in CORES]
    variants += [(policy, workers, cores) for workers in options.workers for policy in options.policies for cores in CORES]
    through = [(policy, DIRECT_WORKERS, min(CORES)) for policy in options.direct]
    variants += [variant for variant in through if variant not in variants]
    samples = {variant: [] for variant in variants}
    for number in range(1, options.rounds + 1):
        for variant in variants:
            name, workers, cores = variant
            bench.progress(f"round {number} of {options.rounds}: {name}, {workers} workers, {cores} cores")
            sample = run_beside_csum(options, folder, traces, variant)
            if sample:
                samples[variant].append({"round": number} | sample)
    bench.progress("")
    return samples


def line_states(samples):
    """Returns ranges of the measured round trips of a cache line: (least, most) of each group of round trips that are far
    from all others."""
    trips = sorted(sample["line_cycles"] for values in samples.values() for sample in values if "line_cycles" in sample)
    states = []
    for trip in trips:
        if states and trip <= STEADY * states[-1][1]:
            states[-1] = (states[-1][0], trip)
        else:
            states.append((trip, trip))
    return states


def rows(options, samples, states):
    """Returns a row for each mode and policy. Rates and ratios are medians of the rounds. Those of two cores are by the
    state of the cache line, with `None` for a state without a sample."""
    least, most = CORES
    median_of = lambda figure, some: statistics.median(map(figure, some))
    rate = lambda sample: sample["pps"]
    of_csum = lambda sample: sample["pps"] / sample["csum_pps"]

    def row(key):
        one = {sample["round"]: sample for sample in samples[*key, least]}
        two = []
        for state in states:
            some = [sample for sample in samples[*key, most] if state[0] <= sample["line_cycles"] <= state[1]]
            figures = {
                "line_cycles": state,
                "samples": len(some),
                "pps": median_of(rate, some),
                "scaling": median_of(lambda sample: rate(sample) / rate(one[sample["round"]]), some),
                "scaling_of_csum": median_of(lambda sample: of_csum(sample) / of_csum(one[sample["round"]]), some),
            } if some else None
            two.append(figures)
        one_core = {"pps": median_of(rate, one.values()), "of_csum": median_of(of_csum, one.values())}
        return {"name": key[0], "workers": key[1], "one_core": one_core, "two_cores": two}

    subjects = [(mode, options.workers[0]) for mode in MODES]
    subjects += [(policy + TASKS, options.workers[0]) for policy in options.tasks]
    subjects += [(policy + DIRECT, DIRECT_WORKERS) for policy in options.direct]
    subjects += [(policy, workers) for workers in options.workers for policy in options.policies]
    return [row(key) for key in subjects]


def direct_ratios(options, samples):
    """Returns, for each policy measured with direct return, the tasks a second of one core over those through the leaf, with
    as many workers: the median of the rounds."""

    def ratio(policy):
        at = (DIRECT_WORKERS, CORES[0])
        pairs = zip(samples[policy + DIRECT, *at], samples[policy, *at])
        tasks = 1 - REPORTS / (2 * CYCLE)
        return statistics.median(direct["pps"] * tasks / (through["pps"] / 2) for direct, through in pairs)

    return {policy: ratio(policy) for policy in options.direct}


def show(options, table, ratios, states):
    print(f"half replies, tasks only, or direct return; memory: {'hugepages' if options.hugepages else 'no hugepages (--no-huge)'}")
    print("two cores: by the round trip of a cache line, with the number of samples (-: none, all had another round trip, or one that changed)")
    ranges = "".join(f" {f'{least:.0f}-{most:.0f} cycles':>29}" for least, most in states)
    titles = f" {'2 cores':>9} {'2 / 1':>6} {'of csum':>8} {'n':>3}" * len(states)
    print(f"{'':18} {'':>8} {'':>8} {'':>8}{ranges}\n{'':18} {'workers':>8} {'1 core':>8} {'of csum':>8}{titles}")
    for row in table:
        workers = "" if row["name"] in MODES else row["workers"]
        one = row["one_core"]
        cells = "".join(
            f" {two['pps'] / 1e6:8.2f}M {two['scaling']:6.2f} {two['scaling_of_csum']:8.2f} {two['samples']:3}" if two else f" {'-':>29}"
            for two in row["two_cores"]
        )
        print(f"{row['name']:18} {workers:>8} {one['pps'] / 1e6:7.2f}M {one['of_csum']:8.2f}{cells}")
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
    for program in ("wedjat", "wedjat-testbed"):
        if not os.path.exists(os.path.join(options.bin, program)):
            sys.exit(f"no {program} in {options.bin}: build both programs, or name their folder with --bin")
    with tempfile.TemporaryDirectory() as folder, bench.hugepages(not options.no_huge) as options.hugepages:
        samples = measure(options, folder)
    states = line_states(samples)
    table = rows(options, samples, states)
    ratios = direct_ratios(options, samples)
    show(options, table, ratios, states)
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, "bench-cores.json")
    variants = [
        {"name": name, "workers": workers, "cores": cores, "samples": values}
        for (name, workers, cores), values in samples.items()
    ]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"manifest": bench.manifest(options), "samples": variants, "rows": table, "direct": ratios}, file, indent=2)
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
