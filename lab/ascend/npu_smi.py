#!/usr/bin/python3 -IS
# mypy: ignore-errors
"""Stand-in for ``npu-smi``: answers from /etc/lmcache-fleet-lab/hardware.json and from what holds the devices.

Only the standard library and no project import: this file is copied into hosts as it is. What it prints follows the
layouts that real tools of version 23 to 26 were seen to print.

A process holds a device when it has a lock on the device's lock file: any ``flock`` counts (``flock FILE sleep 60`` is
enough), and a POSIX read lock on the bytes 0 to N says that the process uses N + 1 MB. A lock ends with its holder, so
a killed process can't leave a row behind, and a reader's open file is enough to take it (a unit with a read-only file
system still shows up).
"""

import json
import os
import sys

STATE = "/etc/lmcache-fleet-lab/hardware.json"
LOCKS = "/run/lmcache-fleet-lab"
DEVICES = "/dev"
DRIVER_LIBRARY = "/usr/local/Ascend/driver/lib64/driver/libdrvdsmi_host.so"
FLOCK_ONLY_MB = 1024


class Answer(SystemExit):
    """Ends the program with the status a real tool would give."""


def fail(lines, status, stream=None):
    """Prints and ends."""
    (stream or sys.stdout).write("".join(line + "\n" for line in lines))
    raise Answer(status)


def holders():
    """Gives (device, pid, name, megabytes) of every process that holds a device."""
    wanted = {}
    try:
        for name in os.listdir(LOCKS):
            if name.startswith("npu") and name.endswith(".lock"):
                wanted[os.stat(os.path.join(LOCKS, name)).st_ino] = int(name[3:-5])
    except OSError:
        return []
    found = {}
    with open("/proc/locks", encoding="ascii", errors="replace") as handle:
        for line in handle:
            fields = line.split()
            if "->" in fields or len(fields) < 8:
                continue
            pid, inode = int(fields[4]), int(fields[5].rsplit(":", 1)[1])
            if inode not in wanted or pid <= 0:
                continue
            megabytes = FLOCK_ONLY_MB
            if fields[1] == "POSIX":
                megabytes = int(fields[7]) + 1 if fields[7] != "EOF" else FLOCK_ONLY_MB
            key = (wanted[inode], pid)
            found[key] = megabytes if fields[1] == "POSIX" else found.get(key, megabytes)
    rows = []
    for (device, pid), megabytes in sorted(found.items()):
        try:
            with open("/proc/%d/comm" % pid, encoding="utf-8", errors="replace") as handle:
                name = handle.read().strip()
        except OSError:
            name = ""
        rows.append((device, pid, name, megabytes))
    return rows


class Machine:
    """The host's hardware as the profile has it."""

    def __init__(self, data):
        self.data = data
        self.chips = data["chips"]
        self.rows = holders()

    @property
    def dies(self):
        return self.chips["dies"]

    def device(self, npu, chip):
        """Number of the device node (the physical id) of a die."""
        return self.chips["ids"].index(npu) * self.dies + chip

    def card(self, npu):
        default = {"health": "OK", "error_code": "NA", "error_information": "NA", "hidden_mb": 0}
        return dict(default, **self.data["cards"].get(str(npu), {}))

    def used(self, npu, chip):
        device = self.device(npu, chip)
        hidden = self.card(npu)["hidden_mb"] if chip == 0 else 0
        total = self.chips["idle_mb"] + hidden + sum(row[3] for row in self.rows if row[0] == device)
        return min(total, self.chips["memory_mb"])

    def bus(self, npu, chip):
        return self.chips["bus_ids"][self.device(npu, chip) % len(self.chips["bus_ids"])]

    def power(self, npu, chip):
        if self.chips["power_w"] is None:
            return "NA"
        return "-" if chip else "%.1f" % (self.chips["power_w"] + self.chips["ids"].index(npu) * 0.7)

    def busy(self, npu, chip):
        return any(row[0] == self.device(npu, chip) for row in self.rows)


def cells(widths, texts):
    """One table line: each text one space in from its column's left edge."""
    return "|" + "|".join((" " + text).ljust(width)[:width] for width, text in zip(widths, texts)) + "|"


def rule(widths, char):
    """A frame line with the columns' corners."""
    return "+" + "+".join(char * width for width in widths) + "+"


