#!/usr/bin/env python3
"""Runs `wedjat leaf` on emulated NICs in a QEMU guest, against clients and worker servers on kernel sockets of the host.

Each device model gets a guest of its own, without KVM, with three NICs: one for clients and two for workers. The guest has
the host's root file system over 9p, an IOMMU, and vfio-pci. Each NIC is a tap interface in a network namespace of the host.
A check that fails names what was seen; the exit status is then 1. Needs root, QEMU and a kernel package, which
`scripts/deps.sh nics` installs or downloads. No check judges speed.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
# Modules that the guest loads before it mounts the host's root.
MODULES = ["virtio_pci", "9p", "9pnet_virtio", "overlay", "vfio_iommu_type1", "vfio-pci"]

# Device of QEMU with its options, and PCI id of its NICs, for vfio-pci.
MODELS = {
    "e1000e": ("e1000e", "8086:10d3"),
    "igb": ("igb", "8086:10c9"),
    "igb-vf": ("igb", "8086:10c9"),
    "vmxnet3": ("vmxnet3", "15ad:07b0"),
    "virtio": ("virtio-net-pci,disable-legacy=on,iommu_platform=on", "1af4:1041"),
    "virtio-packed": ("virtio-net-pci,disable-legacy=on,iommu_platform=on,packed=on", "1af4:1041"),
    "virtio-rss": ("virtio-net-pci,disable-legacy=on,iommu_platform=on,mq=on,rss=on,vectors=8", "1af4:1041"),
    "virtio-multiqueue": ("virtio-net-pci,disable-legacy=on,iommu_platform=on,mq=on,vectors=8", "1af4:1041"),
}
# Models whose ports are virtual functions (SR-IOV), one of each NIC: the NICs' driver in the guest's kernel, and the PCI id
# of the virtual functions, for vfio-pci.
VIRTUAL = {"igb-vf": ("igb", "8086:10ca")}
# Queue pairs of a port of each model; 1 if absent.
QUEUES = {"e1000e": 2, "igb": 8, "igb-vf": 2, "vmxnet3": 4, "virtio-rss": 2, "virtio-multiqueue": 2}
# Queues of the taps of each model; 1 if absent. A virtio NIC has as many queue pairs as its tap has queues.
TAP_QUEUES = {"virtio-rss": 2, "virtio-multiqueue": 2}
# Models whose RSS key the leaf can set: each reply must reach the core of its task.
STEERED = ("igb", "virtio-rss")
# Models whose DPDK driver has no receive interrupts.
SILENT = ("igb-vf",)

# Sides, one NIC each: last letter of namespace and tap, IPv4 prefix, IPv6 prefix. Clients are at c, workers at w and x.
# The leaf is host 1 of each network, the peer host PEER.
SIDES = [("c", "10.66.1", "fd66:1:"), ("w", "10.66.2", "fd66:2:"), ("x", "10.66.3", "fd66:3:")]
PEER = 11
VLAN = 7


class Failure(Exception):
    """Failed check, with its observation as text."""


class EmulatorEnd(Failure):
    """End of QEMU during a check, with its error as text. No guest may cause that, so it is a defect of QEMU."""


def expect(condition, text):
    if not condition:
        raise Failure(text)


def call(*words, **more):
    """Runs a program on the host. Returns its output. Raises Failure if the program fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise Failure(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Kernel:
    """Kernel and initramfs of the guest, from the downloaded package."""

    def __init__(self, package, folder):
        self.folder = folder
        unpacked = os.path.join(folder, "package")
        os.makedirs(unpacked)
        # Unpacks the whole package: a list of the needed files would save little.
        call("dpkg", "-x", package, unpacked)
        self.image = self.first(os.path.join(unpacked, "boot"), "vmlinuz-")
        version = os.path.basename(self.image).removeprefix("vmlinuz-")
        modules = next(path for path in (f"{unpacked}/lib/modules", f"{unpacked}/usr/lib/modules") if os.path.isdir(path))
        # Path of each module by name, with underscores.
        self.modules = {}
        for parent, _, names in os.walk(os.path.join(modules, version)):
            for name in names:
                if ".ko" in name:
                    self.modules[name.split(".ko")[0].replace("-", "_")] = os.path.join(parent, name)

    @staticmethod
    def first(folder, prefix):
        """Returns the path of the first file with this prefix."""
        return next(os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.startswith(prefix))

    def content(self, name):
        """Returns the bytes of a module, decompressed."""
        path = self.modules[name]
        with open(path, "rb") as file:
            data = file.read()
        if path.endswith(".xz"):
            import lzma
            return lzma.decompress(data)
        if path.endswith(".zst"):
            return subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=True).stdout
        return data

    def closure(self, wanted):
        """Returns the names of the wanted modules and of their dependencies, in the order of loading."""
        order = []

        def add(name):
            name = name.replace("-", "_")
            if name in order or name not in self.modules:
                return  # already added, or built into the kernel
            # The module's information has entries KEY=VALUE that end with a NUL byte.
            depends = re.search(rb"\0depends=([^\0]*)\0", b"\0" + self.content(name))
            for other in depends.group(1).decode().split(",") if depends else []:
                if other:
                    add(other)
            order.append(name)

        for name in wanted:
            add(name)
        return order

    def initramfs(self, more):
        """Writes an initramfs with `init.c`, [`MODULES`] and `more` modules, and their list. Returns its path."""
        init = os.path.join(self.folder, "init")
        if not os.path.exists(init):
            call("cc", "-static", "-Os", "-o", init, os.path.join(HERE, "init.c"))
        with open(init, "rb") as file:
            files, lines = {"init": file.read()}, []
        for name in self.closure(MODULES + more):
            files[f"{name}.ko"] = self.content(name)
            lines.append(f"/{name}.ko")
        files["modules"] = "".join(f"{line}\n" for line in lines).encode()
        number, path = tempfile.mkstemp(dir=self.folder)
        with os.fdopen(number, "wb") as file:
            for inode, (name, data) in enumerate(files.items(), start=1):
                file.write(cpio(name, data, inode))
            file.write(cpio("TRAILER!!!", b"", 0))
        return path


