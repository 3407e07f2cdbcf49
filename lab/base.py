"""The root file system that every host starts from: Debian or Ubuntu of this machine's own release, made once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.shell import LabError, run
from lab.state import Paths, locked

Say = Callable[[str], None]

PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "mkfs.ext4": "e2fsprogs",
    "ssh": "openssh-client",
}
PACKAGES = [
    "systemd",
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "python3",
    "python3-venv",
    "python3-dev",
    "sudo",
    "iproute2",
    "ca-certificates",
    "git",
    "build-essential",
    "procps",
    "curl",
    "xz-utils",
    "libpam-systemd",
]
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
LOCAL_CAS = Path("/usr/local/share/ca-certificates")
# Raised by hand when the code below makes another root from the same data.
RECIPE = 4

FILES = {
    # Docs and translations are half of a package's files, and unpacking is most of a host's install time.
    "etc/dpkg/dpkg.cfg.d/50-small": "path-exclude=/usr/share/doc/*\npath-include=/usr/share/doc/*/copyright\n"
    "path-exclude=/usr/share/man/*\npath-exclude=/usr/share/locale/*\npath-exclude=/usr/share/info/*\n",
    "etc/apt/apt.conf.d/50-keep-downloads": 'APT::Keep-Downloaded-Packages "true";\nAcquire::Languages "none";\n',
    "etc/default/locale": "LANG=C.UTF-8\n",
    "etc/machine-id": "",
    "etc/sudoers.d/fleet": "fleet ALL=(ALL:ALL) NOPASSWD: ALL\noperator ALL=(ALL:ALL) ALL\n"
    # As at a site with its own certificate authority or proxy: sudo must not lose what points to them.
    'Defaults env_keep += "SSL_CERT_FILE PIP_CERT REQUESTS_CA_BUNDLE http_proxy https_proxy no_proxy"\n',
    "etc/ssh/sshd_config.d/50-fleet.conf": "PasswordAuthentication no\n",
    "etc/systemd/system/ssh-host-keys.service": "[Unit]\nDescription=Make the SSH host keys on the first boot\n"
    "ConditionPathExists=!/etc/ssh/ssh_host_ed25519_key\nBefore=ssh.service\n\n[Service]\nType=oneshot\n"
    "ExecStart=/usr/bin/ssh-keygen -A\nRemainAfterExit=yes\n\n[Install]\nWantedBy=multi-user.target\n",
}
MASKED = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "systemd-resolved.service",
    "motd-news.timer",
]


@dataclass(frozen=True)
class Source:
    """One line of apt sources."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""

    def line(self) -> str:
        """The line in the one-line form."""
        option = f"[signed-by={self.signed_by}] " if self.signed_by else ""
        return f"deb {option}{self.uri} {self.suite} {' '.join(self.components)}\n"


def requirements() -> tuple[list[str], str]:
    """The Debian packages that this machine lacks, and the command that installs them (empty: nothing missing)."""
    # Root's PATH may lack sbin (su without -), and then nothing below would be found though it is there.
    search = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    os.environ["PATH"] = search
    missing = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program, path=search)})
    command = f"apt-get update && apt-get install -y --no-install-recommends {' '.join(missing)}" if missing else ""
    return missing, command


def install_missing(command: str) -> None:
    """Run the command of `requirements`, its output shown."""
    if not shutil.which("apt-get"):
        raise LabError("the lab builds its hosts with debootstrap and needs Debian or Ubuntu (no apt-get here)")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(["sh", "-ec", command], check=False, env=env).returncode:
        raise LabError(f"could not install what the lab needs: {command}")


def release() -> tuple[str, str]:
    """This machine's distribution and code name."""
    entries = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    name, code = entries.get("ID", "").strip('"'), entries.get("VERSION_CODENAME", "").strip('"')
    if name not in {"debian", "ubuntu"} or not code:
        raise LabError(f"the lab copies this machine's own release; it knows Debian and Ubuntu, not {name or '?'!r}")
    return name, code


def parse_list(text: str) -> list[Source]:
    """Read apt's one-line form."""
    found = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words or words[0] != "deb":
            continue
        signed = ""
        if len(words) > 1 and words[1].startswith("["):
            end = next((at for at, word in enumerate(words) if word.endswith("]")), len(words) - 1)
            for option in " ".join(words[1 : end + 1]).strip("[]").split():
                key, _, value = option.partition("=")
                signed = value if key == "signed-by" else signed
            words = ["deb", *words[end + 1 :]]
        if len(words) >= 4:
            found.append(Source(words[1], words[2], tuple(words[3:]), signed))
    return found


