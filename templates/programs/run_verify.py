"""Run the verification program in a release, as the service's user and with the service's environment. JSON on stdin.

The evidence, bound to its subject, is kept in the release.
"""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile


def main():
    """Write the program, run it, keep what it proved."""
    request = json.load(sys.stdin)
    release = request["release"]
    user = request.get("user")
    work = tempfile.mkdtemp(prefix="lmcache-fleet-verify-")
    try:
        return run(request, release, user, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def vocabulary(model):
    """Number of token ids of a model; 0 when it doesn't say."""
    try:
        with open(os.path.join(model, "config.json"), encoding="utf-8") as handle:
            return int(json.load(handle)["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def keep_logs(work, folder):
    """Keep what the engine and server wrote: with the evidence, for whoever has to find out why it failed."""
    shutil.rmtree(folder, ignore_errors=True)
    for top, _, files in os.walk(work):
        for name in files:
            if name.endswith(".log"):
                os.makedirs(folder, exist_ok=True)
                shutil.copyfile(os.path.join(top, name), os.path.join(folder, name))


CONTAINER = "lmcache-fleet-verify"


def remove(engine):
    """Take a container away that an earlier run, killed, may have left."""
    subprocess.run(
        [engine, "rm", "--force", CONTAINER], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )


def contained(container, arguments, variables, user, work):
    """The command of a one-off container with the service's own arguments; values of variables are in its environment."""
    entry = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
    remove(container["engine"])
    filled = {"@USER@": "%d:%d" % (entry.pw_uid, entry.pw_gid), "@WORK@:@WORK@": "%s:%s" % (work, work)}
    command = [container["engine"], "run", "--name", CONTAINER]
    command += [filled.get(word, word) for word in container["arguments"]]
    for name in sorted([*variables, "HOME", "TMPDIR", "LANG"]):
        command += ["--env", name]
    return [*command, "--workdir", work, "--entrypoint", container["python"], container["image"], *arguments]


def run(request, release, user, work):
    """Do it in a directory of its own, which is also the working directory that vendors' compilers write to."""
    env = {"LANG": "C.UTF-8", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    env.update(request["env"])
    env["PATH"] = os.path.join(release, "venv/bin") + os.pathsep + env["PATH"]
    env["HOME"] = env["TMPDIR"] = work
    for name, text in request["programs"].items():
        path = os.path.join(work, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(text)
    settings = request["config"]
    words = vocabulary(request["model"])
    if words and settings["mode"] == "service":
        # A service gives its model a name of its own, from which the program can't tell which token ids exist.
        settings.setdefault("prompt", {}).setdefault("token_ids", [words // 4, words * 3 // 4])
    config, out = os.path.join(work, "config.json"), os.path.join(work, "evidence.json")
    with open(config, "w", encoding="utf-8") as handle:
        json.dump(settings, handle)
    demote = None
    if user and os.geteuid() == 0:
        entry = pwd.getpwnam(user)
        for folder, _, files in os.walk(work):
            for name in [folder] + [os.path.join(folder, file) for file in files]:
                os.chown(name, entry.pw_uid, entry.pw_gid)

        def demote():
            os.initgroups(user, entry.pw_gid)
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)

    program = os.path.join(work, "verify.py")
    python = os.path.join(release, "venv/bin/python")
    if not os.path.exists(python):
        # The service runs in an image: on line it is asked from outside, with the host's own interpreter.
        python = sys.executable
    command = [python, program, "--config", config, "--out", out]
    if request.get("container"):
        command = contained(request["container"], command[1:], request["env"], user, work)
        # The engine is root's; who runs inside is among its arguments.
        demote = None
    # stderr is progress; stdout stays ours.
    done = subprocess.run(command, cwd=work, env=env, stdout=sys.stderr, preexec_fn=demote, check=False)
    if request.get("container"):
        remove(request["container"]["engine"])
    folder = os.path.join(release, "evidence")
    keep_logs(work, os.path.join(folder, request["stage"] + "-logs"))
    try:
        with open(out, encoding="utf-8") as handle:
            evidence = json.load(handle)
    except (OSError, ValueError):
        print(
            "error: the verification ended with exit status %d and left no evidence" % done.returncode, file=sys.stderr
        )
        return done.returncode or 1
    evidence["subject"] = request["subject"]
    os.makedirs(folder, exist_ok=True)
    staged = os.path.join(folder, request["stage"] + ".json.new")
    with open(staged, "w", encoding="utf-8") as handle:
        json.dump(evidence, handle, indent=1, sort_keys=True)
    os.chmod(staged, 0o644)
    os.replace(staged, os.path.join(folder, request["stage"] + ".json"))
    if request.get("seal") and done.returncode == 0:
        # The mark must not reach the disk before what it stands for: after a power cut, a release of empty files would
        # count as whole.
        os.sync()
        staged = os.path.join(release, "sealed.new")
        with open(staged, "w", encoding="utf-8") as handle:
            handle.write(json.dumps(request["subject"]))
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(staged, os.path.join(release, "sealed"))
    for finding in evidence.get("findings", []):
        if finding.get("severity") == "error" or done.returncode:
            print("error: %s: %s" % (finding.get("id"), finding.get("message")), file=sys.stderr)
    return done.returncode


sys.exit(main())
