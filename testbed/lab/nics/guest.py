"""Program of the lab's guest: executes requests of the host, which arrive over the second serial port.

A request is a line of JSON: {"do": FUNCTION, "with": ARGUMENTS}. Its answer is a line with "result" or "error".
"""

import json
import os
import signal
import subprocess
import sys
import termios
import tty

# Background programs by name.
RUNNING = {}
# Folder of the kernel with a folder for each PCI device.
DEVICES = "/sys/bus/pci/devices"


def log_path(name):
    return f"/run/{name}.log"


def run(words, stdin=""):
    """Runs a program to its end. Returns its exit status and output."""
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}


def start(name, words):
    """Starts a program in the background, with its output in a file. Returns its process id."""
    with open(log_path(name), "w") as log:
        RUNNING[name] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    return RUNNING[name].pid


def output(name):
    """Returns the output of a background program, and its exit status, which is None while it runs."""
    with open(log_path(name)) as log:
        return {"text": log.read(), "code": RUNNING[name].poll()}


def end(name, signal_name):
    """Sends a signal, such as SIGTERM, to a background program. Waits for its end. Returns exit status and output."""
    RUNNING[name].send_signal(getattr(signal, signal_name))
    return {"code": RUNNING[name].wait(), **output(name)}


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def read(path):
    with open(path) as file:
        return file.read()


def names(path):
    return sorted(os.listdir(path))


def find(identity):
    """Returns the addresses of the PCI devices with this PCI id (VENDOR:DEVICE in hexadecimal), in order."""
    found = []
    for address in names(DEVICES):
        vendor, device = (read(f"{DEVICES}/{address}/{name}").strip().removeprefix("0x") for name in ("vendor", "device"))
        if f"{vendor}:{device}" == identity:
            found.append(address)
    return found


def create_functions(driver, macs):
    """Creates a virtual function of each NIC of this kernel driver that has none. `macs` has the MAC address of the
    function by that of the NIC. Returns the number of the driver's NICs."""
    count = 0
    for interface in names("/sys/class/net"):
        folder = f"/sys/class/net/{interface}"
        if os.path.basename(os.path.realpath(f"{folder}/device/driver")) != driver:
            continue
        count += 1
        if int(read(f"{folder}/device/sriov_numvfs")) == 0:
            # The interface must be up before a driver of the function starts. Without a MAC address, that driver would
            # choose a new one at each start.
            subprocess.run(["ip", "link", "set", interface, "up"], check=True)
            write(f"{folder}/device/sriov_numvfs", "1")
            mac = macs[read(f"{folder}/address").strip()]
            subprocess.run(["ip", "link", "set", interface, "vf", "0", "mac", mac], check=True)
    return count


def bind(identity):
    """Binds all PCI devices with this PCI id to vfio-pci, as driverctl does. Returns their addresses in order."""
    found = find(identity)
    for address in found:
        folder = f"{DEVICES}/{address}"
        driver = os.path.realpath(f"{folder}/driver") if os.path.exists(f"{folder}/driver") else ""
        if os.path.basename(driver) != "vfio-pci":
            write(f"{folder}/driver_override", "vfio-pci")
            if driver:
                write(f"{driver}/unbind", address)
            write("/sys/bus/pci/drivers_probe", address)
    return found


FUNCTIONS = (run, start, output, end, write, read, names, find, create_functions, bind)
REQUESTS = {function.__name__: function for function in FUNCTIONS}


def main():
    port = os.open("/dev/ttyS1", os.O_RDWR | os.O_NOCTTY)
    tty.setraw(port, termios.TCSANOW)
    with os.fdopen(port, "rb", buffering=0) as lines:
        os.write(port, b'"ready"\n')
        buffer = b""
        while True:
            buffer += lines.read(4096) or b""
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                answer(port, json.loads(line))


def answer(port, request):
    """Executes a request and writes its answer to the serial port."""
    try:
        result = {"result": REQUESTS[request["do"]](*request["with"])}
    except Exception as error:  # the host judges the error
        result = {"error": f"{type(error).__name__}: {error}"}
    data = json.dumps(result).encode() + b"\n"
    while data:
        data = data[os.write(port, data):]


if __name__ == "__main__":
    sys.exit(main())
