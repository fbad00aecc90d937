#!/usr/bin/env python3
"""Compares `wedjat leaf` with dpdk-testpmd on the same virtual devices and the same core, `wedjat spine` with a leaf, and
measures the generator.

The pcap driver replays 512 packets without end into the device under test and drops what it sends. All
programs are run in turn, several rounds in one sitting, because this machine's speed drifts by more than the
differences looked for; medians and ratios are what counts. Results go to the screen and to bench-report/bench.json.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

PACKETS = 512
MBUFS = 16383
POOLS = (32, 1024)
LEAF_IP, LEAF_MAC = "10.0.1.1", "02:00:00:00:00:01"
SERVER_IP, SERVER_MAC = "10.0.1.11", "02:00:00:00:01:0b"
TASK_PORT = 1234
NEW_TASK, TASK_DONE, IDLE_REMOVE = 0, 2, 10
EXTENSION = 0x20
# Spine and leaf are compared on a longer trace: a spine's leaves must be heard of, once a round of it.
SPINE_PACKETS = 8192
RACKS = 32
SERVICE_IP = "10.0.1.100"
NO_MEMBER = 0x7FFF
# Share of tasks sent when they were due, from which a run counts as open-loop.
ADHERENCE_BAR = 0.999
SLICE_S = 0.2
# What one of the programs is given, and the memory of EAL besides.
HUGEPAGES_MIB = 640


def checksum(data):
    """RFC 1071."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def mac(text):
    return bytes(int(byte, 16) for byte in text.split(":"))


def frame(to_mac, from_mac, src, dst, ports, payload):
    """An Ethernet frame with an IPv4 UDP packet and right checksums."""
    src, dst = socket.inet_aton(src), socket.inet_aton(dst)
    udp_len = 8 + len(payload)
    udp = struct.pack(">HHHH", *ports, udp_len, 0) + payload
    udp_sum = checksum(src + dst + struct.pack(">BBH", 0, 17, udp_len) + udp) or 0xFFFF
    udp = udp[:6] + struct.pack(">H", udp_sum) + udp[8:]
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + udp_len, 0, 0x4000, 64, 17, 0) + src + dst
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    return mac(to_mac) + mac(from_mac) + b"\x08\x00" + ip + udp


def client_address(number):
    """Clients are behind a router, which is the server, whose MAC address is configured: no ARP is needed to answer them."""
    return f"10.9.0.{2 + number % 200}"


def task(number, to=LEAF_IP):
    header = struct.pack(">BHHHHH", NEW_TASK, 1, 0, NO_MEMBER, 0, number)
    body = struct.pack(">QQ", 50_000, number)
    ports = (40_000 + number, TASK_PORT)
    return frame(LEAF_MAC, SERVER_MAC, client_address(number), to, ports, header + body)


def reply(number, workers):
    header = struct.pack(">BHHHHH", TASK_DONE, 1, number * 37 % workers, 0, 1 + number % 3, number)
    body = struct.pack(">QQ", 50_000, number)
    ports = (TASK_PORT, 40_000 + number)
    return frame(LEAF_MAC, SERVER_MAC, SERVER_IP, client_address(number), ports, header + body)


def member_address(number):
    """The first is the router to the clients."""
    return f"10.0.1.{11 + number}"


def signal(number):
    """A leaf tells the spine that each of its 32 workers has a task: tasks then go by load."""
    header = struct.pack(">BHHHHH", IDLE_REMOVE | EXTENSION, 1, 1 + number, 0, 0, 0)
    extension = struct.pack(">IIIHH", 0, 0, 1 << 16, 32, 0)
    return frame(LEAF_MAC, SERVER_MAC, member_address(number), LEAF_IP, (TASK_PORT, TASK_PORT), header + extension)


def write_trace(path, packets):
    """These packets as a pcap file."""
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for data in packets:
            out.write(struct.pack("<IIII", 0, 0, len(data), len(data)) + data)


