"""The fleet's shared second tier: a Redis or Valkey of the distribution, in a unit of our own."""

from __future__ import annotations

from facts.units import SecretFile, Units
from lmcache_fleet.digest import text_digest
from lmcache_fleet.inventory import SecretSource
from lmcache_fleet.kv_store import ACL, UNIT, acl_text, changes, packaged_unit, unit_text, watched_units
from lmcache_fleet.playbook.model import KvStoreStep
from lmcache_fleet.shell import script, words, write_file
from operations.faults import Commands, step_operation
from operations.plan import HostPlan
from operations.service import secret_value
from operations.session import Session


@step_operation
def kv_store(session: Session, plan: HostPlan, step: KvStoreStep, sources: dict[str, SecretSource]) -> Commands:
    """The server runs from the wanted unit, and lets in whoever knows the password.

    + step: server, addresses, memory, name of the password
    + sources: where the control machine takes the password from
    """
    access = acl_text(secret_value(step.password, sources) if step.password else None)
    # Salted as the host's own answer is.
    digest = text_digest(f"{plan.system.machine_id}\n{access}")
    wanted = unit_text(step, digest[:12])
    units = session.read(Units, names=watched_units(step))
    seen = session.read(SecretFile, path=ACL)
    packaged = packaged_unit(step, plan.system.package_manager)
    found = changes(step, wanted, units, (seen.digest, digest), packaged)
    if not session.show(found):
        session.host.noop(f"{step.server} is as wanted")
        return
    staged = f"{ACL}.new"
    # Without the password it must refuse: an answer would say that everybody is let in.
    answer = "PONG" if step.password is None else "NOAUTH"
    ask = words(f"{step.server}-cli", "-h", step.bind[0], "-p", str(step.port), "ping")
    log = words("journalctl", "-u", UNIT, "-n", "20", "--no-pager", "-o", "cat")
    why = f"{log} | grep -m1 -iE 'could not|fatal|bad directive|error' || echo it does not start"
    restart = "restart" if any(change.restarts for change in found) else "start"
    yield session.remote(
        script(
            f"install -d -m 0755 {words(ACL.rsplit('/', 1)[0])}",
            f"( umask 077 && cat > {words(staged)} ) && chgrp {words(step.server, staged)}",
            f"chmod 0640 {words(staged)} && mv -f {words(staged, ACL)}",
            write_file(f"/etc/systemd/system/{UNIT}", wanted),
            # Installing the package has started it, perhaps a moment ago.
            f"if systemctl cat {words(packaged)} >/dev/null; then systemctl disable -q --now {words(packaged)}; fi",
            f"systemctl daemon-reload && systemctl enable --quiet {UNIT}",
            # A unit that was only mended keeps its process, and with it what the fleet has stored.
            f'systemctl {restart} {UNIT} || {{ {log}; echo "error: $({why})"; exit 1; }}',
            f'said=$({ask} 2>&1); case $said in {answer}*) ;; *) echo "error: it answers: $said"; exit 1;; esac',
        ),
        stdin=access,
        doing=f"starting {step.server} on {', '.join(step.bind)}",
    )
    session.forget(Units, SecretFile)
