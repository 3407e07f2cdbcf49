"""Read or replace the file of an nginx upstream, and count connections to one server. Any python3 since 3.6.

The new text replaces the file only if that is still what the caller read; it is tested before nginx loads it, and put
back when the test fails. Whether nginx took it is seen from its workers: new ones run, and the old ones are ending.
"""

import fcntl
import glob
import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request

RELOAD_LIMIT = 30


class Refused(Exception):
    """Nothing was changed; says why."""


def read(path):
    """A file's text."""
    with open(path, encoding="utf-8") as handle:
        return handle.read()


def beside(path, ending):
    """A hidden name in the same folder: nginx includes whole folders by pattern, and must not load this one."""
    return os.path.join(os.path.dirname(path), "." + os.path.basename(path) + ending)


def put(path, text):
    """Write a file in one rename, with the owner and mode of the one that it replaces."""
    old = os.stat(path)
    staged = beside(path, ".new")
    with open(staged, "w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    os.chown(staged, old.st_uid, old.st_gid)
    os.chmod(staged, old.st_mode & 0o7777)
    os.replace(staged, path)


def run(*command):
    """A command's exit status and output."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False
    )
    return done.returncode, done.stdout.strip()


def workers(master):
    """Process id -> whether it takes requests, of the master's workers."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            number = int(path.split("/")[2])
            parent = int(read(path).rsplit(")", 1)[1].split()[1])
            title = read("/proc/%d/cmdline" % number) if parent == master else ""
        except (OSError, ValueError, IndexError):
            continue
        if title.startswith("nginx: worker process"):
            found[number] = "shutting down" not in title
    return found


def reload(pid_file):
    """Have nginx load its files, and see that it did."""
    try:
        master = int(read(pid_file))
    except (OSError, ValueError) as error:
        raise Refused("nginx does not run: %s: %s" % (pid_file, error)) from None
    before = workers(master)
    status, said = run("nginx", "-s", "reload")
    if status:
        raise Refused("the reload failed: %s" % said)
    until = time.monotonic() + RELOAD_LIMIT
    while time.monotonic() < until:
        now = workers(master)
        if any(takes and number not in before for number, takes in now.items()) and not any(
            now.get(number) for number in before
        ):
            return
        time.sleep(0.1)
    raise Refused("nginx did not load the new file within %d s: its error log says why" % RELOAD_LIMIT)


def replace(request):
    """Put the new text in place of the one that the caller read."""
    path = request["file"]
    with open(beside(path, ".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if read(path) != request["before"]:
            raise Refused("%s was changed by somebody else meanwhile" % path)
        if request["after"] != request["before"]:
            put(path, request["after"])
        status, said = run("nginx", "-t", "-q")
        if status:
            put(path, request["before"])
            raise Refused("nginx refuses the new file, and the old one is back: %s" % said)
        try:
            reload(request["pid_file"])
        except Refused:
            put(path, request["before"])
            raise


def addresses(server):
    """The addresses of `HOST:PORT`, in the form of the kernel's table."""
    name, _, port = server.rpartition(":") if server.rpartition(":")[2].isdigit() else (server, "", "80")
    found = set()
    for family, _, _, _, place in socket.getaddrinfo(name.strip("[]"), int(port), type=socket.SOCK_STREAM):
        packed = socket.inet_pton(family, place[0])
        words = struct.unpack("!%dI" % (len(packed) // 4), packed)
        shown = "".join("%08X" % word for word in struct.unpack("=%dI" % len(words), packed))
        found.add("%s:%04X" % (shown, int(port)))
        if family == socket.AF_INET:
            mapped = struct.unpack("=4I", b"\0" * 10 + b"\xff\xff" + packed)
            found.add("%s:%04X" % ("".join("%08X" % word for word in mapped), int(port)))
    return found


def connections(server):
    """Number of established connections from here to a server."""
    wanted, count = addresses(server), 0
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(path):
            for line in read(path).splitlines()[1:]:
                words = line.split()
                count += words[2] in wanted and words[3] == "01"
    return count


def healthy(url):
    """Why a server is not healthy as seen from here; nothing when it is."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return "" if answer.status == 200 else "%s answers %d" % (url, answer.status)
    except (OSError, urllib.error.URLError, ValueError) as error:
        return "%s: %s" % (url, getattr(error, "reason", error))


def main():
    """Do what the request names, and tell how things are then."""
    request = json.loads(sys.argv[1])
    try:
        if "after" in request:
            replace(request)
        answer = {"text": read(request["file"]), "connections": connections(request["server"])}
        if "health" in request:
            answer["unhealthy"] = healthy(request["health"])
    except Refused as error:
        print("error: %s" % error, file=sys.stderr)
        return 1
    except OSError as error:
        print("error: %s: %s" % (error.filename or request["file"], error.strerror or error), file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


sys.exit(main())