def summary(machine):
    """The table of ``npu-smi info``."""
    chips, data = machine.chips, machine.data
    wide = int(data["tool_version"].split(".")[0]) >= 26
    if chips["frame"] == "310p":
        widths, head = (31, 17, 54), "npu-smi %-32s         Version: %s"
    elif wide:
        widths, head = (27, 15, 70), "npu-smi %-32s    Version: %s"
    else:
        widths, head = (27, 15, 52), "npu-smi %-24s Version: %s"
    total = sum(widths) + 2
    out = ["+" + "-" * total + "+", cells((total,), (head % ((data["tool_version"],) * 2),)), rule(widths, "-")]
    if chips["frame"] == "310p":
        left, third = "%-7s %-21s", "%-12s %-17s %s"
        out += [
            cells(widths, (left % ("NPU", "Name"), "Health", third % ("Power(W)", "Temp(C)", "Hugepages-Usage(page)"))),
            cells(widths, (left % ("Chip", "Device"), "Bus-Id", third % ("AICore(%)", "Memory-Usage(MB)", ""))),
        ]
    else:
        left = "%-5s %-19s"
        third = "%-20s %-23s %s" if wide else "%-11s %-17s %s"
        second = "Phy-ID" if chips["frame"] == "a3" else ""
        memory = ("AICore(%)", "Memory-Usage(MB)", "HBM-Usage(MB)")
        out += [
            cells(widths, (left % ("NPU", "Name"), "Health", third % ("Power(W)", "Temp(C)", "Hugepages-Usage(page)"))),
            cells(widths, (left % ("Chip", second), "Bus-Id", third % memory)),
        ]
    out.append(rule(widths, "="))
    for npu in chips["ids"]:
        for chip in range(machine.dies):
            huge = chips["hugepages"]
            pages = "%-5d / %d" % (huge, huge) if chips["frame"] == "310p" else "%-4d / %d" % (huge, huge)
            first = (machine.power(npu, chip), str(chips["temp_c"]), pages)
            core = "61" if machine.busy(npu, chip) else "0"
            memory = "%-5d/ %d" % (machine.used(npu, chip), chips["memory_mb"])
            device = str(machine.device(npu, chip))
            if chips["frame"] == "310p":
                label, second = left % (chip, device), (core, memory, "")
            else:
                label = left % (chip, device if chips["frame"] == "a3" else "")
                second = (core, "0    / 0", memory)
            health = machine.card(npu)["health"]
            out.append(cells(widths, (left % (npu, chips["name"]), health, third % first)))
            out.append(cells(widths, (label, machine.bus(npu, chip), third % second)))
            last = chip == machine.dies - 1
            out.append(rule(widths, "=") if last else "+" + "-" * total + "+")
    out += processes(machine, widths, total, wide)
    return out


def processes(machine, widths, total, wide):
    """The second table: who uses which device."""
    chips = machine.chips
    container = wide and chips["frame"] != "310p"
    left = "%-7s %-21s" if chips["frame"] == "310p" else "%-7s %-17s"
    second = 17 if chips["frame"] == "310p" else 15
    if container:
        columns = (widths[0], second, 20, 23, total - widths[0] - second - 20 - 23 - 4)
    else:
        columns = (widths[0], second, 26, total - widths[0] - second - 26 - 3)
    titles = [left % ("NPU", "Chip"), "Process id", "Process name", "Process memory(MB)"]
    if container:
        titles.append("Process id in container")
    out = [rule(widths, "-"), cells(columns, titles), rule(widths, "=")]
    for npu in chips["ids"]:
        rows = []
        for chip in range(machine.dies):
            for device, pid, name, megabytes in machine.rows:
                if device == machine.device(npu, chip):
                    row = [left % (npu, chip), str(pid), name, str(megabytes)]
                    rows.append(cells(columns, row + ["NA"] * container))
        out += rows or [cells((total,), ("No running processes found in NPU %d" % npu,))]
        out.append(rule(widths, "="))
    return out


def pairs(items, indent="\t"):
    """Lines of the form ``name : value``, aligned."""
    return [indent + "%-30s : %s" % item if item else "" for item in items]