def parse_deb822(text: str) -> list[Source]:
    """Read apt's paragraph form (``.sources`` files). An embedded key is not copied, only a named key file."""
    found = []
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for paragraph in "\n".join(lines).split("\n\n"):
        fields: dict[str, str] = {}
        key = ""
        for line in paragraph.splitlines():
            if line[:1].isspace():
                fields[key] = f"{fields.get(key, '')} {line.strip()}"
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in {"no", "false", "0"}:
            continue
        signed = fields.get("signed-by", "").strip()
        signed = signed if signed.startswith("/") and " " not in signed else ""
        found += [
            Source(uri, suite, tuple(fields.get("components", "").split()), signed)
            for uri in fields.get("uris", "").split()
            for suite in fields.get("suites", "").split()
        ]
    return found


def apt_sources(code: str, etc: Path = Path("/etc/apt")) -> list[Source]:
    """The machine's own package sources of its own release: third parties' stay out, so do files and discs."""
    found: list[Source] = []
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]:
        if path.is_file() and path.suffix == ".list":
            found += parse_list(path.read_text())
        elif path.is_file() and path.suffix == ".sources":
            found += parse_deb822(path.read_text())
    mine = [s for s in found if s.suite.split("-")[0].split("/")[0] == code and "://" in s.uri]
    mine = [s for s in mine if "main" in s.components and not s.uri.startswith(("file:", "cdrom:", "copy:"))]
    if not any(source.suite == code for source in mine):
        raise LabError(f"no apt source for {code} main in {etc}: the lab builds its hosts from this machine's mirror")
    # The release's own suite first: debootstrap is given that one.
    return sorted(dict.fromkeys(mine), key=lambda source: source.suite != code)


def apt_settings() -> str:
    """How this machine's apt reaches its mirror (proxy, certificate, clock): the same must hold in a host."""
    wanted = ("Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries", "Acquire::ForceIPv4")
    lines = run(["apt-config", "dump"]).stdout.splitlines()
    return "".join(f"{line}\n" for line in lines if line.startswith(wanted) and not line.endswith(' "";'))


def recipe() -> dict[str, object]:
    """Everything that decides what is in the base; its hash is the base's name."""
    name, code = release()
    cas = {path.name: path.read_text(errors="replace") for path in sorted(LOCAL_CAS.glob("**/*.crt"))}
    return {
        "recipe": RECIPE,
        "distribution": name,
        "code": code,
        "architecture": run(["dpkg", "--print-architecture"]).stdout.strip(),
        "packages": PACKAGES,
        "files": FILES,
        "masked": MASKED,
        "sources": [source.line() for source in apt_sources(code)],
        "apt": apt_settings(),
        "cas": cas,
    }


def ensure(paths: Paths, say: Say) -> Path:
    """The base for today's recipe, built when it isn't there yet."""
    plan = recipe()
    key = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]
    base = paths.bases / f"{plan['code']}-{key}"
    if base.is_dir():
        return base
    paths.mkdirs()
    with locked(paths.cache / "base.lock", "another lab is building the base system; waiting for it"):
        if base.is_dir():
            return base
        # Half-built ones of runs that were killed: the lock says that nobody is at work on them.
        for left in paths.bases.glob("*.building"):
            shutil.rmtree(left)
        building = paths.bases / f"{base.name}.building"
        say(f"building the base system ({plan['distribution']} {plan['code']}): once, a few minutes")
        try:
            build(building, paths, say)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        building.rename(base)
    return base


def build(root: Path, paths: Paths, say: Say) -> None:
    """Make a base root file system in ``root``."""
    _, code = release()
    sources = apt_sources(code)
    log = paths.bases / "build.log"
    archives = paths.cache / "debootstrap-debs"
    archives.mkdir(exist_ok=True)
    signed = sources[0].signed_by
    keyring = [f"--keyring={signed}"] if signed and Path(signed).is_file() else []
    say("  debootstrap")
    options = ["--variant=minbase", f"--components={','.join(sources[0].components)}", *keyring]
    logged(["debootstrap", *options, f"--cache-dir={archives}", code, str(root), sources[0].uri], log)
    write(root, "etc/apt/sources.list", "".join(source.line() for source in sources))
    for keys in {source.signed_by for source in sources} - {""}:
        copy = root / keys.lstrip("/")
        if Path(keys).is_file() and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(keys, copy)
    write(root, "etc/apt/apt.conf.d/60-site", apt_settings())
    for name, text in FILES.items():
        write(root, name, text)
    copy_network_files(root)
    # Nothing may start a service in a root that isn't booted.
    write(root, "usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", 0o755)
    say(f"  packages: {' '.join(PACKAGES)}")
    seed_archives(paths.pool, root / "var/cache/apt/archives")
    chroot(root, log, "apt-get", "-q", "update")
    for action in (["dist-upgrade"], ["install", *PACKAGES]):
        options = ["-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-unsafe-io"]
        options += ["-o", "Dpkg::Options::=--force-confold", "-o", "APT::Keep-Downloaded-Packages=true"]
        chroot(root, log, "apt-get", "-q", *options, *action)
    harvest_archives(paths.pool, root / "var/cache/apt/archives")
    for path in sorted(LOCAL_CAS.glob("**/*.crt")):
        write(root, f"usr/local/share/ca-certificates/{path.name}", path.read_text())
    chroot(root, log, "update-ca-certificates")
    useradd = ["useradd", "--create-home", "--shell", "/bin/bash", "--password", "*"]
    chroot(root, log, *useradd, "fleet")
    # Debian has a group of that name already.
    chroot(root, log, *useradd, "--gid", "operator", "operator")
    (root / "etc/sudoers.d/fleet").chmod(0o440)
    chroot(root, log, "systemctl", "enable", "ssh.service", "ssh-host-keys.service")
    chroot(root, log, "systemctl", "mask", *MASKED)
    chroot(root, log, "apt-get", "-q", "clean")
    # What must differ between hosts is made at a host's first boot.
    own = [root / "var/lib/dbus/machine-id", root / "usr/sbin/policy-rc.d"]
    for path in [*(root / "etc/ssh").glob("ssh_host_*"), *own]:
        path.unlink(missing_ok=True)
    write(root, "etc/machine-id", "")


