"""Read what stands under the prefix on this host and print it as JSON. Runs with any python3 since 3.6; changes nothing."""

import base64
import csv
import glob
import hashlib
import json
import os
import re
import sys

TEXT_LIMIT = 32768


def sha256(path):
    with open(path, "rb") as handle:
        return hashlib.sha256(handle.read()).hexdigest()


def read_json(path):
    try:
        with open(path, encoding="utf-8") as handle:
            return json.load(handle)
    except (OSError, ValueError):
        return None


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(site):
    found = {}
    for entry in sorted(os.listdir(site)) if os.path.isdir(site) else []:
        if entry.endswith(".dist-info"):
            name, _, version = entry[: -len(".dist-info")].partition("-")
            found.setdefault(canonical(name), []).append((version, entry))
    return found


def record(site, info):
    try:
        with open(os.path.join(site, info, "RECORD"), encoding="utf-8", newline="") as handle:
            return handle.read()
    except OSError:
        return ""


def owned(site, dists, package, owner):
    """Whether the files of an import package are those that the owner's RECORD lists."""
    prefix = package + "/"
    claimed = []
    for name, entries in dists.items():
        for _, info in entries:
            text = record(site, info)
            if text.startswith(prefix) or "\n" + prefix in text:
                claimed.append(name)
    wrong = []
    for _, info in dists.get(owner, []):
        for row in csv.reader(record(site, info).splitlines()):
            if len(row) < 2 or not row[0].startswith(prefix) or not row[1].startswith("sha256="):
                continue
            path = os.path.join(site, row[0])
            try:
                with open(path, "rb") as handle:
                    seen = hashlib.sha256(handle.read()).digest()
            except OSError:
                wrong.append(row[0] + " is missing")
                continue
            if base64.urlsafe_b64encode(seen).rstrip(b"=").decode() != row[1][len("sha256=") :]:
                wrong.append(row[0] + " is another file")
    return {"claimed_by": sorted(set(claimed)), "wrong": wrong[:5], "wrong_count": len(wrong)}


def wheel_tags(site, info):
    try:
        with open(os.path.join(site, info, "WHEEL"), encoding="utf-8") as handle:
            return [line.split(":", 1)[1].strip() for line in handle if line.startswith("Tag:")]
    except OSError:
        return []


def texts(release):
    found = {}
    for folder in ("env", "config", "bin"):
        top = os.path.join(release, folder)
        for name in sorted(os.listdir(top)) if os.path.isdir(top) else []:
            path = os.path.join(top, name)
            if not os.path.isfile(path) or name.endswith(".new"):
                continue
            secret = name.startswith("secret")
            item = {"sha256": sha256(path), "mode": "%04o" % (os.stat(path).st_mode & 0o7777)}
            if not secret and os.path.getsize(path) <= TEXT_LIMIT:
                with open(path, encoding="utf-8", errors="replace") as handle:
                    item["text"] = handle.read()
            found[folder + "/" + name] = item
    return found


def native(site, module, wanted):
    folder = os.path.join(site, module)
    info = None
    if wanted.get("build_info"):
        try:
            with open(os.path.join(folder, wanted["build_info"]), encoding="utf-8") as handle:
                info = handle.read(TEXT_LIMIT)
        except OSError:
            info = None
    missing = [
        p
        for p in wanted.get("libraries", [])
        if not glob.glob(os.path.join(glob.escape(folder), "**", p), recursive=True)
    ]
    return {"build_info": info, "missing": missing}


def torch_cxx_abi(site):
    """Which C++ ABI the installed torch names for extensions; None when it names none."""
    try:
        with open(os.path.join(site, "torch/share/cmake/Torch/TorchConfig.cmake"), encoding="utf-8") as handle:
            found = re.search(r"_GLIBCXX_USE_CXX11_ABI=([01])", handle.read())
    except OSError:
        return None
    return found.group(1) if found else None


def release(path, request):
    site_glob = sorted(glob.glob(os.path.join(glob.escape(path), "venv/lib/python3.*/site-packages")))
    site = site_glob[-1] if site_glob else ""
    dists = distributions(site) if site else {}
    venv = {}
    try:
        with open(os.path.join(path, "venv/pyvenv.cfg"), encoding="utf-8") as handle:
            for line in handle:
                key, _, value = line.partition("=")
                venv[key.strip()] = value.strip()
    except OSError:
        pass
    evidence = {}
    for stage in ("offline", "online"):
        full = read_json(os.path.join(path, "evidence", stage + ".json"))
        if isinstance(full, dict):
            evidence[stage] = full
    tags = {}
    for name in request.get("wheel_tags", []):
        tags[name] = [tag for _, info in dists.get(name, []) for tag in wheel_tags(site, info)]
    return {
        "manifest": read_json(os.path.join(path, "release.json")),
        "sealed": os.path.exists(os.path.join(path, "sealed")),
        "python": venv.get("version_info") or venv.get("version"),
        "interpreter_works": bool(venv) and os.path.exists(os.path.join(path, "venv/bin/python")),
        "distributions": {name: [version for version, _ in entries] for name, entries in dists.items()},
        "owns": {
            package: owned(site, dists, package, owner) for package, owner in request.get("owns", {}).items() if dists
        },
        "wheel_tags": tags,
        "natives": {
            module: native(site, module, wanted) for module, wanted in request.get("natives", {}).items() if dists
        },
        "torch_cxx_abi": torch_cxx_abi(site) if request.get("natives") and site else None,
        "records": {
            name[: -len(".json")]: read_json(os.path.join(path, "records", name))
            for name in (
                os.listdir(os.path.join(path, "records")) if os.path.isdir(os.path.join(path, "records")) else []
            )
            if name.endswith(".json")
        },
        "texts": texts(path),
        "evidence": evidence,
    }


def model(path):
    manifest = read_json(os.path.join(path, "manifest.json"))
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        return {"state": "incomplete", "detail": "no manifest"}
    for name, wanted in manifest["files"].items():
        try:
            size = os.path.getsize(os.path.join(path, name))
        except OSError:
            return {"state": "damaged", "detail": name + " is missing"}
        if isinstance(wanted, dict) and size != wanted.get("size", size):
            return {"state": "damaged", "detail": name + " has another size"}
    return {"state": "complete", "detail": ""}


def listed(folder):
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def images(folder):
    found = {}
    for name in listed(folder):
        entry = read_json(os.path.join(folder, name)) if name.endswith(".json") else None
        if isinstance(entry, dict) and entry.get("names"):
            found[name[: -len(".json")]] = entry
    return found


def main():
    request = json.loads(sys.argv[1])
    prefix = request["prefix"]
    releases = os.path.join(prefix, "releases")
    current = os.path.join(prefix, "current")
    print(
        json.dumps(
            {
                "current": os.path.basename(os.readlink(current)) if os.path.islink(current) else None,
                "previous": (read_json(os.path.join(prefix, "previous.json")) or {}).get("release"),
                "activation": read_json(os.path.join(prefix, "activation.json")),
                "rolled_back": read_json(os.path.join(prefix, "rolled_back.json")),
                "releases": {
                    name: release(os.path.join(releases, name), request)
                    for name in listed(releases)
                    if not name.startswith(".")
                },
                "models": {
                    name: model(os.path.join(prefix, "models", name))
                    for name in listed(os.path.join(prefix, "models"))
                    if not name.startswith(".")
                },
                "images": images(os.path.join(prefix, "images")),
                "tools": [
                    name
                    for name in listed(os.path.join(prefix, "tools"))
                    if os.path.exists(os.path.join(prefix, "tools", name, "bin/uv"))
                ],
            }
        )
    )


main()
