"""A worker server or a client on ordinary sockets, or a VLAN's interface, in a network namespace of the host. Prints JSON lines."""

import argparse
import collections
import fcntl
import json
import os
import select
import socket
import struct
import sys
import time

NEW_TASK, TASK_DONE, TASK_DONE_IDLE = 0, 2, 3
TASK_PORT = 1234
# Code, pool, source, destination, queue length, sequence number. Tasks here have no extension.
HEADER = struct.Struct(">BHHHHH")


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def serve(options):
    """Answers each task in the name of the worker to which it was sent, until standard input closes."""
    server = socket.socket(family(options.address), socket.SOCK_DGRAM)
    server.bind((options.address, TASK_PORT))
    print('"ready"', flush=True)
    while True:
        if sys.stdin in select.select([server, sys.stdin], [], [])[0]:
            return
        packet, client = server.recvfrom(65536)
        code, pool, _, worker, queue, number = HEADER.unpack_from(packet)
        if code != NEW_TASK:
            continue
        code = TASK_DONE_IDLE if queue == 1 else TASK_DONE
        server.sendto(HEADER.pack(code, pool, worker, 0, 0, number) + packet[HEADER.size:], client)


def payload(number, largest):
    """Payload of a task: many lengths, even and odd, and the largest one often."""
    length = largest if number % 4 == 0 else number * 37 % (largest + 1)
    return bytes((number + at) & 255 for at in range(length))


def ask(options):
    """Sends tasks from several sockets, and prints the number of right answers."""
    clients = [socket.socket(family(options.leaf), socket.SOCK_DGRAM) for _ in range(options.sockets)]
    # The largest payload fills a packet of the MTU.
    headers = (48 if ":" in options.leaf else 28) + HEADER.size
    largest = options.mtu - headers
    sent, workers, wrong = {}, collections.Counter(), 0
    last = time.monotonic()
    number, due = 0, last
    while number < options.tasks or sent:
        now = time.monotonic()
        while number < options.tasks and len(sent) < options.window and now >= due:
            client = clients[number % len(clients)]
            body = payload(number, largest)
            sent[number] = body
            client.sendto(HEADER.pack(NEW_TASK, options.pool, 0, 0, 0, number) + body, (options.leaf, TASK_PORT))
            number, due = number + 1, now + options.pace_ms / 1000
            last = max(last, now)
        wait = max(due - now, 0) if number < options.tasks and len(sent) < options.window else 1.0
        ready, _, _ = select.select(clients, [], [], min(wait, 1.0))
        for client in ready:
            packet, source = client.recvfrom(65536)
            code, pool, worker, _, _, answered = HEADER.unpack_from(packet)
            right = code in (TASK_DONE, TASK_DONE_IDLE) and pool == options.pool and source[0] == options.leaf
            if not right or sent.pop(answered, None) != packet[HEADER.size:]:
                wrong += 1
            else:
                workers[worker] += 1
            last = time.monotonic()
        if time.monotonic() - last > options.patience:
            break
    answered = sum(workers.values())
    print(json.dumps({"sent": number, "answered": answered, "wrong": wrong, "lost": sorted(sent), "workers": workers}))


# Linux's if_tun.h, if_ether.h and if_packet.h.
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
ETH_P_ALL, ETH_P_8021Q = 0x0003, 0x8100
SOL_PACKET, PACKET_AUXDATA, PACKET_OUTGOING = 263, 8, 4
# Offset of the tag in struct tpacket_auxdata, and the flag that there is one.
AUXDATA = struct.Struct("=IIIHHHH")
TP_STATUS_VLAN_VALID = 1 << 4


def tag(options):
    """Joins a new interface to `interface` by a VLAN, until standard input closes. Not every kernel has VLAN interfaces."""
    untagged = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(untagged, TUNSETIFF, struct.pack("16sH22x", options.name.encode(), IFF_TAP | IFF_NO_PI))
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    wire.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    wire.bind((options.interface, ETH_P_ALL))
    print('"ready"', flush=True)
    while True:
        ready = select.select([untagged, wire, sys.stdin], [], [])[0]
        if sys.stdin in ready:
            return
        if untagged in ready:
            frame = os.read(untagged, 65536)
            wire.send(frame[:12] + struct.pack(">HH", ETH_P_8021Q, options.vlan) + frame[12:])
        if wire in ready:
            try:
                frame, more, _, source = wire.recvmsg(65536, 1024)
            except OSError:  # the interface goes down, for example as its guest ends
                continue
            fields = [AUXDATA.unpack_from(data) for level, kind, data in more if (level, kind) == (SOL_PACKET, PACKET_AUXDATA)]
            # The kernel takes the tag out of the frame.
            tagged = any(status & TP_STATUS_VLAN_VALID and tci & 0xFFF == options.vlan for status, *_, tci, _ in fields)
            if source[2] != PACKET_OUTGOING and tagged:
                os.write(untagged, frame)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(required=True)
    server = kinds.add_parser("serve")
    server.add_argument("address")
    server.set_defaults(run=serve)
    vlan = kinds.add_parser("tag")
    vlan.add_argument("interface")
    vlan.add_argument("name")
    vlan.add_argument("vlan", type=int)
    vlan.set_defaults(run=tag)
    client = kinds.add_parser("ask")
    client.add_argument("leaf")
    client.add_argument("tasks", type=int)
    client.add_argument("--pool", type=int, default=1)
    client.add_argument("--mtu", type=int, default=1500)
    client.add_argument("--sockets", type=int, default=16)
    client.add_argument("--window", type=int, default=8)
    client.add_argument("--pace-ms", type=float, default=0.0)
    client.add_argument("--patience", type=float, default=300.0)
    client.set_defaults(run=ask)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
