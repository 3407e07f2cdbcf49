"""Switch a host to a release: units, link, restart, proof; and back by itself when the proof fails. JSON on stdin.

Runs as root with any python3 since 3.6. It is not ended by a lost connection, and it keeps a journal: whatever kills it,
either the old or the new release serves, and the next run knows where it was.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

UNIT_FOLDER = "/etc/systemd/system"
# Every unit that a release may have, in the order in which they start.
OURS = ("lmcache-fleet-server.service", "lmcache-fleet-vllm.service", "lmcache-fleet-sglang.service")
TELLING = re.compile(r"error|fatal|not found|no such|cannot|can't|unable|denied|killed", re.IGNORECASE)


def say(text):
    """Tell; the control machine may be gone, and the work goes on all the same."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")


def put(path, text, mode=0o644):
    """Write a file in one rename, on disk before it counts."""
    staged = path + ".new"
    with open(staged, "w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    os.chmod(staged, mode)
    os.replace(staged, path)


def read(path):
    """A file's text, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return None


def systemctl(*arguments):
    """Run systemctl and give its result."""
    return subprocess.run(
        ["systemctl", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        check=False,
    )


def link(prefix, release):
    """Point `current` at a release, atomically; at nothing when there is none."""
    current = os.path.join(prefix, "current")
    if release is None:
        if os.path.islink(current):
            os.unlink(current)
        return
    staged = current + ".new"
    if os.path.islink(staged):
        os.unlink(staged)
    os.symlink(os.path.join("releases", release), staged)
    os.replace(staged, current)


def show(unit):
    """What systemd says of a unit."""
    text = systemctl("show", "-p", "ActiveState,SubState,NRestarts,Result,MainPID", "--", unit).stdout
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def journal(unit, lines=25):
    """The unit's last log lines."""
    done = subprocess.run(
        ["journalctl", "-u", unit, "-n", str(lines), "--no-pager", "-o", "cat"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        check=False,
    )
    return done.stdout


def healthy(url):
    """Whether the service answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError, ValueError):
        return False


def wait_healthy(units, url, limit):
    """Wait for the service; the reason when it doesn't come up, else None."""
    began = told = time.monotonic()
    while time.monotonic() - began < limit:
        for unit in units:
            state = show(unit)
            if state.get("ActiveState") == "failed" or int(state.get("NRestarts") or 0) > 2:
                return "%s failed (%s)\n%s" % (unit, state.get("Result"), journal(unit))
        # An engine may answer while what it needs beside it has just died and is about to be started again.
        if healthy(url) and all(show(unit).get("ActiveState") == "active" for unit in units):
            return None
        if time.monotonic() - told > 10:
            told = time.monotonic()
            say("waiting for %s, %d s" % (url, told - began))
        time.sleep(0.5)
    return "%s did not answer within %d s\n%s" % (url, limit, journal(units[-1]))


def restart(request, units):
    """Restart the units in order and wait; the reason when that fails."""
    systemctl("daemon-reload")
    systemctl("reset-failed", *units)
    for unit in reversed(units):
        systemctl("stop", unit)
    for unit in units:
        done = systemctl("restart", unit)
        if done.returncode:
            return "%s did not start: %s\n%s" % (unit, done.stdout.strip(), journal(unit))
    return wait_healthy(units, request["health"], request["start_timeout"])


def retire(names):
    """Units that a release doesn't have: stopped, and gone."""
    if not names:
        return
    # What still stands loads its own text first: stopping a unit takes down whatever is loaded as requiring it.
    systemctl("daemon-reload")
    for name in reversed(names):
        systemctl("stop", name)
        systemctl("disable", "--quiet", name)
        os.unlink(os.path.join(UNIT_FOLDER, name))
        say("%s is gone: nothing wants it any more" % name)
    systemctl("daemon-reload")


def there(name):
    """Whether the host has a unit."""
    return os.path.exists(os.path.join(UNIT_FOLDER, name))


def deaths(units):
    """Those that died by themselves since they were started, with what they said, as lines."""
    told = []
    for unit in units:
        state = show(unit)
        again = int(state.get("NRestarts") or 0)
        if again or state.get("ActiveState") == "failed":
            said = journal(unit).strip().splitlines() or ["it said nothing"]
            last = [line for line in said if TELLING.search(line)] or said
            told += [*said, "error: %s died, restarted %d times: %s" % (unit, again, last[-1].strip())]
    return "".join("\n" + line for line in told)


def prove(request, units):
    """Run the on-line verification; the reason when it fails."""
    if not request.get("verify"):
        return None
    # Its progress goes through us: with the control machine gone, writing would fail it, and a good release would be
    # taken back for that.
    child = subprocess.Popen(
        [sys.executable, "-c", request["runner"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    child.stdin.write(json.dumps(request["verify"]))
    child.stdin.close()
    for line in child.stdout:
        say(line.rstrip())
    return None if child.wait() == 0 else "the on-line verification failed" + deaths(units)


def started_from(unit):
    """The release that the unit's running process was started from; None when none runs."""
    environment = read("/proc/%s/environ" % show(unit).get("MainPID", "0")) or ""
    found = dict(item.split("=", 1) for item in environment.split("\0") if "=" in item)
    return found.get("LMCACHE_FLEET_RELEASE")


def keep_record(prefix, release, request):
    """Keep how the release was put into service, for a way back to it; and whether this was one."""
    if request.get("record"):
        put(os.path.join(prefix, "releases", release, "service.json"), json.dumps(request["record"]), 0o600)
    mark = os.path.join(prefix, "rolled_back.json")
    if request.get("rollback"):
        put(mark, json.dumps(request["rollback"]))
    elif os.path.exists(mark):
        os.unlink(mark)


def main():
    """Switch, or switch back."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    request = json.load(sys.stdin)
    prefix, release, units = request["prefix"], request["release"], request["units"]
    names = list(units)
    pending_path = os.path.join(prefix, "activation.json")
    pending = json.loads(read(pending_path) or "null")
    current = os.path.join(prefix, "current")
    before = os.path.basename(os.readlink(current)) if os.path.islink(current) else None
    before_units = {name: read(os.path.join(UNIT_FOLDER, name)) for name in OURS if name in names or there(name)}
    if pending:
        # A switch was cut off: what counts as "before" is what served before that one.
        before, before_units = pending["before"], pending["before_units"]
    put(pending_path, json.dumps({"release": release, "before": before, "before_units": before_units}), 0o600)
    say("switching %s -> %s" % (before, release))
    for name, text in units.items():
        put(os.path.join(UNIT_FOLDER, name), text)
    link(prefix, release)
    retire([name for name in OURS if name not in units and there(name)])
    # The plan was made before the wait for the host's lock: what runs now decides.
    stale = pending or before != release or any(started_from(name) != release for name in names)
    wrong = restart(request, names) if request["restart"] or stale else None
    wrong = wrong or prove(request, names)
    if wrong is None:
        systemctl("enable", "--quiet", *names)
        if before and before != release:
            put(os.path.join(prefix, "previous.json"), json.dumps({"release": before}))
        keep_record(prefix, release, request)
        os.unlink(pending_path)
        say("serving %s" % release)
        return 0
    say(wrong)
    if before is None or before == release:
        # Nothing to go back to: better no service than one that doesn't do what it is for.
        for name in reversed(names):
            systemctl("stop", name)
        if before is None:
            link(prefix, None)
        say("error: release %s failed on line and there is no earlier one: the service is stopped" % release)
    else:
        link(prefix, before)
        earlier = {name: text for name, text in before_units.items() if text is not None}
        for name, text in earlier.items():
            put(os.path.join(UNIT_FOLDER, name), text)
        retire([name for name in names if name not in earlier])
        # It is asked where it answers: a port may be what differs.
        record = json.loads(read(os.path.join(prefix, "releases", before, "service.json")) or "{}")
        back = restart({**request, **record}, list(earlier))
        systemctl("enable", "--quiet", *earlier)
        say(
            "error: release %s failed on line; back on %s%s"
            % (release, before, "" if back is None else ", which failed too: " + back)
        )
    os.unlink(pending_path)
    return 1


sys.exit(main())
