#!/usr/bin/python3 -IS
# mypy: ignore-errors
"""Stand-in for the vendors' tools: answers by the name it is called by, from /etc/lmcache-fleet-lab/vendor.json.

Only the standard library and no project import: this file is copied into hosts as it is. What it prints follows the
layouts that real tools were seen to print; no card is ever busy.
"""

import json
import os
import sys

STATE = os.environ.get("LMCACHE_FLEET_LAB_VENDOR", "/etc/lmcache-fleet-lab/vendor.json")


def say(text, status=0):
    """Prints and ends."""
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.exit(status)


def as_json(data):
    say(json.dumps(data, indent=4))


def numbers(host):
    return range(host["cards"]["count"])


def bus(number):
    return "%02x:00.0" % (0x18 + number * 0x10)


def uuid(number):
    return "00000000-0000-0000-0000-%012d" % number


def nvidia_smi(host, args):
    cards = host["cards"]
    if args[:1] == ["-L"]:
        say("\n".join("GPU %d: %s (UUID: GPU-%s)" % (n, cards["name"], uuid(n)) for n in numbers(host)))
    if args and args[0].startswith("--query-compute-apps="):
        say("pid, process_name, used_gpu_memory [MiB], gpu_uuid")
    if args and args[0].startswith("--query-gpu="):
        units = {"memory.total": " [MiB]", "memory.used": " [MiB]"}
        fields = args[0].partition("=")[2].split(",")
        lines = [", ".join(field + units.get(field, "") for field in fields)]
        for n in numbers(host):
            values = {
                "index": n, "name": cards["name"], "uuid": "GPU-" + uuid(n), "pci.bus_id": "00000000:" + bus(n).upper(),
                "memory.total": "%d MiB" % cards["memory_mb"], "memory.used": "%d MiB" % cards["used_mb"],
                "driver_version": host["driver"], "compute_cap": cards["compute_capability"],
                "mig.mode.current": "Disabled", "ecc.mode.current": "Enabled", "persistence_mode": "Enabled",
                "serial": "0", "vbios_version": "96.00.30.00.01",
            }  # fmt: skip
            unknown = [field for field in fields if field not in values]
            if unknown:
                say('Field "%s" is not a valid field to query.' % unknown[0], 2)
            lines.append(", ".join(str(values[field]) for field in fields))
        say("\n".join(lines))
    if args:
        say("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.", 2)
    wide = "+" + "-" * 89 + "+"
    cells = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
    title = "NVIDIA-SMI %-22sDriver Version: %-15sCUDA Version: %s" % (
        host["tool_version"],
        host["driver"],
        host["runtime"],
    )
    out = ["Tue Jul 14 08:12:38 2026       ", wide, "| %-87s |" % title, cells]
    out += [
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|=========================================+========================+======================|",
    ]
    for n in numbers(host):
        memory = "%dMiB / %6dMiB" % (cards["used_mb"], cards["memory_mb"])
        out += [
            "| %3d  %-26s    On  |   00000000:%s Off |                    0 |" % (n, cards["name"], bus(n).upper()),
            "| N/A   41C    P0             69W /  700W | %22s |      0%%      Default |" % memory,
            "|                                         |                        |             Disabled |",
            cells,
        ]
    out += ["", wide, "| %-87s |" % "Processes:",
            "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
            "|        ID   ID                                                               Usage      |",
            "|" + "=" * 89 + "|", "| %-87s |" % " No running processes found", wide]  # fmt: skip
    say("\n".join(out))


def amd_smi(host, args):
    cards = host["cards"]
    if args[:1] == ["static"]:
        as_json({"gpu_data": [{
            "gpu": n,
            "asic": {"market_name": cards["name"], "target_graphics_version": cards["gfx"]},
            "bus": {"bdf": "0000:" + bus(n)},
            "vram": {"type": "HBM", "size": {"value": cards["memory_mb"], "unit": "MB"}},
            "driver": {"name": "amdgpu", "version": host["driver"]},
        } for n in numbers(host)]})  # fmt: skip
    if args[:1] == ["metric"]:
        used = {"value": cards["used_mb"], "unit": "MB"}
        as_json({"gpu_data": [{"gpu": n, "mem_usage": {"used_vram": used}} for n in numbers(host)]})
    if args[:1] == ["process"]:
        as_json([
            {"gpu": n, "process_list": [{"process_info": "No running processes detected"}]} for n in numbers(host)
        ])  # fmt: skip
    say("usage: amd-smi [-h]  ...", 1)


def rocm_smi(host, args):
    cards = host["cards"]
    if "--json" not in args:
        say("usage: rocm-smi [-h] ...", 2)
    data = {
        "card%d" % n: {
            "Card Series": cards["name"],
            "GFX Version": cards["gfx"],
            "PCI Bus": "0000:" + bus(n).upper(),
            "VRAM Total Memory (B)": str(cards["memory_mb"] * 1048576),
            "VRAM Total Used Memory (B)": str(cards["used_mb"] * 1048576),
        }
        for n in numbers(host)
    }
    as_json({**data, "system": {"Driver version": host["driver"]}})


def rocminfo(host, args):
    cards = host["cards"]
    out = ["ROCk module is loaded"]
    for n in numbers(host):
        out += ["*******", "Agent %d" % (n + 2), "*******", "  Name:                    %s" % cards["gfx"],
                "  Marketing Name:          %s" % cards["name"], "  Device Type:             GPU"]  # fmt: skip
    say("\n".join([*out, "*** Done ***"]))


