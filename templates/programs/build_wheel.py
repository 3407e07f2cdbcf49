"""Build a wheel from a packed source tree, from scratch and within bounds. Runs with the release's python; JSON on stdin.

Prints `built <file> <sha256>` as its last line. Compile jobs are bounded by cores and by memory, although upstream's own
build line asks for as many as there are files: a `cmake` that is first on PATH gives `-j` its number.
"""

import base64
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys

SHIM = """#!/bin/sh
# Gives a bare -j (no bound at all) the number of jobs that this host can bear.
n=$#
while [ $n -gt 0 ]; do
  a=$1; shift; n=$((n-1))
  case "$a" in
    -j|--parallel) case "$1" in [0-9]*) set -- "$@" "$a" ;; *) set -- "$@" "-j@JOBS@" ;; esac ;;
    *) set -- "$@" "$a" ;;
  esac
done
exec @CMAKE@ "$@"
"""


def memory_gib():
    """Memory that the build may use: what is free, or the cgroup's limit when that is less."""
    with open("/proc/meminfo", encoding="utf-8") as handle:
        free = next(int(line.split()[1]) / 1048576 for line in handle if line.startswith("MemAvailable"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="utf-8") as handle:
                text = handle.read().strip()
        except OSError:
            continue
        if text.isdigit():
            free = min(free, int(text) / 1073741824)
    return free


def cores():
    """Processors that this process may use."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def job_count(cores, memory, per_job, reserve=1.0):
    """As many jobs as cores, but no more than the memory bears; one at least."""
    return max(1, min(cores, int((memory - reserve) / per_job)))


def environment(request, tools):
    """The build's environment: the service's, the build's own variables, our cmake first on PATH."""
    env = {"HOME": request["work"], "LANG": "C.UTF-8", "PATH": os.environ.get("PATH", "/usr/bin:/bin")}
    env.update(request["toolkit"])
    env.update(request["env"])
    venv_bin = os.path.dirname(sys.executable)
    env["PATH"] = os.pathsep.join([tools, venv_bin, env["PATH"]])
    if request.get("version"):
        env["SETUPTOOLS_SCM_PRETEND_VERSION"] = request["version"]
    if request.get("soc"):
        env["SOC_VERSION"] = request["soc"]
    return env


def cmake_shim(folder, jobs, env_path):
    """Put the shim in place, if there is a cmake to stand before."""
    cmake = shutil.which("cmake", path=env_path)
    if cmake:
        path = os.path.join(folder, "cmake")
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(SHIM.replace("@JOBS@", str(jobs)).replace("@CMAKE@", cmake))
        os.chmod(path, 0o755)


def main():
    """Unpack, build, tell."""
    request = json.load(sys.stdin)
    work = request["work"]
    # A stale build directory links objects that a former link changed in place: always start from nothing.
    shutil.rmtree(work, ignore_errors=True)
    tools = os.path.join(work, "tools")
    os.makedirs(tools)
    archive = os.path.join(work, "tree.tar.gz")
    with open(archive, "wb") as handle:
        handle.write(base64.b64decode(request.pop("archive")))
    with open(archive, "rb") as handle:
        seen = hashlib.sha256(handle.read()).hexdigest()
    if seen != request["archive_sha256"]:
        sys.exit("the source tree changed on the way: its hash differs")
    subprocess.run(["tar", "-xzf", archive, "-C", work], check=True)
    tree = os.path.join(work, request["name"])
    jobs = job_count(cores(), memory_gib(), request["job_memory_gb"], request.get("spare_memory_gb", 1.0))
    env = environment(request, tools)
    cmake_shim(tools, jobs, env["PATH"].split(os.pathsep, 1)[1])
    env.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(jobs))
    env.setdefault("MAX_JOBS", str(jobs))
    # What LMCache's build fills the remaining slots with; they are all given to jobs.
    env.setdefault("NVCC_THREADS", "1")
    print("building with %d jobs" % jobs, flush=True)
    out = os.path.join(work, "dist")
    command = [word.replace("@OUT@", out).replace("@TREE@", tree) for word in request["command"]]
    limit = request.get("memory_gb")
    if limit and os.path.isdir("/run/systemd/system") and os.geteuid() == 0:
        scope = ["systemd-run", "--quiet", "--scope", "--collect", "-p", "MemoryMax=%dM" % int(limit * 1024)]
        command = [*scope, "--", *command]
    done = subprocess.run(command, cwd=tree, env=env, stdin=subprocess.DEVNULL, check=False)
    if done.returncode < 0:
        sys.exit("the build was ended by signal %d" % -done.returncode)
    if done.returncode:
        sys.exit("the build failed with exit status %d" % done.returncode)
    wheels = glob.glob(os.path.join(out, "*.whl"))
    if len(wheels) != 1:
        sys.exit("the build made %d wheels, expected one" % len(wheels))
    with open(wheels[0], "rb") as handle:
        print("built %s %s" % (wheels[0], hashlib.sha256(handle.read()).hexdigest()), flush=True)


main()
