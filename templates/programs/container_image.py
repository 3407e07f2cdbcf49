"""Bring an image to this host, by pulling or building, look inside it, and note both in the release. JSON on stdin.

Runs as root with any python3 since 3.6.
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time


class Failed(Exception):
    """What went wrong, for the last line."""


def call(argv, check=True):
    """Run a command, its output shown as it comes."""
    # Cache mounts, which Dockerfiles of today are full of, are BuildKit's.
    env = dict(os.environ, DOCKER_BUILDKIT="1")
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=env, check=False)
    if check and done.returncode:
        raise Failed("`%s %s` ended with exit status %d" % (argv[0], argv[1], done.returncode))
    return done.returncode == 0


def answer(argv, text=None):
    """Run a command and give its output; None when it failed."""
    done = subprocess.run(
        argv, input=text, stdout=subprocess.PIPE, stderr=sys.stderr, universal_newlines=True, check=False
    )
    return done.stdout if done.returncode == 0 else None


def image_id(engine, reference):
    """The image's id; None when it isn't there."""
    found = subprocess.run(
        [engine, "image", "inspect", "--format", "{{.Id}}", reference],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        universal_newlines=True,
        check=False,
    )
    return found.stdout.strip().replace("sha256:", "") if found.returncode == 0 else None


def label(engine, reference, name):
    """A label's value; empty when it has none."""
    shape = '{{index .Config.Labels "%s"}}' % name
    return (answer([engine, "image", "inspect", "--format", shape, reference]) or "").strip()


def note_brought(request, names, label=None):
    """Write down, before it comes, that an image is on this host for our sake: it goes with the last release of it."""
    key = hashlib.sha256(("%s %s" % (request["engine"], names[0])).encode()).hexdigest()[:20]
    os.makedirs(request["ledger"], exist_ok=True)
    path = os.path.join(request["ledger"], key + ".json")
    with open(path + ".new", "w", encoding="utf-8") as handle:
        json.dump({"engine": request["engine"], "names": names, "label": label}, handle)
    os.replace(path + ".new", path)


def pull(request, reference, tries=3):
    """Pull by digest or tag; whether it came."""
    argv = [request["engine"], "pull"]
    if not request["tls_verify"] and request["engine"] == "podman":
        argv.append("--tls-verify=false")
    for attempt in range(tries):
        if attempt:
            time.sleep(2 * attempt)
        if call([*argv, reference], check=False):
            return True
    return False


def unpack(build, context):
    """The build's context: a source tree, and the files that the playbook adds."""
    if build["archive"]:
        data = base64.b64decode(build["archive"])
        if hashlib.sha256(data).hexdigest() != build["archive_sha256"]:
            raise Failed("the source tree arrived damaged")
        packed = os.path.join(context, ".tree.tar.gz")
        with open(packed, "wb") as handle:
            handle.write(data)
        with tarfile.open(packed) as archive:
            for member in archive.getmembers():
                # The archive is ours, with the tree's name as its first folder.
                member.name = member.name.partition("/")[2]
                if member.name:
                    archive.extract(member, context)
        os.unlink(packed)
    for name, text in build["files"].items():
        path = os.path.join(context, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(text)


def make(request, build):
    """Build the image, unless another host's is to be had."""
    engine, reference = request["engine"], request["reference"]
    names = [reference, build["remote"]] if build["remote"] else [reference]
    note_brought(request, names, "%s=%s" % (request["label"], build["spec"]))
    if build["remote"] and pull(request, build["remote"], tries=1):
        if label(engine, build["remote"], request["label"]) != build["spec"]:
            raise Failed("%s is not made of what its tag says" % build["remote"])
        call([engine, "tag", build["remote"], reference])
        return
    if build["base"] and image_id(engine, build["base"]) is None:
        note_brought(request, [build["base"]])
        if not pull(request, build["base"]):
            raise Failed("the base image %s can't be pulled" % build["base"])
    os.makedirs(request["builds"], exist_ok=True)
    context = tempfile.mkdtemp(prefix="image-", dir=request["builds"])
    try:
        unpack(build, context)
        argv = [engine, "build", "--network", "host", "--tag", reference]
        argv += ["--label", "%s=%s" % (request["label"], build["spec"])]
        argv += ["--file", os.path.join(context, build["dockerfile"])]
        argv += ["--target", build["target"]] if build["target"] else []
        for name in sorted(build["args"]):
            argv += ["--build-arg", "%s=%s" % (name, build["args"][name])]
        if engine == "podman":
            # A source tree's own base is pulled when it isn't there; ours was pulled by its digest.
            argv += ["--pull=never" if build["base"] else "--pull=missing"]
            argv += [] if request["tls_verify"] else ["--tls-verify=false"]
        call([*argv, context])
    finally:
        shutil.rmtree(context, ignore_errors=True)
    if build["remote"]:
        call([engine, "tag", reference, build["remote"]])
        push = [engine, "push"]
        if engine == "podman" and not request["tls_verify"]:
            push.append("--tls-verify=false")
        # The image is made and serves here; that others have to make theirs is no reason to fail this host.
        if not call([*push, build["remote"]], check=False):
            print("warning: %s can't be pushed; other hosts build theirs" % build["remote"], file=sys.stderr)


def look_inside(request, identity):
    """What the image holds, told by a probe that runs in it."""
    argv = [request["engine"], "run", "--rm", "--interactive", "--network", "none", *request["run"]]
    argv += ["--entrypoint", request["python"], identity, "-", json.dumps(request["probe"])]
    said = answer(argv, request["program"])
    try:
        return json.loads(said.strip().splitlines()[-1])
    except (AttributeError, IndexError, ValueError):
        raise Failed("no answer from %s inside the image" % request["python"]) from None


def main():
    """Image, probe, record."""
    request = json.load(sys.stdin)
    engine, reference, build = request["engine"], request["reference"], request["build"]
    found = image_id(engine, reference)
    stale = build and found and label(engine, reference, request["label"]) != build["spec"]
    if found is None or stale:
        if build:
            make(request, build)
        else:
            note_brought(request, [reference])
            if not pull(request, reference):
                raise Failed("%s can't be pulled" % reference)
    identity = image_id(engine, reference)
    if identity is None:
        raise Failed("%s is not in the store of %s after all" % (reference, engine))
    base = build["base"] if build else None
    record = {"reference": reference, "base": base, "id": identity, "seen": look_inside(request, identity)}
    folder = os.path.dirname(request["record"])
    os.makedirs(folder, exist_ok=True)
    with open(request["record"] + ".new", "w", encoding="utf-8") as handle:
        json.dump(record, handle, indent=1, sort_keys=True)
    os.replace(request["record"] + ".new", request["record"])
    print("image " + json.dumps(record))
    return 0


try:
    sys.exit(main())
except Failed as error:
    print("error: %s" % error, file=sys.stderr)
    sys.exit(1)