def tasks_and_replies(workers):
    """In turn."""
    return [reply(number, workers) if number % 2 else task(number) for number in range(PACKETS)]


def tasks_for_spine(signals):
    """Tasks to the service address, the leaves' signals before them or as many tasks more."""
    first = [signal(number) if signals else task(number, SERVICE_IP) for number in range(RACKS)]
    return first + [task(number, SERVICE_IP) for number in range(RACKS, SPINE_PACKETS)]


def node_config(role, ip, cores, state):
    """What the files of leaf and spine begin with: one port, on which clients are behind a router with the members' MAC address."""
    return f"""[{role}]
id = 100
cores = {cores}
state = "{state}"
seed = 7
mbufs = {MBUFS}
[[port]]
device = "net_pcap0"
side = "both"
ip = "{ip}/24"
mac = "{LEAF_MAC}"
gateway = "{SERVER_IP}"
[[pool]]
id = 1
"""


def leaf_config(workers, ip=LEAF_IP, servers=1):
    """One leaf in front of servers: their MAC addresses are configured."""
    each = workers // servers
    members = 'policy = "horus"\n'
    for number in range(servers):
        members += f"""[[server]]
ip = "{member_address(number)}"
mac = "{SERVER_MAC}"
workers = "{number * each}-{(number + 1) * each - 1}"
pool = 1
"""
    return lambda cores, state: node_config("leaf", ip, cores, state) + members


def spine_config(policy):
    """One spine in front of leaves."""
    members = f'policy = "{policy}"\nservice = "{SERVICE_IP}"\n'
    for number in range(RACKS):
        members += f"""[[leaf]]
id = {1 + number}
ip = "{member_address(number)}"
mac = "{SERVER_MAC}"
workers = 32
pool = 1
"""
    return lambda cores, state: node_config("spine", LEAF_IP, cores, state) + members


def eal(options, trace, queues=1):
    memory = ["--in-memory"] if options.hugepages else ["--no-huge"]
    # Without a tx_pcap the driver drops what it sends. Each rx_pcap is a queue of its own.
    return memory + ["--no-pci", "-m", "512", "--vdev=net_pcap0" + f",rx_pcap={trace}" * queues + ",infinite_rx=1"]


def fail(program, output):
    sys.exit(f"{program} failed:\n{output.strip()[-2000:]}")


def other_cpu(options):
    return next(cpu for cpu in sorted(os.sched_getaffinity(0)) if cpu != options.core)


def slices(options, count):
    """Packets a second in each slice of a run, of which `count` tells the packets passed on so far."""
    rates = []
    first, start = count()
    for _ in range(max(1, round(options.seconds / SLICE_S))):
        time.sleep(SLICE_S)
        last, end = count()
        rates.append((last - first) / (end - start))
        first, start = last, end
    return rates


def counted(address, count):
    """The sum of `count` over all cores of a node by its metrics listener, and the time of its reading; None while there is
    none. The state file would be late: the thread that writes it has the lowest priority, and polling cores leave it no
    time."""
    try:
        with urllib.request.urlopen(f"http://{address}/status.json", timeout=10) as answer:
            status = json.load(answer)
    except OSError:
        return None
    return sum(map(count, status["state"]["cores"])), status["time"]