def xpu_smi(host, args):
    cards = host["cards"]

    def card(n):
        return {"device_id": n, "device_name": cards["name"], "device_type": "GPU", "pci_bdf_address": "0000:" + bus(n),
                "uuid": uuid(n), "vendor_name": "Intel(R) Corporation"}  # fmt: skip

    wanted = int(args[args.index("-d") + 1]) if "-d" in args else None
    if args == ["discovery", "-j"]:
        as_json({"device_list": [card(n) for n in numbers(host)]})
    if args[:1] == ["discovery"] and wanted in numbers(host):
        as_json({**card(wanted), "memory_physical_size_byte": str(cards["memory_mb"] * 1048576),
                 "driver_version": host["driver"], "number_of_tiles": "2"})  # fmt: skip
    if args[:1] == ["stats"] and wanted in numbers(host):
        level = [{"metrics_type": "XPUM_STATS_MEMORY_USED", "value": cards["used_mb"]}]
        as_json({"device_id": wanted, "device_level": level})
    if args == ["ps", "-j"]:
        as_json({"device_util_by_proc_list": []})
    if args == ["-v"]:
        say("CLI:\n    Version: %s\n    Build ID: 0" % host["tool_version"])
    say("Error: invalid command", 2)


def mthreads_gmi(host, args):
    cards = host["cards"]
    if args == ["-q", "-j"]:
        as_json({"Driver Version": host["driver"], "GPU": [
            {"Index": str(n), "Product Name": cards["name"], "GPU UUID": uuid(n)} for n in numbers(host)
        ]})  # fmt: skip
    if args:
        say("Invalid option", 2)
    line = "-" * 69
    rule = "+" + "-" * 67 + "+"
    out = ["Tue Jun 23 17:48:04 2026", line,
           "    mthreads-gmi:%-16sDriver Version:%s" % (host["tool_version"], host["driver"]), line,
           "ID   Name                 |PCIe                |%GPU  Mem",
           "     Device Type   Perf   |Pcie Lane Width     |Temp  MPC Capable",
           "                                               |      ECC Mode", rule]  # fmt: skip
    for n in numbers(host):
        memory = "%dMiB(%dMiB)" % (cards["used_mb"], cards["memory_mb"])
        out += [
            "%-5d%-21s|00000000:%s    |0%%    %s" % (n, cards["name"], bus(n), memory),
            "     Physical      P0     |16x(16x)            |48C   YES",
            "                                               |      On-die, EDC",
            rule,
        ]
    out += [line, "Processes:", "ID   PID       Process name                         GPU Memory",
            "                                                         Usage", rule,
            "   No running processes found", line]  # fmt: skip
    say("\n".join(out))


def mx_smi(host, args):
    cards = host["cards"]
    if args == ["-L"]:
        say("\n".join(
            "GPU#%d %s 0000:%s Available (UUID: GPU-%s)" % (n, cards["name"], bus(n), uuid(n)) for n in numbers(host)
        ))  # fmt: skip
    if args:
        say("invalid option", 2)
    wide = "+" + "-" * 81 + "+"
    cells = "+------------------+-----------------+---------------------+----------------------+"
    out = ["mx-smi  version: " + host["tool_version"], "",
           "=================== MetaX System Management Interface Log ===================",
           "Timestamp                                         : Tue Feb  3 01:02:03 2026", "",
           "Attached GPUs                                     : %d" % cards["count"], wide,
           "| MX-SMI %-27sKernel Mode Driver Version: %-17s|" % (host["tool_version"], host["driver"]),
           "| MACA Version: %-21sBIOS Version: 1.30.1.0%s|" % (host["runtime"], " " * 23),
           "|" + cells[1:-1] + "|",
           "| Board       Name | GPU   Persist-M | Bus-id              | GPU-Util      sGPU-M |",
           "| Pwr:Usage/Cap    | Temp       Perf | Memory-Usage        | GPU-State            |",
           "|==================+=================+=====================+======================|"]  # fmt: skip
    for n in numbers(host):
        memory = "%d/%d MiB" % (cards["used_mb"], cards["memory_mb"])
        out += [
            "| 0 %14s | %-3d         Off | 0000:%s        | 0%%          Disabled |" % (cards["name"], n, bus(n)),
            "| 57W / 350W       | 35C          P0 | %-19s | Available            |" % memory,
            cells,
        ]
    out += ["", wide, "| %-79s |" % "Process:",
            "|  GPU                    PID         Process Name                 GPU Memory     |",
            "|                                                                  Usage(MiB)     |",
            "|" + "=" * 81 + "|", "| %-79s |" % " no process found", wide]  # fmt: skip
    say("\n".join(out))


def main():
    with open(STATE, encoding="utf-8") as handle:
        host = json.load(handle)
    if host["failure"]:
        say(host["failure"], 9)
    tool = os.path.basename(sys.argv[0]).replace("-", "_")
    {"nvidia_smi": nvidia_smi, "amd_smi": amd_smi, "rocm_smi": rocm_smi, "rocminfo": rocminfo, "xpu_smi": xpu_smi,
     "mthreads_gmi": mthreads_gmi, "mx_smi": mx_smi}[tool](host, sys.argv[1:])  # fmt: skip


main()
