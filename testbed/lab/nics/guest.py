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


def bind(identity):
    """Binds all NICs with this PCI id (VENDOR:DEVICE in hexadecimal) to vfio-pci, as driverctl does. Returns their PCI
    addresses in order."""
    found = []
    for address in names("/sys/bus/pci/devices"):
        folder = f"/sys/bus/pci/devices/{address}"
        vendor, device = (read(f"{folder}/{name}").strip().removeprefix("0x") for name in ("vendor", "device"))
        if f"{vendor}:{device}" != identity:
            continue
        driver = os.path.realpath(f"{folder}/driver") if os.path.exists(f"{folder}/driver") else ""
        if os.path.basename(driver) != "vfio-pci":
            write(f"{folder}/driver_override", "vfio-pci")
            if driver:
                write(f"{driver}/unbind", address)
            write("/sys/bus/pci/drivers_probe", address)
        found.append(address)
    return found


REQUESTS = {function.__name__: function for function in (run, start, output, end, write, read, names, bind)}


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