def free_address():
    """An address of this host that no program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def run_node(options, folder, role, trace, write, cores=1):
    """Packets a second that a leaf or spine passes on, slice by slice. The device drops what a node sends, so takes all."""
    on = [options.core] if cores == 1 else sorted(os.sched_getaffinity(0))[-cores:]
    return run_process(options, folder, role, lambda state: write(on, state), eal(options, trace, cores), lambda core: core["counters"]["forwarded"])


def run_process(options, folder, role, write, devices, count, allowed_drops=()):
    """How much a second the counters of a node with this configuration and these devices grow, slice by slice. `count`
    takes a number from a core's part of the state."""
    config, stats, state = (os.path.join(folder, name) for name in ("node.toml", "stats.json", "state"))
    address = free_address()
    if os.path.exists(state):
        os.remove(state)  # a node takes over the tasks that it finds there
    with open(config, "w", encoding="ascii") as out:
        out.write(write(state) + f'[control]\nmetrics = "{address}"\n')
    command = [os.path.join(options.bin, "wedjat"), role, "--config", config]
    command += ["--duration", f"{options.seconds + 60}s", "--stats", stats, "--"] + devices
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            deadline = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < deadline:
                if (counted(address, count) or (0, 0))[0]:
                    break
                time.sleep(0.05)
            else:
                process.terminate()
                fail(f"wedjat {role}", process.communicate()[0])
            # A leaf examines all packets for MAC addresses during a second after it missed one.
            time.sleep(1.3)
            rates = slices(options, lambda: counted(address, count))
        finally:
            process.terminate()
            output = process.communicate()[0]
    if process.returncode != 0:
        fail(f"wedjat {role}", output)
    with open(stats, encoding="utf-8") as file:
        drops = json.load(file)["drops"]
    if set(drops) - set(allowed_drops):
        fail(f"wedjat {role}", f"it dropped packets of the trace: {drops}")
    return rates


def transmitted(process, ports):
    """What the ports have sent so far, and when that was asked."""
    at = time.monotonic()
    process.stdin.write("".join(f"show port stats {port}\n" for port in range(ports)))
    process.stdin.flush()
    sent = []
    for line in process.stdout:
        found = re.search(r"TX-packets:\s*(\d+)", line)
        if found:
            sent.append(int(found[1]))
        if len(sent) == ports:
            return sum(sent), (at + time.monotonic()) / 2
    fail("dpdk-testpmd", "it ended early")


def run_testpmd(options, mode, trace):
    """Packets a second that testpmd passes on in a forwarding mode, slice by slice."""
    control = other_cpu(options)
    lcores = ["-l", f"{control},{options.core}", "--main-lcore", str(control)]
    forwarding = [f"--forward-mode={mode}", "--nb-cores=1", f"--total-num-mbufs={MBUFS}"]
    return run_forwarder(options, lcores + eal(options, trace), forwarding, 1)