def board(machine, npu, chip):
    chips, driver = machine.chips, machine.data["driver"]
    if chip is None:
        out = [
            ("NPU ID", npu),
            ("Product Name", chips["product"]),
            ("Software Version", driver["version"]),
            ("Firmware Version", driver["firmware"]),
            ("Compatibility", "OK"),
            ("Board ID", "0x02"),
            ("PCB ID", "A"),
            ("BOM ID", 1),
            ("PCIe Bus Info", machine.bus(npu, 0)),
            ("Slot ID", npu),
            ("Class ID", "NA"),
            ("PCI Vendor ID", "0x19E5"),
            ("PCI Device ID", "0xD802"),
            ("Subsystem Vendor ID", "0x0200"),
            ("Subsystem Device ID", "0x0100"),
            ("Chip Count", machine.dies),
        ]
        return pairs(out)
    out = [("NPU ID", npu)]
    if chips["npu_name"]:
        out.append(("NPU Name", chips["npu_name"]))
    out += [
        ("Chip ID", chip),
        ("Chip Type", "Ascend"),
        ("Chip Name", chips["board_name"]),
        ("Chip Version", "V1"),
        ("Board ID", "0x02"),
        ("PCB ID", "NA"),
        ("BOM ID", 1),
        ("VDie ID", "00000000 00000000 00000000 00000000 00000000"),
        ("NDie ID", "NA"),
        ("Chip Position ID", chip),
        ("PCIe Bus Info", machine.bus(npu, chip)),
        ("Firmware Version", driver["firmware"]),
    ]
    return pairs(out)


def usages(machine, npu, chip):
    chips = machine.chips
    out = [("NPU ID", npu), ("Chip Count", machine.dies), None]
    for one in range(machine.dies) if chip is None else [chip]:
        rate = round(100 * machine.used(npu, one) / chips["memory_mb"])
        hbm = chips["memory_kind"] == "HBM"
        out += [
            ("DDR Capacity(MB)", 0 if hbm else chips["memory_mb"]),
            ("DDR Usage Rate(%)", 0 if hbm else rate),
            ("DDR Hugepages Total(page)", chips["hugepages"]),
            ("DDR Hugepages Usage Rate(%)", 0),
        ]
        if hbm:
            out += [("HBM Capacity(MB)", chips["memory_mb"]), ("HBM Usage Rate(%)", rate)]
        out += [
            ("Aicore Usage Rate(%)", 61 if machine.busy(npu, one) else 0),
            ("Aicpu Usage Rate(%)", 0),
            ("Ctrlcpu Usage Rate(%)", 2),
            ("DDR Bandwidth Usage Rate(%)", 0),
        ]
        if hbm:
            out.append(("HBM Bandwidth Usage Rate(%)", 0))
        out.append(("Chip ID", one))
    return pairs(out)


def memory(machine, npu, chip):
    chips = machine.chips
    out = [("NPU ID", npu), ("Chip Count", machine.dies), None]
    for one in range(machine.dies) if chip is None else [chip]:
        if chips["memory_kind"] == "HBM":
            out += [
                ("DDR Capacity(MB)", 0),
                ("DDR Clock Speed(MHz)", 0),
                ("HBM Capacity(MB)", chips["memory_mb"]),
                ("HBM Clock Speed(MHz)", 1600),
                ("HBM Temperature(C)", chips["temp_c"]),
                ("HBM Manufacturer ID", "0x56"),
            ]
        else:
            out += [("DDR Capacity(MB)", chips["memory_mb"]), ("DDR Clock Speed(MHz)", 2133)]
        out.append(("Chip ID", one))
    return pairs(out)


def common(machine, npu, chip):
    chips = machine.chips
    out = [("NPU ID", npu), ("Chip Count", machine.dies), None]
    for one in range(machine.dies) if chip is None else [chip]:
        rate = round(100 * machine.used(npu, one) / chips["memory_mb"])
        hbm = chips["memory_kind"] == "HBM"
        out += [("Chip ID", one), ("Memory Usage Rate(%)", 0 if hbm else rate)]
        if hbm:
            out.append(("HBM Usage Rate(%)", rate))
        out += [
            ("Aicore Usage Rate(%)", 61 if machine.busy(npu, one) else 0),
            ("Aicore Freq(MHZ)", 1800),
            ("Aicore curFreq(MHZ)", 1800),
            ("Temperature(C)", chips["temp_c"]),
            ("NPU Real-time Power(W)", machine.power(npu, one)),
            None,
        ]
    return pairs(out)


def health(machine, npu, chip):
    card = machine.card(npu)
    return pairs(
        [
            ("Health Status", card["health"]),
            ("Error Code", card["error_code"]),
            ("Error Information", card["error_information"]),
        ]
    )


def power(machine, npu, chip):
    return pairs([("NPU ID", npu), ("Chip Count", machine.dies), None, ("Power Dissipation(W)", machine.power(npu, 0))])


