"""Look at images that we brought to this host, or take them away. JSON in sys.argv[1] or on stdin, answer as JSON.

An image is ours as long as nobody else gave it a name, and is taken away only while no container is made of it. Runs as
root with any python3 since 3.6.
"""

import json
import os
import shutil
import subprocess
import sys


def answer(*argv):
    """A command's output; empty when it failed or isn't there."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def plain(identity):
    """An image's id as both engines may write it."""
    return identity.strip().replace("sha256:", "")


def repository(name):
    """A name without its tag and digest."""
    name = name.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


def inspected(engine, reference):
    """What the engine says of an image; None without one."""
    try:
        return json.loads(answer(engine, "image", "inspect", reference))[0]
    except (ValueError, IndexError):
        return None


def of_entry(entry):
    """Id → what the engine says, of the images that an entry stands for."""
    engine, label = entry["engine"], entry["label"]
    references = list(entry["names"])
    if label:
        # Also one that another has taken the name from.
        references += answer(engine, "images", "--quiet", "--no-trunc", "--filter", "label=" + label).split()
    found = {}
    for reference in references:
        seen = inspected(engine, reference)
        labels = ((seen or {}).get("Config") or {}).get("Labels") or {}
        if seen and (not label or "%s=%s" % (label.partition("=")[0], labels.get(label.partition("=")[0])) == label):
            found[plain(seen["Id"])] = seen
    return found


def silent(engine):
    """Whether the engine is there and doesn't answer: nothing is known of its images then."""
    if shutil.which(engine) is None:
        return False
    argv = [engine, "images", "--quiet"]
    try:
        quiet = subprocess.DEVNULL
        return subprocess.run(argv, stdin=quiet, stdout=quiet, stderr=quiet, check=False, timeout=120).returncode != 0
    except (OSError, subprocess.TimeoutExpired):
        return True


def users(engine):
    """Image id → names of the containers made of it, running or not."""
    found = {}
    ids = answer(engine, "ps", "--all", "--quiet", "--no-trunc").split()
    shown = answer(engine, "container", "inspect", "--format", "{{.Image}}\t{{.Name}}", *ids) if ids else ""
    for line in shown.splitlines():
        identity, _, name = line.partition("\t")
        found.setdefault(plain(identity), []).append(name.strip("/"))
    return found


def foreign(entry, seen):
    """Names of an image that we didn't give it."""
    ours = {repository(name) for name in entry["names"]}
    tags = [name for name in seen.get("RepoTags") or [] if name not in entry["names"]]
    return tags + [name for name in seen.get("RepoDigests") or [] if repository(name) not in ours]


def layers(seen):
    """Digests of an image's layers, the lowest first."""
    return (seen.get("RootFS") or {}).get("Layers") or []


def look(entries):
    """Key → state, bytes that are this image's alone, and who has it besides us."""
    images = {key: of_entry(entry) for key, entry in entries.items()}
    everything = [seen for found in images.values() for seen in found.values()]
    engines = {entry["engine"] for entry in entries.values()}
    held = {engine: users(engine) for engine in engines}
    unknown = {engine for engine in engines if silent(engine)}
    told = {}
    for key, entry in entries.items():
        found = images[key]
        others = [name for seen in found.values() for name in foreign(entry, seen)]
        by = [name for identity in found for name in held[entry["engine"]].get(identity, [])]
        state = "gone" if not found else "theirs" if others else "used" if by else "ours"
        state = "unknown" if entry["engine"] in unknown else state
        size = sum(own_size(seen, everything) for seen in found.values())
        # What is made on another one goes before that.
        ids = sorted(found, key=lambda identity: (-len(layers(found[identity])), identity))
        depth = max([len(layers(seen)) for seen in found.values()] or [0])
        told[key] = {"state": state, "size": size, "by": sorted(set(others or by)), "ids": ids, "depth": depth}
    return told


def own_size(seen, everything):
    """Bytes of an image without those of the largest one below it: what it is made on is counted for itself."""
    own = layers(seen)
    below = [
        other.get("Size") or 0
        for other in everything
        if len(layers(other)) < len(own) and layers(other) == own[: len(layers(other))]
    ]
    return max(0, (seen.get("Size") or 0) - max(below or [0]))


def remove(entries, folder):
    """Take away those that are ours, and forget those that are no longer; what stays is said."""
    told = look(entries)
    for key in sorted(entries, key=lambda key: -told[key]["depth"]):
        entry, seen = entries[key], told[key]
        if seen["state"] in ("used", "unknown"):
            continue
        if seen["state"] == "ours":
            # By all its names, and never by force: the engine itself refuses when a container was made meanwhile.
            for identity in seen["ids"]:
                found = inspected(entry["engine"], identity) or {}
                names = (found.get("RepoTags") or []) + (found.get("RepoDigests") or [])
                names = [name for name in names if name in entry["names"]] or [identity]
                done = subprocess.run(
                    [entry["engine"], "rmi", *names],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
                if done.returncode:
                    seen["state"] = "used"
                    seen["by"] = done.stdout.decode("utf-8", "replace").strip().splitlines()[-1:]
            if seen["state"] == "used":
                continue
        os.unlink(os.path.join(folder, key + ".json"))
    return told


def main():
    """Look, or take away."""
    request = json.loads(sys.argv[1]) if len(sys.argv) > 1 else json.load(sys.stdin)
    told = remove(request["images"], request["remove"]) if request.get("remove") else look(request["images"])
    print(json.dumps(told, sort_keys=True))


main()