def run_forwarder(options, devices, forwarding, ports):
    """Packets a second that testpmd with these arguments sends from all ports, slice by slice."""
    # Into a pipe testpmd would write only when its buffer is full.
    command = ["stdbuf", "-oL", "dpdk-testpmd"]
    command += [f"--file-prefix=wedjat-bench-{os.getpid()}"] * (not options.hugepages) + devices + ["--"] + forwarding
    command += ["--no-mlockall", "--auto-start", "--interactive"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        transmitted(process, ports)
        time.sleep(0.3)
        rates = slices(options, lambda: transmitted(process, ports))
        process.communicate("quit\n", timeout=30)
    return rates


def least_disturbed(rates):
    """The upper quartile of a run's slices: what a shared machine takes away from a run, it takes from some of them; and
    a slice that seems too fast because its ends were read late and early is above it."""
    return statistics.quantiles(rates, n=4)[2] if len(rates) > 1 else rates[0]


def compare(options, folder):
    """What each variant does in its least-disturbed slices, once a round, and all slices."""
    small, large = POOLS
    packets = {
        "tasks": [task(number) for number in range(PACKETS)],
        "mixed": tasks_and_replies(small),
        "long": tasks_for_spine(signals=False),
        "spine": tasks_for_spine(signals=True),
    }
    traces = {name: os.path.join(folder, f"{name}.pcap") for name in packets}
    for name, path in traces.items():
        write_trace(path, packets[name])
    tasks, mixed = traces["tasks"], traces["mixed"]

    def leaf(trace, workers, cores=1, **more):
        return lambda: run_node(options, folder, "leaf", trace, leaf_config(workers, **more), cores)

    def spine(policy):
        return lambda: run_node(options, folder, "spine", traces["spine"], spine_config(policy))

    variants = {
        "leaf tasks 32 workers": leaf(tasks, small),
        "leaf tasks 1024 workers": leaf(tasks, large),
        "leaf mixed 32 workers": leaf(mixed, small),
        "leaf tasks, 2 cores": leaf(tasks, small, cores=2),
        "leaf mixed, 2 cores": leaf(mixed, small, cores=2),
        "leaf long trace": leaf(traces["long"], RACKS, ip=SERVICE_IP, servers=RACKS),
        "spine horus-spine": spine("horus-spine"),
        "spine horus-spine-weighted": spine("horus-spine-weighted"),
        "testpmd csum tasks": lambda: run_testpmd(options, "csum", tasks),
        "testpmd csum mixed": lambda: run_testpmd(options, "csum", mixed),
        "testpmd 5tswap tasks": lambda: run_testpmd(options, "5tswap", tasks),
        "testpmd 5tswap mixed": lambda: run_testpmd(options, "5tswap", mixed),
        "testpmd io tasks": lambda: run_testpmd(options, "io", tasks),
    }
    if options.only_spine:
        variants = {name: run for name, run in variants.items() if name.startswith("spine") or name == "leaf long trace"}
    samples, everything = {name: [] for name in variants}, {name: [] for name in variants}
    for number in range(options.rounds):
        for name, measure in variants.items():
            progress(f"round {number + 1} of {options.rounds}: {name}")
            rates = measure()
            samples[name].append(least_disturbed(rates))
            everything[name].append([round(rate) for rate in rates])
    progress("")
    return samples, everything


@contextlib.contextmanager
def hugepages(wanted):
    """Whether there are hugepages for one of the programs; reserves some where that is allowed, and gives them back."""
    path = "/proc/sys/vm/nr_hugepages"

    def free():
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        number, size = (int(fields[key].split()[0]) for key in ("HugePages_Free", "Hugepagesize"))
        return number * size >> 10, size

    def reserve(number):
        with open(path, "w", encoding="ascii") as file:
            file.write(str(number))

    if not wanted:
        yield False
        return
    with open(path, encoding="ascii") as file:
        before = int(file.read())
    mib, size = free()
    if mib >= HUGEPAGES_MIB:
        yield True
        return
    try:
        reserve(before + (HUGEPAGES_MIB << 10) // size)
    except OSError:
        yield False
        return
    try:
        yield free()[0] >= HUGEPAGES_MIB
    finally:
        reserve(before)


def progress(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def ratios(samples):
    """Each figure of what was measured with its bar; ratios are taken within a round, then their median."""

    def median_of(calculate):
        rounds = zip(*(samples[name] for name in samples))
        return statistics.median(calculate(dict(zip(samples, values))) for values in rounds)

    def against(one, other):
        return median_of(lambda pps: pps[one] / pps[other]) if {one, other} <= set(samples) else None

    def added_ns(name):
        io = "testpmd io tasks"
        return median_of(lambda pps: 1e9 / pps[name] - 1e9 / pps[io]) if {name, io} <= set(samples) else None

    tasks, mixed = "leaf tasks 32 workers", "leaf mixed 32 workers"
    csum, swap = "testpmd csum", "testpmd 5tswap"
    figures = [
        ("leaf / csum, tasks", against(tasks, f"{csum} tasks"), ">=", 0.9),
        ("leaf / csum, half replies", against(mixed, f"{csum} mixed"), ">=", 0.8),
        ("leaf / 5tswap, tasks", against(tasks, f"{swap} tasks"), None, None),
        ("leaf / 5tswap, half replies", against(mixed, f"{swap} mixed"), None, None),
        ("leaf, 1024 / 32 workers", against("leaf tasks 1024 workers", tasks), ">=", 0.85),
        ("leaf, 2 cores / 1, tasks", against("leaf tasks, 2 cores", tasks), ">=", 1.9),
        ("leaf, 2 cores / 1, half replies", against("leaf mixed, 2 cores", mixed), ">=", 1.9),
        ("spine / leaf, horus-spine", against("spine horus-spine", "leaf long trace"), ">=", 0.95),
        ("spine / leaf, weighted", against("spine horus-spine-weighted", "leaf long trace"), None, None),
        ("ns a packet, leaf over io", added_ns(tasks), "<=", 35.0),
        ("ns a packet, csum over io", added_ns(f"{csum} tasks"), None, None),
        ("ns a packet, 5tswap over io", added_ns(f"{swap} tasks"), None, None),
    ]
    return [figure for figure in figures if figure[1] is not None]


def generate(options, socket_name, rate, warmup, more):
    """One run of the generator over memif against a process that reflects each task."""
    program = os.path.join(options.bin, "wedjat-pktgen")
    # Buffers that fit a task: at the usual 2048 bytes all of them share a few sets of the cache.
    device = f"net_memif0,role=%s,id=0,socket=@{socket_name},bsize=256"
    reflect = [program, "reflect", "--device", device % "server", "--core", str(other_cpu(options))]
    run = [program, "run", "--rate", rate, "--service", "fixed(1us)", "--dst", LEAF_IP]
    run += ["--duration", "1s", "--warmup", warmup, "--cores", str(options.core)]
    run += ["--format", "json", "--device", device % "client"] + more
    with subprocess.Popen(reflect, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            done = subprocess.run(run, capture_output=True, text=True, check=False)
        finally:
            server.terminate()
    # Status 1 is a run that did not keep up, which is a result, too.
    if done.returncode not in (0, 1) or not done.stdout:
        fail("wedjat-pktgen run", done.stderr + done.stdout)
    return json.loads(done.stdout)


def generator(options):
    """Short runs at the full rate, so that some lie between two pauses of a shared machine; runs at a low rate
    with the floor: latency with neither scheduler nor work, and how much of a schedule the machine's own pauses leave;
    and a run at a rate beyond reach: the most that one core sends."""

    def run(name, rate, *more, warmup="500ms"):
        progress(f"generator: {name}")
        socket_name = f"wedjat-bench-{os.getpid()}-{name.replace(' ', '-')}"
        return generate(options, socket_name, rate, warmup, list(more))

    rounds = range(1, options.rounds + 1)
    load = {
        "runs": [run(f"run {n}{half} at {options.rate}", options.rate, "--no-floor") for n in rounds for half in "ab"],
        "low_rate": [run(f"low-rate run {n}", "200k") for n in rounds],
        # Without a warm-up, whose backlog would go out first and count elsewhere.
        "beyond": [run(f"run {n} beyond reach", "20M", "--no-floor", warmup="1ms") for n in rounds],
    }
    progress("")
    return load


def revision(options):
    command = [os.path.join(options.bin, "wedjat"), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def manifest(options):
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    dpdk = subprocess.run(["pkg-config", "--modversion", "libdpdk"], capture_output=True, text=True, check=False)
    return {
        "revision": revision(options),
        "dpdk": dpdk.stdout.strip(),
        "cpu": model,
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "hugepages": options.hugepages,
        "rounds": options.rounds,
        "seconds": options.seconds,
    }


def show(options, samples, figures, load):
    print(f"memory: {'hugepages' if options.hugepages else 'no hugepages (--no-huge)'}; least-disturbed slices of {SLICE_S:g} s")
    print(f"{'packets a second, one core':34} {'median':>9} {'least':>9} {'most':>9}   ns")
    for name, values in samples.items():
        median = statistics.median(values)
        columns = " ".join(f"{value / 1e6:8.2f}M" for value in (median, min(values), max(values)))
        print(f"{name:34} {columns}  {1e9 / median:5.1f}")
    print()
    for name, value, sign, bar in figures:
        verdict = ""
        if sign:
            met = value >= bar if sign == ">=" else value <= bar
            verdict = f"bar {sign} {bar:g}: {'met' if met else 'NOT MET'}"
        print(f"{name:34} {value:9.3f}  {verdict}")
    if load:
        show_generator(load)


def show_generator(load):
    """Adherence is judged as measured. What the undisturbed slices say, and what the same machine leaves of a schedule that costs
    nothing, stands below."""
    offered = load["runs"][0]["offered_pps"] / 1e6
    kept = sorted(run["adherence"] for run in load["runs"])
    median, best = statistics.median(kept), kept[-1]
    enough = sum(adherence >= ADHERENCE_BAR for adherence in kept)
    met = "met" if median >= ADHERENCE_BAR else "NOT MET"
    print(f"{f'generator, adherence at {offered:g}M/s':34} {median:9.3%}  bar >= {ADHERENCE_BAR:.1%}: {met}")
    print(f"{'':34} {best:9.3%}  best of {len(kept)} runs; {enough} reach the bar")
    show_undisturbed_slices("the same, undisturbed slices", load["runs"])
    low_rate = load["low_rate"]
    machine = statistics.median(run["adherence"] for run in low_rate)
    print(f"{'the same at 200k/s':34} {machine:9.3%}  what the machine's pauses leave")
    show_undisturbed_slices("that, undisturbed slices", low_rate)
    most = statistics.median(run["sent"] / run["duration_s"] for run in load["beyond"]) / 1e6
    print(f"{'generator, sent at most':34} {most:8.2f}M")
    for name, key in (("floor", "floor_us"), ("reflected over memif", "response_us")):
        by_tail = sorted((run[key] for run in low_rate), key=lambda latency: latency["p99"] or float("inf"))
        latency = by_tail[len(by_tail) // 2]
        columns = "  ".join(f"{key} {microseconds(latency[key])}" for key in ("p50", "p99", "p999"))
        print(f"{f'{name} at 200k/s':34} {columns}")


def show_undisturbed_slices(name, runs):
    """Of all runs together: the share of undisturbed slices' tasks that were sent when they were due, and the excluded tasks."""
    scheduled = sum(run["undisturbed"]["scheduled"] for run in runs)
    on_time = sum(run["undisturbed"]["sent"] - run["undisturbed"]["late"] for run in runs)
    slices, undisturbed = (sum(run["slices"][key] for run in runs) for key in ("all", "undisturbed"))
    excluded = sum(run["slices"]["excluded_tasks"] for run in runs)
    kept = f"{on_time / scheduled:9.3%}" if scheduled else f"{'-':>9}"
    print(f"{name:34} {kept}  {undisturbed} of {slices} slices; {excluded} tasks excluded")


def microseconds(value):
    return "infinite" if value is None else f"{value:.1f} us"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="target/release", help="folder of the programs (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each variant (%(default)s)")
    parser.add_argument("--seconds", type=int, default=3, help="length of a run (%(default)s)")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="CPU measured on (%(default)s)")
    parser.add_argument("--no-huge", action="store_true", help="without hugepages, also where there are some")
    parser.add_argument("--only-leaf", action="store_true", help="without the runs of the generator")
    parser.add_argument("--only-spine", action="store_true", help="the spine's runs and the leaf's on its trace alone")
    parser.add_argument("--rate", default="5M", help="the generator's load (%(default)s)")
    parser.add_argument("--out", default="bench-report", help="folder for bench.json (%(default)s)")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("found 1 CPU; the comparison needs 2: one to measure on, one for the control threads")
    with tempfile.TemporaryDirectory() as folder, hugepages(not options.no_huge) as options.hugepages:
        samples, everything = compare(options, folder)
    load = None if options.only_leaf or options.only_spine else generator(options)
    figures = ratios(samples)
    show(options, samples, figures, load)
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, "bench.json")
    report = {
        "manifest": manifest(options),
        "pps": samples,
        "slices_pps": everything,
        "figures": [
            {"name": name, "value": value, "bar": f"{sign} {bar:g}" if sign else None}
            for name, value, sign, bar in figures
        ],
        "generator": load,
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=2)
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