def topology(machine):
    count = len(machine.chips["ids"]) * machine.dies
    link = "HCCS" if machine.chips["memory_kind"] == "HBM" else "PHB"
    out = ["\t   " + "".join("%-11s" % ("NPU%d" % n) for n in range(count)) + "CPU Affinity"]
    for row in range(count):
        marks = "".join("%-11s" % ("X" if row == col else link) for col in range(count))
        group = (row * 4 // count) if count >= 4 else 0
        out.append("%-11s%s%d-%d" % ("NPU%d" % row, marks, group * 24, group * 24 + 23))
    out += [
        "",
        "Legend:",
        "",
        "  X    = Self",
        "  SYS  = Path traversing PCIe and NUMA nodes. Nodes are connected through SMP, such as QPI, UPI.",
        "  PHB  = Path traversing PCIe and the PCIe host bridge of a CPU.",
        "  PIX  = Path traversing a single PCIe switch",
        "  PXB  = Path traversing multiple PCIe switches",
        "  HCCS = Connection traversing HCCS.",
        "  NA   = Unknown relationship.",
    ]
    return out


def mapping(machine):
    """``info -m``: which card, die and number belong together."""
    columns = "%-30s %-30s %-30s %s"
    out = ["\t" + columns % ("NPU ID", "Chip ID", "Chip Logic ID", "Chip Name")]
    name = machine.chips["board_name"]
    name = name if name.startswith("Ascend") else "Ascend " + name
    for npu in machine.chips["ids"]:
        for chip in range(machine.dies):
            out.append("\t" + columns % (npu, chip, machine.device(npu, chip), name))
        if machine.chips["frame"] == "310p":
            out.append("\t" + columns % (npu, machine.dies, "-", "Mcu"))
    return out


def listing(machine):
    """``info -l``."""
    out = pairs([("Total Count", len(machine.chips["ids"]))])
    for npu in machine.chips["ids"]:
        out += ["", *pairs([("NPU ID", npu), ("Product Name", machine.chips["product"]), ("Serial Number", "LAB0000")])]
        out += pairs([("Chip Count", machine.dies)])
    return out


TYPES = {"board": board, "usages": usages, "memory": memory, "common": common, "health": health, "power": power}


def options(words):
    """Reads ``-t``, ``-i`` and ``-c`` with their values."""
    given = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-l", "-m", "-h"):
            given[word] = True
        elif word in ("-t", "-i", "-c", "-p") and rest:
            given[word] = rest.pop(0)
        else:
            fail(["Error parameter of %s" % word], 1)
    return given


def number(given, name, allowed):
    """Gives the value of *name* when it is one of *allowed*; ends with the tool's refusal when it isn't."""
    if name not in given:
        return None
    try:
        value = int(given[name])
    except ValueError:
        value = -1
    if value not in allowed:
        fail(["Error parameter of %s" % name], 1)
    return value


def check_access(data):
    """What a real tool says before it can answer anything."""
    failure = data.get("npu_smi_failure")
    if failure:
        fail(failure["lines"], failure["exit_code"], getattr(sys, failure["stream"]))
    if not os.path.exists(DRIVER_LIBRARY):
        missing = "cannot open shared object file: No such file or directory"
        fail(["npu-smi: error while loading shared libraries: libdrvdsmi_host.so: " + missing], 127, sys.stderr)
    if not os.access(os.path.join(DEVICES, "davinci_manager"), os.R_OK | os.W_OK):
        lines = ["DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)", "dcmi module initialize failed. ret is -8005"]
        fail(lines, 255)


def main(words: "list[str]") -> int:
    with open(STATE, encoding="utf-8") as handle:
        data = json.load(handle)
    if words in (["-v"], ["--version"]):
        print("npu-smi version: %s" % data["tool_version"])
        return 0
    if not words or words[0] in ("-h", "--help"):
        print("npu-smi [options]\n\nOptions:\n  -h | -v\n  info   query\n  set    refused by this stand-in")
        return 0
    check_access(data)
    if words[0] != "info":
        fail(["Error command"], 1)
    machine = Machine(data)
    given = options(words[1:])
    if "-l" in given:
        out = listing(machine)
    elif "-m" in given:
        out = mapping(machine)
    elif given.get("-t") == "topo":
        out = topology(machine)
    elif "-t" in given:
        npu = number(given, "-i", machine.chips["ids"])
        chip = number(given, "-c", range(machine.dies))
        if given["-t"] not in TYPES or npu is None:
            fail(["Error parameter of %s" % ("-t" if given["-t"] not in TYPES else "-i")], 1)
        out = TYPES[given["-t"]](machine, npu, chip)
    else:
        out = summary(machine)
    sys.stdout.write("\n".join(out) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