def cpio(name, data, inode):
    """Returns one file of a cpio archive, in the format newc."""
    # Inode, mode (executable file), owner, group, links, time, size, four device numbers, length of the name, checksum.
    numbers = [inode, 0o100755, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08x" % number for number in numbers) + name.encode() + b"\0"
    return padded(head) + padded(data)


def padded(data):
    """Returns the data, padded with zeros to a multiple of four bytes."""
    return data + bytes(-len(data) % 4)


class Net:
    """Network namespaces of the peers. A side's namespace and tap have the same name."""

    def __init__(self):
        self.prefix = f"wl{os.getpid()}"

    def name(self, side):
        """Returns the name of a side's namespace and tap."""
        return self.prefix + side

    def __enter__(self):
        self.running = []
        try:
            for side, _, _ in SIDES:
                call("ip", "netns", "add", self.name(side))
                self.within(side, "ip", "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, side, *words):
        """Starts a peer, which runs until `__exit__` closes its standard input. Waits until it is ready."""
        words = self.command(side, sys.executable, os.path.join(HERE, "peer.py"), *words)
        peer = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.running.append(peer)
        expect(peer.stdout.readline() == '"ready"\n', f"{words[4:]} did not start")

    def __exit__(self, *_):
        for peer in self.running:
            peer.stdin.close()
            peer.wait()
        for side, _, _ in SIDES:
            subprocess.run(["ip", "netns", "del", self.name(side)], capture_output=True, check=False)

    def command(self, side, *words):
        """Returns the command that runs `words` in a side's namespace."""
        return ["ip", "netns", "exec", self.name(side), *words]

    def within(self, side, *words):
        """Runs a command in a side's namespace, like `call`."""
        return call(*self.command(side, *words))

    def join(self):
        """Moves the taps, which QEMU has created, into the namespaces, gives them addresses, and starts all servers."""
        for side, v4, v6 in SIDES:
            tap = self.name(side)
            call("ip", "link", "set", tap, "netns", self.name(side))
            self.within(side, "sh", "-c", f"echo 0 > /proc/sys/net/ipv6/conf/{tap}/accept_ra")
            self.within(side, "ip", "link", "set", tap, "up")
            self.start(side, "tag", tap, "tagged", str(VLAN))
            # By default, the kernel drops a packet if its next hop ignores three requests. The host may stop a guest
            # for longer.
            for setting in ("ipv4/neigh", "ipv6/neigh"):
                for interface in (tap, "tagged"):
                    self.within(side, "sh", "-c", f"echo 250 > /proc/sys/net/{setting}/{interface}/mcast_solicit")
            # The same MAC address: a leaf takes over its predecessor's neighbours, which may have been in the VLAN.
            address = self.within(side, "cat", f"/sys/class/net/{tap}/address").strip()
            self.within(side, "ip", "link", "set", "tagged", "address", address)
            self.within(side, "ip", "link", "set", "tagged", "up")
            self.addresses(side, tap, v4, v6)
            if side != "c":
                self.start(side, "serve", f"{v4}.{PEER}")
                self.start(side, "serve", f"{v6}:{PEER:x}")

    def addresses(self, side, interface, v4, v6):
        """Moves a side's addresses and default routes to `interface`."""
        self.within(side, "ip", "address", "flush", "dev", self.name(side), "scope", "global")
        self.within(side, "ip", "address", "flush", "dev", "tagged", "scope", "global")
        self.within(side, "ip", "address", "add", f"{v4}.{PEER}/24", "dev", interface)
        self.within(side, "ip", "address", "add", f"{v6}:{PEER:x}/64", "dev", interface, "nodad")
        self.within(side, "ip", "route", "replace", "default", "via", f"{v4}.1")
        self.within(side, "ip", "-6", "route", "replace", "default", "via", f"{v6}:1")

    def set_neighbours(self):
        """Makes the MAC address of the leaf's virtual function known to the IPv6 hosts of each side. QEMU's igb delivers
        no neighbour solicitations to a virtual function: it ignores VMOLR.MPME, the bit for all multicast groups."""
        for side, _, v6 in SIDES:
            entry = [f"{v6}:1", "lladdr", function_mac(side), "dev", self.name(side), "nud", "permanent"]
            self.within(side, "ip", "-6", "neigh", "replace", *entry)

    def use_vlan(self, on):
        """Moves the addresses of all sides to the tagged interface, or back."""
        for side, v4, v6 in SIDES:
            self.addresses(side, "tagged" if on else self.name(side), v4, v6)

    def forget(self):
        """Clears the neighbours, so that the next packet needs a request for a MAC address."""
        for side, _, _ in SIDES:
            self.within(side, "ip", "neigh", "flush", "all")


def mac(side):
    """Returns the MAC address of a side's NIC."""
    return f"02:00:00:00:00:0{[one for one, _, _ in SIDES].index(side) + 1}"


def function_mac(side):
    """Returns the MAC address of the virtual function of a side's NIC."""
    return mac(side).replace("02", "06", 1)


class Guest:
    """A guest: QEMU's process, its monitor (QMP), and the channel to the guest's program (agent)."""

    def __init__(self, options, kernel, net, model):
        self.options, self.net = options, net
        self.device, self.pci = MODELS[model]
        # Without virtual functions, the NICs are the ports.
        self.driver, self.port_pci = VIRTUAL.get(model, (None, self.pci))
        self.folder = tempfile.mkdtemp(dir=kernel.folder)
        self.console = os.path.join(self.folder, "console")
        initrd = kernel.initramfs([self.driver] if self.driver else [])
        # QEMU runs all CPUs of the guest in one thread. With several threads, QEMU 10.0 sometimes hangs or aborts.
        # The command line of the kernel separates the program's words by commas. The guest has 192 hugepages of 2 MiB.
        program = ",".join([sys.executable, os.path.join(HERE, "guest.py")])
        self.words = [
            options.qemu, "-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "max,la57=off", "-smp", "3", "-m", "1536",
            "-nodefaults", "-no-reboot", "-display", "none", "-device", "intel-iommu,intremap=on,eim=off",
            "-kernel", kernel.image, "-initrd", initrd,
            "-append", f"console=ttyS0 panic=-1 intel_iommu=on no_timer_check nokaslr mitigations=off hugepages=192 lab={program}",
            "-serial", f"file:{self.console}", "-serial", f"unix:{self.folder}/agent,server=on,wait=off",
            "-qmp", f"unix:{self.folder}/qmp,server=on,wait=off",
            "-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=host,mount_tag=host,disable-legacy=on,iommu_platform=on",
        ]
        queues = TAP_QUEUES.get(model, 1)
        for slot, (side, _, _) in enumerate(SIDES):
            tap = f"tap,id=net{side},ifname={net.name(side)},script=no,downscript=no,queues={queues}"
            self.words += ["-netdev", tap]
            # Each NIC has its own root port, so that QEMU can unplug it and plug it in again.
            self.words += ["-device", f"pcie-root-port,id=port{side},chassis={slot + 1},slot={slot + 1}"]
            self.words += ["-device", self.nic(side)]

    def nic(self, side):
        """Returns the value of QEMU's option -device for a side's NIC."""
        return f"{self.device},id=nic{side},netdev=net{side},bus=port{side},mac={mac(side)}"

    def __enter__(self):
        # On its standard output, QEMU warns of requests that its vmxnet3 does not know.
        nowhere = subprocess.DEVNULL
        self.process = subprocess.Popen(self.words, stdin=nowhere, stdout=nowhere, stderr=subprocess.PIPE, text=True)
        try:
            self.monitor = self.connect("qmp")
            self.receive(self.monitor)
            self.qmp("qmp_capabilities")
            self.net.join()
            self.agent = self.connect("agent")
            # Other messages of the guest may come first.
            while self.receive(self.agent) != "ready":
                pass
            if self.driver:
                self.create_functions()
                self.net.set_neighbours()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def connect(self, name):
        """Connects to a socket that QEMU creates during its start. Returns a file for both directions."""
        path, deadline = os.path.join(self.folder, name), time.monotonic() + self.options.timeout
        while True:
            channel = socket.socket(socket.AF_UNIX)
            try:
                channel.connect(path)
                channel.settimeout(self.options.timeout)
                return channel.makefile("rw")
            except OSError:
                channel.close()
                if self.process.poll() is not None:
                    raise Failure(f"QEMU ended: {self.process.stderr.read().strip()}") from None
                expect(time.monotonic() < deadline, f"QEMU did not open {path}")
                time.sleep(0.05)

    def send(self, channel, message):
        """Sends a message, a line of JSON."""
        try:
            channel.write(json.dumps(message) + "\n")
            channel.flush()
        except OSError:
            raise self.silence() from None

    def receive(self, channel):
        """Returns the next message, a line of JSON."""
        try:
            line = channel.readline()
        except OSError:  # among them the end of the channel's patience
            line = ""
        if not line:
            raise self.silence()
        return json.loads(line)

    def silence(self):
        """Returns the exception for a guest that does not answer: QEMU has ended, or the guest takes too long."""
        try:
            self.process.wait(5)  # a QEMU that fails closes its channels before it ends
        except subprocess.TimeoutExpired:
            return Failure(f"the guest does not answer; its console ends with: {self.console_end()}")
        return EmulatorEnd(f"QEMU ended with {self.process.returncode}: {self.process.stderr.read().strip()}")

    def console_end(self):
        """Returns the last eight lines of the guest's console."""
        lines = []
        # QEMU makes the file shortly after its monitor.
        if os.path.exists(self.console):
            with open(self.console, errors="replace") as file:
                lines = file.read().splitlines()
        return " | ".join(lines[-8:])

    def qmp(self, command, **arguments):
        """Executes a command of QEMU's monitor and returns its result. Skips events before the result."""
        self.send(self.monitor, {"execute": command, "arguments": arguments})
        while True:
            answer = self.receive(self.monitor)
            if "error" in answer:
                raise Failure(f"QEMU: {command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]

    def do(self, request, *arguments):
        """Executes a request of the guest's program (a function of `guest.py`) and returns its result."""
        self.send(self.agent, {"do": request, "with": arguments})
        answer = self.receive(self.agent)
        if "error" in answer:
            raise Failure(f"guest: {request}{arguments}: {answer['error']}")
        return answer["result"]

    def wait(self, what, condition):
        """Repeats `condition` until it is true. Returns its value. `what` names the condition in a failure."""
        deadline = time.monotonic() + self.options.timeout
        while True:
            value = condition()
            if value:
                return value
            expect(time.monotonic() < deadline, f"waited {self.options.timeout} s for: {what}")
            time.sleep(0.1)

    def create_functions(self):
        """Creates a virtual function of each NIC, if the model has them."""
        macs = {mac(side): function_mac(side) for side, _, _ in SIDES}
        if self.driver:
            self.wait("the virtual functions", lambda: self.do("create_functions", self.driver, macs) == len(SIDES))

    def nics(self):
        """Returns the number of NICs in the guest."""
        return len(self.do("find", self.pci))

    def addresses(self):
        """Binds the ports to vfio-pci and returns their PCI addresses, in the order of the sides."""
        # Each NIC is alone on the bus of its root port, and the guest numbers the buses in the order of the root ports.
        return self.do("bind", self.port_pci)

    def hugepages(self):
        """Returns the number of hugepages in use, and the names of their files."""
        folder = "/sys/kernel/mm/hugepages/hugepages-2048kB"
        used = int(self.do("read", f"{folder}/nr_hugepages")) - int(self.do("read", f"{folder}/free_hugepages"))
        return used, self.do("names", "/dev/hugepages")


class Leaf:
    """A leaf in the guest, with pool 1 at side w and pool 2 at side x. The workers of pool P are 8 * P to 8 * P + 3."""

    def __init__(self, guest, cores=1, poll="busy", family=4, vlan=False, eal=()):
        self.guest, self.vlan = guest, vlan
        self.family = family
        text = f'[leaf]\nid = 1\ncores = {list(range(1, cores + 1))}\nstate = "/dev/shm/leaf"\nseed = 7\npoll = "{poll}"\n'
        for address, (side, v4, v6) in zip(guest.addresses(), SIDES):
            ip, kind = (f"{v4}.1/24" if family == 4 else f"{v6}:1/64"), ("clients" if side == "c" else "workers")
            text += f'[[port]]\ndevice = "{address}"\nside = "{kind}"\nip = "{ip}"\n' + (f"vlan = {VLAN}\n" if vlan else "")
        for pool, (side, v4, v6) in enumerate(SIDES[1:], start=1):
            ip = f"{v4}.{PEER}" if family == 4 else f"{v6}:{PEER:x}"
            text += f'[[pool]]\nid = {pool}\npolicy = "random"\n'
            text += f'[[server]]\nip = "{ip}"\nworkers = "{pool * 8}-{pool * 8 + 3}"\npool = {pool}\n'
        guest.do("write", "/run/leaf.toml", text)
        self.words = [guest.options.wedjat, "leaf", "--config", "/run/leaf.toml", "--stats", "/run/leaf.json"]
        self.words += ["--", *eal] if eal else []

    def __enter__(self):
        self.guest.net.use_vlan(self.vlan)
        self.guest.net.forget()
        self.guest.do("start", "leaf", self.words)
        self.running = True
        try:
            self.guest.wait("the leaf to run", self.runs)
            self.guest.wait("links of all ports", self.is_linked)
        except BaseException:
            self.__exit__(None)
            raise
        return self

    def runs(self):
        """Returns a true value once the leaf runs."""
        output = self.guest.do("output", "leaf")
        if output["code"] is not None:
            self.running = False
            raise Failure(f"the leaf ended: {output['text'].strip()}")
        return re.search(r"leaf 1 runs on", output["text"])

    def is_linked(self):
        """Returns true once all ports have a link. A NIC receives no packet before."""
        return self.counters()["ports_without_link"] == []

    def __exit__(self, *_):
        if self.running:
            self.end("SIGKILL")

    def end(self, signal_name="SIGTERM"):
        """Ends the leaf by a signal. Returns its exit status and output."""
        self.running = False
        return self.guest.do("end", "leaf", signal_name)

    def account(self):
        """Ends the leaf in order. Returns its account, with its output as `log`."""
        ended = self.end()
        expect(ended["code"] == 0, f"the leaf ended with {ended['code']}: {ended['text'].strip()[-2000:]}")
        return {**json.loads(self.guest.do("read", "/run/leaf.json")), "log": ended["text"]}

    def log(self):
        """Returns the leaf's output so far."""
        return self.guest.do("output", "leaf")["text"]

    def counters(self):
        """Returns the current counters of the state file: their sums, and those of each core."""
        printed = self.guest.do("run", [self.guest.options.wedjat, "state", "--json", "/dev/shm/leaf"])
        expect(printed["code"] == 0, printed["err"])
        return json.loads(printed["out"])

    def ask(self, tasks, pool=1, **more):
        """Sends tasks to a pool. Returns the client's report. `more` has further options of `peer.py ask`."""
        address = f"{SIDES[0][1]}.1" if self.family == 4 else f"{SIDES[0][2]}:1"
        options = [f"--{key.replace('_', '-')}={value}" for key, value in more.items()]
        timeout = more.get("timeout", self.guest.options.timeout)
        options += [f"--timeout={timeout}"]
        words = [sys.executable, os.path.join(HERE, "peer.py"), "ask", address, str(tasks), f"--pool={pool}", *options]
        return json.loads(call(*self.guest.net.command("c", *words)))

    def answers_all(self, tasks, **more):
        """Sends tasks and checks that all get right answers. Returns the client's report."""
        # A tag takes 4 bytes of the tap's MTU of 1500.
        report = self.ask(tasks, mtu=1496 if self.vlan else 1500, **more)
        expect(report["answered"] == tasks and report["wrong"] == 0, f"of {tasks} tasks: {report}; log: {self.log()[-9000:]}")
        return report


def one_core(guest):
    """One core that polls without pause answers a first task without known neighbours, and tasks of all lengths up to
    the MTU. An orderly exit returns all hugepages."""
    with Leaf(guest) as leaf:
        first = leaf.answers_all(1)
        leaf.answers_all(100)
        during, _ = guest.hugepages()
        expect(during > 0, "the leaf uses no hugepages")
        account = leaf.account()
    used, files = guest.hugepages()
    expect(used == 0 and not files, f"after an orderly exit {used} hugepages are in use, by {files}")
    return {"tasks": 101, "hugepages": during, "first": first["answered"], "drops": account["drops"], "partial": partial(account)}


def partial(account):
    """Returns the number of packets whose checksum the leaf completed."""
    return sum(port["rx_partial"] for port in account["ports"])


def two_cores(guest):
    """Two cores answer all tasks, and each flow's replies reach the core of its tasks. On a NIC with one queue pair,
    the leaf refuses to start and names the allowed number of queues."""
    if QUEUES.get(guest.model, 1) < 2:
        try:
            with Leaf(guest, cores=2):
                raise Failure("a leaf with two cores runs on a NIC with one queue pair")
        except Failure as refusal:
            expect("allows 1 to 1" in str(refusal), str(refusal))
            return {"refused": "one queue pair"}
    with Leaf(guest, cores=2) as leaf:
        leaf.answers_all(200, sockets=64)
        elsewhere, before = 0, per_core(leaf)
        # Each round has one new flow. A core with more replies than tasks received replies of another core's tasks.
        for _ in range(12):
            leaf.answers_all(10, sockets=1)
            now = per_core(leaf)
            for core in range(2):
                scheduled, replies = (now[core][key] - before[core][key] for key in ("scheduled", "replies"))
                elsewhere += max(replies - scheduled, 0)
            before = now
        log = leaf.account()["log"]
    expect(elsewhere == 0 or guest.model not in STEERED, f"{elsewhere} replies reached another core than their task; {log}")
    by_core = [before[core]["scheduled"] for core in range(2)]
    steering = re.findall(r"spreads? .*", log)
    expect(all(by_core) or "core" in " ".join(re.findall(r"WARN.*", log)), f"tasks by core: {by_core}, and no warning: {log}")
    return {"tasks": 320, "by_core": by_core, "replies_elsewhere": elsewhere, "steering": steering}


def per_core(leaf):
    """Returns the counters of each core once the state file shows all replies. The node writes it about every 50 ms."""
    def settled():
        cores = [core["counters"] for core in leaf.counters()["cores"]]
        total = {key: sum(core[key] for core in cores) for key in ("scheduled", "replies")}
        return cores if total["scheduled"] == total["replies"] else None
    return leaf.guest.wait("the state file", settled)


def adaptive(guest):
    """A core that sleeps answers IPv6 tasks with pauses between them. Interrupts, not the timer, wake it, if the NIC's
    driver has them."""
    with Leaf(guest, poll="adaptive", family=6) as leaf:
        leaf.answers_all(100, pace_ms=20, window=1)
        account = leaf.account()
    sleeps, wakes, late = (account.get(key, 0) for key in ("sleeps", "wakes", "late_wakes"))
    # Without interrupts the core takes short naps.
    naps = guest.model in SILENT or "delivers none" in account["log"]
    # An interrupt is late if the host stops the guest's CPU that handles it, so a busy host causes late ones.
    expect(naps or wakes > late, f"interrupts woke the core {wakes} times, and {late} packets waited for the timer")
    return {"tasks": 100, "sleeps": sleeps, "wakes": wakes, "late_wakes": late, "naps": naps}


def vlan(guest):
    """Ports in a VLAN answer all tasks."""
    with Leaf(guest, vlan=True) as leaf:
        leaf.answers_all(60)
        account = leaf.account()
    return {"tasks": 60, "other_vlan": sum(port["rx_other_vlan"] for port in account["ports"])}


def link(guest):
    """The link of the clients' port goes down and up. The leaf logs both, and answers the first task afterwards."""
    with Leaf(guest, poll="adaptive") as leaf:
        leaf.answers_all(20)
        guest.qmp("set_link", name="nicc", up=False)
        guest.wait("the log of a link that went down", lambda: "link down" in leaf.log())
        guest.qmp("set_link", name="nicc", up=True)
        guest.wait("the log of a link that came up", lambda: "link up" in leaf.log())
        leaf.answers_all(1)
        leaf.answers_all(20)
        leaf.account()
    return {"tasks": 41}


def restart(guest):
    """A new leaf takes over devices and hugepages of a killed one."""
    with Leaf(guest) as leaf:
        leaf.answers_all(20)
        leaf.end("SIGKILL")
    with Leaf(guest) as leaf:
        leaf.answers_all(20)
        leaf.account()
    used, files = guest.hugepages()
    expect(used == 0 and not files, f"after a kill and an orderly exit {used} hugepages are in use, by {files}")
    return {"tasks": 40}


def unplug(guest):
    """QEMU unplugs a NIC and plugs it in again. Meanwhile the other ports continue; afterwards the NIC serves again."""
    with Leaf(guest) as leaf:
        leaf.answers_all(10, pool=1)
        leaf.answers_all(10, pool=2)
        guest.qmp("device_del", id="nicx")
        guest.wait("the log of the removal", lambda: "removed" in leaf.log())
        guest.wait("the end of the NIC", lambda: guest.nics() == 2)
        leaf.answers_all(20, pool=1)
        lost = leaf.ask(5, pool=2, timeout=2)
        expect(lost["answered"] == 0, f"tasks to a NIC that is unplugged: {lost}")
        leaf.answers_all(20, pool=1)
        driver, _, more = guest.nic("x").partition(",")
        pairs = (pair.split("=", 1) for pair in more.split(","))
        guest.qmp("device_add", driver=driver, **{key: typed(key, value) for key, value in pairs})
        guest.create_functions()
        guest.wait("the log of the return", lambda: guest.addresses() and "opened again" in leaf.log())
        leaf.answers_all(20, pool=2)
        leaf.answers_all(20, pool=1)
        account = leaf.account()
    used, files = guest.hugepages()
    expect(used == 0 and not files, f"after an unplug and an orderly exit {used} hugepages are in use, by {files}")
    return {"tasks": 105, "drops": account["drops"]}


def typed(key, value):
    """Returns the value of a device's option in JSON. QEMU's monitor distinguishes numbers, switches and strings."""
    if key == "disable-legacy":  # on, off or auto
        return value
    return int(value) if value.isdigit() and not value.startswith("0") else {"on": True, "off": False}.get(value, value)


CHECKS = [one_core, two_cores, adaptive, vlan, link, restart, unplug]


def run_model(options, kernel, model):
    """Runs the checks of one model in one guest, or in several if QEMU ends. Returns the model's part of the report."""
    began = time.monotonic()
    report = {"device": MODELS[model][0], "checks": {}, "emulator_ends": {}}
    waiting = [check for check in CHECKS if check.__name__ in options.checks]
    try:
        while waiting:
            since = time.monotonic()
            with Net() as net, Guest(options, kernel, net, model) as guest:
                guest.model = model
                report.setdefault("boot_s", round(time.monotonic() - since, 1))
                run_checks(guest, waiting, report)
    except Exception as error:
        failure = str(error) if isinstance(error, Failure) else traceback.format_exc()
        report["checks"]["guest"] = {"passed": False, "failure": failure}
        print(f"{model}: FAILED: {failure}", flush=True)
    report["seconds"] = round(time.monotonic() - began, 1)
    return report


def run_checks(guest, waiting, report):
    """Runs the waiting checks in a guest. If QEMU ends, the check stays waiting for another guest, but only once."""
    while waiting and guest.process.poll() is None:
        check, since = waiting.pop(0), time.monotonic()
        name = check.__name__
        try:
            result = {"passed": True, **check(guest)}
        except Failure as failure:
            if isinstance(failure, EmulatorEnd) and name not in report["emulator_ends"]:
                report["emulator_ends"][name] = str(failure)
                waiting.insert(0, check)
                print(f"{guest.model}: {name}: again in a new guest: {failure}", flush=True)
                continue
            result = {"passed": False, "failure": str(failure)}
        result["seconds"] = round(time.monotonic() - since, 1)
        report["checks"][name] = result
        state = "ok" if result["passed"] else f"FAILED: {result['failure']}"
        print(f"{guest.model}: {name}: {state} ({result['seconds']} s)", flush=True)


def write_report(path, report):
    if path:
        with open(path, "w") as file:
            json.dump(report, file, indent=1)
            file.write("\n")


# Marks of the table in the page.
BEGIN, END = "<!-- lab: begin -->\n", "<!-- lab: end -->\n"
# Checks in the columns of the table.
COLUMNS = ["one_core", "two_cores", "adaptive", "vlan", "link", "restart", "unplug"]


def cell(check):
    """Returns the text of a check's result in the page's table; `check` is None if the check did not run."""
    if check is None:
        return "-"
    if not check["passed"]:
        return "**failed**"
    if "refused" in check:
        return "refused: one queue"
    if "by_core" in check:
        by_core = "+".join(str(tasks) for tasks in check["by_core"])
        return f"{by_core} tasks, {check['replies_elsewhere']} replies elsewhere"
    if "late_wakes" in check:
        return "naps" if check["naps"] else f"{check['wakes']} wake-ups, {check['late_wakes']} late"
    return f"{check['tasks']} tasks"


def write_page(path, report):
    """Replaces the table between the marks of the page by that of the report."""
    lines = [f"{report['qemu']}, {report['wedjat']},", f"guest `{report['kernel']}`; {report['seconds']} s in all.", ""]
    lines.append("| device | " + " | ".join(f"`{name}`" for name in COLUMNS) + " |")
    lines.append("|---" * (len(COLUMNS) + 1) + "|")
    for name, model in report["models"].items():
        checks = model.get("checks", {})
        ends = model.get("emulator_ends", {})
        again = {column: ", after an end of QEMU" if column in ends else "" for column in COLUMNS}
        cells = [cell(checks.get(column)) + again[column] for column in COLUMNS]
        if "skipped" in model:
            cells = [f"skipped: {model['skipped']}"] + [""] * (len(COLUMNS) - 1)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    with open(path) as file:
        before, begin, rest = file.read().partition(BEGIN)
    _, end, rest = rest.partition(END)
    expect(begin and end, f"{path}: no lines {BEGIN.strip()} and {END.strip()}")
    with open(path, "w") as file:
        file.write(before + BEGIN + "\n".join(lines) + "\n" + END + rest)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(TOP, "target"))
    names = [check.__name__ for check in CHECKS]
    parser.add_argument("--models", default=",".join(MODELS), help="device models, with commas between them")
    parser.add_argument("--checks", default=",".join(names), help="checks, with commas between them")
    parser.add_argument("--wedjat", default=os.path.join(target, "debug", "wedjat"), help="the program under test")
    parser.add_argument("--kernel", default=os.path.join(target, "nics", "linux.deb"), help="kernel package")
    parser.add_argument("--report", help="file for the report, as JSON")
    parser.add_argument("--page", help="page whose table is written from the report")
    parser.add_argument("--qemu", default="qemu-system-x86_64")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds to wait for what must happen")
    options = parser.parse_args(arguments)
    options.models, options.checks = options.models.split(","), options.checks.split(",")
    for kind, found, known in (("model", options.models, MODELS), ("check", options.checks, names)):
        for name in found:
            if name not in known:
                parser.error(f"{kind} {name!r}: known are {', '.join(known)}")
    options.wedjat = os.path.abspath(options.wedjat)
    return options


def obstacle(options):
    """Returns the reason why the lab cannot run on this machine; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces and tap interfaces need root"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    for program in (options.qemu, "cc", "dpkg", "ip"):
        if shutil.which(program) is None:
            return f"{program} is not installed: run scripts/deps.sh nics"
    if not os.path.exists(options.kernel):
        return f"there is no kernel package at {options.kernel}: run scripts/deps.sh nics"
    return None


def main(arguments=None):
    options = parse(arguments)
    # SIGTERM raises an exception, so that the `with` blocks end guests and namespaces.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    reason = obstacle(options)
    if reason:
        print(f"SKIPPED: {reason}")
        return 0
    began = time.monotonic()
    known = call(options.qemu, "-device", "help")
    reports = {}
    report = {
        "qemu": call(options.qemu, "--version").splitlines()[0],
        "wedjat": call(options.wedjat, "--version").strip(),
        "models": reports,
    }
    with tempfile.TemporaryDirectory(prefix="wedjat-nics-") as folder:
        kernel = Kernel(options.kernel, folder)
        report["kernel"] = os.path.basename(kernel.image)
        for model in options.models:
            device = MODELS[model][0].split(",")[0]
            if f'name "{device}"' not in known:
                reports[model] = {"device": device, "skipped": "this QEMU does not have the device"}
                print(f"{model}: SKIPPED: this QEMU does not have the device {device}", flush=True)
                continue
            reports[model] = run_model(options, kernel, model)
            # Writes the report after each model, because the run may be interrupted.
            write_report(options.report, report)
    report["seconds"] = round(time.monotonic() - began)
    write_report(options.report, report)
    if options.page:
        write_page(options.page, report)
    checks = [check for model in reports.values() for check in model.get("checks", {}).values()]
    failed = sum(not check["passed"] for check in checks)
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