def logged(argv: list[str], log: Path, env: dict[str, str] | None = None) -> None:
    """Run a long program with its output in the build log."""
    with log.open("a") as file:
        code = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False, env=env).returncode
    if code:
        tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-12:])
        raise LabError(f"building the base system failed at `{' '.join(argv[:4])} …` (whole log: {log}):\n  {tail}")


def chroot(root: Path, log: Path, *argv: str) -> None:
    """Run a program inside the root that is being built, with a /proc and /dev that vanish with it."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    env |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    enter = f'mount -t proc proc "{root}/proc"; mount --rbind /dev "{root}/dev"; exec chroot "{root}" "$@"'
    logged(["unshare", "--mount", "--propagation", "private", "sh", "-ec", enter, "sh", *argv], log, env)


def copy_network_files(root: Path) -> None:
    """Give a root this machine's resolver and certificate bundle."""
    resolver = Path("/etc/resolv.conf")
    stub = Path("/run/systemd/resolve/resolv.conf")
    # A resolver on the machine's own loopback can't be reached from a host's network; systemd keeps the real list here.
    if "nameserver 127." in resolver.read_text() and stub.is_file():
        resolver = stub
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    write(root, "etc/resolv.conf", resolver.read_text())
    if CA_BUNDLE.is_file():
        (root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
        shutil.copy(CA_BUNDLE, root / str(CA_BUNDLE).lstrip("/"))


def site_environment(subnet: str) -> str:
    """The /etc/environment of a site with its own certificate authority or proxy, when this machine is at one."""
    lines = []
    if any(LOCAL_CAS.glob("**/*.crt")):
        lines += [f"{name}={CA_BUNDLE}" for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")]
    proxies = {name: os.environ.get(name) or os.environ.get(name.upper(), "") for name in ("http_proxy", "https_proxy")}
    lines += [f"{name}={value}" for name, value in proxies.items() if value]
    if any(proxies.values()):
        lines.append(f"no_proxy={os.environ.get('no_proxy', 'localhost,127.0.0.1')},{subnet}")
    return "".join(f"{line}\n" for line in lines)


def write(root: Path, name: str, text: str, mode: int = 0o644) -> None:
    """Write one file below a root."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def seed_archives(pool: Path, archives: Path) -> None:
    """Offer what any host downloaded before. Hard links: apt locks the directory, so each host has its own."""
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    for deb in pool.glob("*.deb"):
        target = archives / deb.name
        if not target.exists():
            try:
                os.link(deb, target)
            except OSError:
                shutil.copy(deb, target)


def harvest_archives(pool: Path, archives: Path) -> None:
    """Keep what a host downloaded. apt moves a file here only when it is whole and its hash was right."""
    pool.mkdir(parents=True, exist_ok=True)
    for deb in archives.glob("*.deb"):
        target = pool / deb.name
        if not target.exists():
            new = pool / f".{deb.name}.{os.getpid()}"
            new.unlink(missing_ok=True)
            try:
                os.link(deb, new)
            except OSError:
                shutil.copy(deb, new)
            new.replace(target)


def prune(paths: Paths, keep: set[str]) -> None:
    """Remove bases that neither today's recipe nor a host of any lab uses."""
    for base in paths.bases.iterdir():
        if base.is_dir() and base.name not in keep and not base.name.endswith(".building"):
            shutil.rmtree(base, ignore_errors=True)
