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
# Task header: code, pool, source, destination, queue length, sequence number. Tasks here have no extension.
HEADER = struct.Struct(">BHHHHH")


def family(address):
    """Returns the address family: IPv6 if the address has a colon."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def serve(options):
    """Answers each task as the worker to which the leaf sent it, until standard input closes."""
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
        # The leaf sets the queue length of a task to 1 if it took the worker from the idle list.
        code = TASK_DONE_IDLE if queue == 1 else TASK_DONE
        server.sendto(HEADER.pack(code, pool, worker, 0, 0, number) + packet[HEADER.size:], client)


def payload(number, largest):
    """Returns the payload of a task. Every fourth has the largest length, the others many lengths, even and odd."""
    length = largest if number % 4 == 0 else number * 37 % (largest + 1)
    return bytes((number + index) & 255 for index in range(length))


def ask(options):
    """Sends tasks from several sockets, at most `window` in flight, and prints the numbers of right and wrong answers.
    Gives up after `timeout` seconds without a sent task or an answer."""
    clients = [socket.socket(family(options.leaf), socket.SOCK_DGRAM) for _ in range(options.sockets)]
    # The largest payload fills a packet of the MTU. IPv6 has 40 bytes of header, IPv4 20, and UDP 8.
    headers = (48 if ":" in options.leaf else 28) + HEADER.size
    largest = options.mtu - headers
    # Payloads of the tasks in flight by number; number of right answers of each worker.
    sent, workers, wrong = {}, collections.Counter(), 0
    last_progress = time.monotonic()
    number, due = 0, last_progress
    while number < options.tasks or sent:
        now = time.monotonic()
        while number < options.tasks and len(sent) < options.window and now >= due:
            client = clients[number % len(clients)]
            body = payload(number, largest)
            sent[number] = body
            client.sendto(HEADER.pack(NEW_TASK, options.pool, 0, 0, 0, number) + body, (options.leaf, TASK_PORT))
            number, due = number + 1, now + options.pace_ms / 1000
            last_progress = max(last_progress, now)
        # At most 1 s, so that the loop notices the end of its timeout.
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
            last_progress = time.monotonic()
        if time.monotonic() - last_progress > options.timeout:
            break
    answered = sum(workers.values())
    print(json.dumps({"sent": number, "answered": answered, "wrong": wrong, "lost": sorted(sent), "workers": workers}))


# Linux's if_tun.h, if_ether.h and if_packet.h.
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
ETH_P_ALL, ETH_P_8021Q = 0x0003, 0x8100
SOL_PACKET, PACKET_AUXDATA, PACKET_OUTGOING = 263, 8, 4
# struct tpacket_auxdata: status, length, captured length, offsets of the headers, tag, protocol of the tag. The flag in
# the status means that there is a tag.
AUXDATA = struct.Struct("=IIIHHHH")
TP_STATUS_VLAN_VALID = 1 << 4


def tag(options):
    """Emulates a VLAN interface, because not every kernel has them, until standard input closes. Creates the tap
    `name`, tags its frames on the way to `interface`, and delivers the frames of the VLAN without their tag."""
    untagged = os.open("/dev/net/tun", os.O_RDWR)
    # struct ifreq: name, flags, and padding to 40 bytes.
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
            # The tag follows both MAC addresses.
            wire.send(frame[:12] + struct.pack(">HH", ETH_P_8021Q, options.vlan) + frame[12:])
        if wire in ready:
            try:
                frame, more, _, source = wire.recvmsg(65536, 1024)
            except OSError:  # the interface went down, for example because its guest ended
                continue
            fields = [AUXDATA.unpack_from(data) for level, kind, data in more if (level, kind) == (SOL_PACKET, PACKET_AUXDATA)]
            # The kernel moves the tag from the frame to the auxiliary data.
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
    client.add_argument("--timeout", type=float, default=300.0)
    client.set_defaults(run=ask)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
