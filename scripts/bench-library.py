#!/usr/bin/env python3
"""What a burst of 32 tasks costs through the C library and through the Rust one, in alternating runs of one machine."""

import argparse
import json
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

BAR = 1.05
BURST = 32
ROUNDS = 60_000

CONFIG = Path(__file__).resolve().parent.parent / "testbed/src/bench/leaf.toml"


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def task():
    """A client's task of one packet, its UDP checksum left out."""
    payload = bytes([0, 0, 7, 0, 0, 0x7F, 0xFF, 0, 0, 0, 1]) + bytes(9)
    udp = struct.pack("!HHHH", 40_000, 1234, 8 + len(payload), 0)
    addresses = bytes([10, 0, 1, 2, 10, 0, 0, 1])
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(payload), 0, 0, 64, 17, 0) + addresses
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    return bytes.fromhex("020000000001020000000102") + b"\x08\x00" + ip + udp + payload


def run(command, **more):
    return subprocess.run([str(word) for word in command], check=True, text=True, capture_output=True, **more).stdout


def instructions(command, last, folder):
    """Instructions of one packet's call. Copying the tasks in, once alone and once before each call, is taken off."""
    return executed(command, last, folder) - 2 * executed(command, ["copies"], folder)


def executed(command, last, folder):
    """Instructions of one packet, counted by callgrind: the difference of two runs of different length."""
    counts = []
    for rounds in (200, 1200):
        out = folder / f"callgrind.{rounds}"
        run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *command, rounds, *last])
        totals = [line for line in out.read_text().splitlines() if line.startswith(("totals:", "summary:"))]
        counts.append(int(totals[-1].split()[1]))
    return (counts[1] - counts[0]) / (1000 * BURST)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--built", required=True, help="where cargo built, target/release")
    parser.add_argument("--runs", type=int, default=41, help="runs of each")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    built = Path(options.built).resolve()
    source = Path(__file__).resolve().parent.parent / "capi/examples/cost.c"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.toml").write_text(CONFIG.read_text())
        (folder / "task").write_bytes(task())
        run([source.parent.parent.parent / "scripts/link-library.sh", built, folder / "libwedjat.so.0"])
        (folder / "libwedjat.so").symlink_to("libwedjat.so.0")
        linking = ["-L", folder, "-lwedjat", f"-Wl,-rpath,{folder}"]
        run(["cc", "-O2", "-o", folder / "cost", source, "-I", built / "include", *linking])
        inputs = [folder / "config.toml", folder / "task"]
        rust = built / "examples/cost"
        commands = {"C": ([folder / "cost", *inputs], ["packets"]), "Rust": ([rust, *inputs], ["packets"]),
                    "Rust, slices": ([rust, *inputs], ["slices"])}
        times = {language: [] for language in commands}
        for _ in range(options.runs):
            for language, (command, last) in commands.items():
                times[language].append(float(run([*command, ROUNDS, *last])))
        median = {language: statistics.median(samples) for language, samples in times.items()}
        counted = {}
        if shutil.which("valgrind"):
            counted = {language: instructions(*command, folder) for language, command in commands.items()}
    # Runs that stand side by side: what slows the machine down slows both.
    figures = []
    for other in ("Rust", "Rust, slices"):
        ratio = statistics.median(own / theirs for own, theirs in zip(times["C"], times[other]))
        figures.append({
            "name": "library call from C", "value": median["C"], "unit": "ns a packet", "ratio": ratio,
            "against": {"name": other, "value": median[other]}, "samples": times, "instructions": counted,
        })
        print(f"a burst of {BURST}: C {median['C']:.2f} ns a packet, {other} {median[other]:.2f}, ratio {ratio:.3f} (bar {BAR})")
        if counted:
            print(f"  instructions: C {counted['C']:.1f} a packet, {other} {counted[other]:.1f}, "
                  f"ratio {counted['C'] / counted[other]:.3f}")
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(figure["ratio"] <= BAR for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
