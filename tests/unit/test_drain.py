"""Draining: what load balancers answer, edits of an upstream, and the order of things with balancers that misbehave."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_fleet.drain import DrainError, haproxy, hook, nginx
from lmcache_fleet.drain.balancers import Haproxy, Nginx, Standing
from lmcache_fleet.drain.hook import BalancerDrain
from lmcache_fleet.drain.settings import DrainSettings
from lmcache_fleet.inventory import balancer_problems, host_settings
from lmcache_fleet.problems import InputError
from lmcache_fleet.shell import PROGRAMS

STATE_HEADER = (
    "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight "
    "srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state "
    "bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr "
    "srv_agent_addr srv_agent_port\n"
)
STATE = (
    STATE_HEADER + "3 vllm 1 h1 127.0.0.1 0 8 1 1 48 8 2 0 6 0 0 0 - 8000 - 0 0 - - 0\n"
    "3 vllm 2 h2 127.0.0.1 2 0 1 1 119 15 3 2 6 0 0 0 - 8001 - 0 0 - - 0\n"
    "3 vllm 3 h3 127.0.0.1 2 1 1 1 119 15 3 2 2 0 0 0 - 8002 - 0 0 - - 0\n"
    "3 vllm 4 h4 127.0.0.1 2 0 1 1 119 1 0 0 0 0 0 0 - 8003 - 0 0 - - 0\n\n"
)
# Another backend has servers of the same names, which must not be counted.
STAT = (
    "# pxname,svname,qcur,qmax,scur,smax,status,check_status,last_chk,\n"
    "other,h1,9,9,9,9,UP,L7OK,,\n"
    "vllm,h1,1,1,2,3,DOWN,L4CON,Connection refused,\n"
    "vllm,h2,0,1,0,3,UP,L7OK,HTTP status check returned code <200>,\n"
    "vllm,h3,0,1,0,3,MAINT,,,\n"
    "vllm,h4,0,1,0,3,no check,,,\n"
)


def test_haproxy_servers_are_read_with_state_sessions_and_check() -> None:
    servers = haproxy.parse("vllm", STATE, STAT)
    assert servers["h1"] == haproxy.Server("h1", False, True, True, False, True, 2, 1, "L4CON Connection refused")
    assert servers["h2"].serving and not servers["h2"].sessions
    assert servers["h3"].maintenance and not servers["h3"].serving
    assert not servers["h4"].checked


@pytest.mark.parametrize(
    ("state", "stat"),
    [("Can't find backend.\n", STAT), ("", STAT), (STATE, "Permission denied\n"), (STATE_HEADER + "3 vllm 1\n", STAT)],
)
def test_what_haproxy_answers_instead_is_said(state: str, stat: str) -> None:
    with pytest.raises(haproxy.UnreadableAnswer, match=r"show st|show servers state"):
        haproxy.parse("vllm", state, stat)


UPSTREAM = """upstream vllm {
    least_conn;
    server 10.0.0.1:8000;
    #server 10.0.0.1:8000;
    server 10.0.0.2:8000 max_fails=3 weight=2;  # spare
    server 10.0.0.10:8000 down;
\tserver\tunix:/run/x.sock backup;
}
"""


def test_an_upstreams_servers_are_read_and_comments_are_not() -> None:
    assert [(item.address, item.down, item.ours) for item in nginx.servers(UPSTREAM)] == [
        ("10.0.0.1:8000", False, False),
        ("10.0.0.2:8000", False, False),
        ("10.0.0.10:8000", True, False),
        ("unix:/run/x.sock", False, False),
    ]


def test_a_drained_server_is_marked_and_the_mark_is_ours() -> None:
    text = nginx.drained(UPSTREAM, "10.0.0.2:8000")
    assert f"    server 10.0.0.2:8000 max_fails=3 weight=2 down;  # spare {nginx.MARK}\n" in text
    assert nginx.drained(text, "10.0.0.2:8000") == text
    assert nginx.restored(text, "10.0.0.2:8000") == UPSTREAM
    # What an operator took out stays out.
    assert nginx.drained(UPSTREAM, "10.0.0.10:8000") == UPSTREAM
    assert nginx.restored(UPSTREAM, "10.0.0.10:8000") == UPSTREAM


_word = st.text("abz019.:=_-", min_size=1, max_size=8)
_line = st.one_of(
    st.builds(
        lambda lead, address, words, tail: f"{lead}server {address}{''.join(' ' + word for word in words)};{tail}",
        st.sampled_from(["", "  ", "\t"]),
        st.sampled_from(["10.0.0.1:80", "10.0.0.11:80", "[::1]:80"]),
        st.lists(st.one_of(_word, st.just("down"), st.just("backup")), max_size=3, unique=True),
        st.sampled_from(["", " ", "  # note", " # a; b {", ";"]),
    ),
    st.sampled_from(["upstream x {", "}", "# server 10.0.0.1:80;", "", "server_name x;", "least_conn;"]),
)


@given(st.lists(_line, max_size=8).map("\n".join))
def test_draining_and_restoring_is_the_text_again_and_touches_no_other_server(text: str) -> None:
    address = "10.0.0.1:80"
    drained = nginx.drained(text, address)
    assert all(item.down for item in nginx.servers(drained) if item.address == address)
    others = [item for item in nginx.servers(text) if item.address != address]
    assert [item for item in nginx.servers(drained) if item.address != address] == others
    assert nginx.drained(drained, address) == drained
    back = nginx.restored(drained, address)
    assert [line.rstrip() for line in back.split("\n")] == [line.rstrip() for line in text.split("\n")]


# --- the hook --------------------------------------------------------------------------------------------------------


@dataclass
class FakeFleet:
    """A shell whose load balancers are HAProxys that answer as the real one does."""

    states: dict[str, dict[str, str]]
    sessions: list[int] = field(default_factory=lambda: [0])
    running: list[str] = field(default_factory=lambda: ["0"])
    ignores: bool = False
    log: list[str] = field(default_factory=list)

    def address(self, host: str) -> str:
        return f"192.0.2.{host[1:]}"

    def run(self, host: str, command: str) -> str:
        request = json.loads(_last_word(command))
        if isinstance(request, str):
            answer = self.running.pop(0) if len(self.running) > 1 else self.running[0]
            if answer.startswith("error"):
                raise DrainError(answer)
            return answer
        answers = []
        servers = self.states[host]
        for word in request["commands"]:
            if word.startswith("set server"):
                _, _, place, _, state = word.split()
                self.log.append(f"{host} {place.split('/')[1]} {state}")
                if not self.ignores:
                    servers[place.split("/")[1]] = state
                answers.append("\n")
            elif word.startswith("show servers"):
                answers.append(STATE_HEADER + "".join(self._row(*item) for item in servers.items()))
            else:
                count = self.sessions.pop(0) if len(self.sessions) > 1 else self.sessions[0]
                rows = "".join(f"vllm,{name},0,{count if name == 'h1' else 0},L7OK,\n" for name in servers)
                answers.append("# pxname,svname,qcur,scur,check_status,last_chk\n" + rows)
        return json.dumps(answers)

    @staticmethod
    def _row(name: str, state: str) -> str:
        up = 0 if "down" in state else 2
        admin = 1 if "maint" in state else 8 if "drain" in state else 0
        check = 0 if "unchecked" in state else 6
        return f"3 vllm 1 {name} 192.0.2.1 {up} {admin} 1 1 9 8 2 0 {check} 0 0 0 - 8000 - 0 0 - - 0\n"


def _last_word(command: str) -> str:
    import shlex

    return shlex.split(command)[-1]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Time passes only by sleeping."""
    now = [0.0]
    monkeypatch.setattr(hook.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(hook.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    yield now


def settings(**more: object) -> DrainSettings:
    data = {"haproxy": {"hosts": ["lb1", "lb2"], "backend": "vllm"}, "limit": 20, **more}
    return DrainSettings.model_validate(data)


def fleet(**more: object) -> FakeFleet:
    states = {lb: {"h1": "ready", "h2": "ready"} for lb in ("lb1", "lb2")}
    return FakeFleet(states, **more)  # type: ignore[arg-type]


def drain(shell: FakeFleet, said: list[str] | None = None, **more: object) -> BalancerDrain:
    return BalancerDrain(settings(**more), shell, (said if said is not None else []).append)


def test_a_host_is_drained_everywhere_and_its_requests_awaited(clock: list[float]) -> None:
    shell = fleet(sessions=[3, 3, 2, 1, 0], running=["4", "2", "0", "1", "0"])
    drain(shell).drain("h1")
    assert shell.log == ["lb1 h1 drain", "lb2 h1 drain"]
    # Quiet once is not enough: the fourth answer of the engine was a request again.
    assert clock[0] >= 2.5


def test_draining_and_undraining_twice_is_as_good_as_once() -> None:
    shell = fleet()
    for _ in range(2):
        drain(shell).drain("h1")
    assert {state["h1"] for state in shell.states.values()} == {"drain"}
    for _ in range(2):
        drain(shell).undrain("h1")
    assert {state["h1"] for state in shell.states.values()} == {"ready"}
    assert shell.log[-2:] == ["lb1 h1 ready", "lb2 h1 ready"]


def test_at_the_limit_the_host_is_put_back_or_the_run_goes_on() -> None:
    shell = fleet(running=["2"])
    with pytest.raises(DrainError, match="still 2 in the engine after 20 s; the host is back in service"):
        drain(shell).drain("h1")
    assert {state["h1"] for state in shell.states.values()} == {"ready"}
    said: list[str] = []
    drain(shell, said, at_limit="go_on").drain("h1")
    assert {state["h1"] for state in shell.states.values()} == {"drain"}
    assert "going on" in said[-1]


def test_an_engine_that_does_not_answer_is_not_a_quiet_one() -> None:
    with pytest.raises(DrainError, match="no answer from the engine"):
        drain(fleet(running=["error: timed out"])).drain("h1")
    drain(fleet(running=["null"])).drain("h1")


def test_a_host_drained_before_stays_so_when_its_requests_do_not_end() -> None:
    shell = fleet(running=["2"])
    shell.states["lb1"]["h1"] = "drain"
    with pytest.raises(DrainError):
        drain(shell).drain("h1")
    assert (shell.states["lb1"]["h1"], shell.states["lb2"]["h1"]) == ("drain", "ready")


def test_the_last_server_in_service_is_not_drained_and_nothing_was_touched() -> None:
    shell = fleet()
    shell.states["lb2"]["h2"] = "ready down"
    with pytest.raises(DrainError, match=r"lb2: without vllm/h1 0 servers"):
        drain(shell).drain("h1")
    assert shell.log == []
    drain(shell, min_up=0).drain("h1")


def test_hosts_that_serve_nothing_yet_are_drained_though_no_other_is_in_service() -> None:
    """A first rollout: every host is blank."""
    shell = fleet(running=["null"])
    shell.states = {lb: {"h1": "ready down", "h2": "ready down"} for lb in ("lb1", "lb2")}
    drain(shell).drain("h1")
    assert shell.log == ["lb1 h1 drain", "lb2 h1 drain"]


def test_two_hosts_at_once_are_not_both_taken_for_the_one_that_may_go() -> None:
    shell = fleet()
    inner = shell.run

    def slow(host: str, command: str) -> str:
        # As over SSH: while one waits for its answer, the other one goes on.
        gevent.sleep(0)
        answer = inner(host, command)
        gevent.sleep(0)
        return answer

    shell.run = slow  # type: ignore[method-assign]
    tries = [gevent.spawn(drain(shell).drain, name) for name in ("h1", "h2")]
    gevent.joinall(tries)
    assert [type(item.exception) for item in tries] == [type(None), DrainError]
    assert {tuple(states.values()) for states in shell.states.values()} == {("drain", "ready")}


def test_a_balancer_that_does_not_do_it_is_found_out() -> None:
    shell = fleet(ignores=True)
    with pytest.raises(DrainError, match="still in service after it was drained"):
        drain(shell).drain("h1")


def test_maintenance_of_somebody_else_stays() -> None:
    shell, said = fleet(), list[str]()
    shell.states["lb1"]["h1"] = "maint"
    drain(shell, said).drain("h1")
    drain(shell, said).undrain("h1")
    assert (shell.states["lb1"]["h1"], shell.states["lb2"]["h1"]) == ("maint", "ready")
    assert [line.split(" ", 2)[2] for line in said] == ["is in maintenance already", "is in maintenance, and stays so"]


def test_a_host_whose_health_check_fails_stays_drained() -> None:
    shell = fleet()
    shell.states["lb1"]["h1"] = "drain down"
    with pytest.raises(DrainError, match=r"lb1: the health check doesn't see vllm/h1 up within 120 s: L7OK") as caught:
        drain(shell).undrain("h1")
    assert "stays drained" in caught.value.remedy
    assert shell.log == []


@pytest.mark.parametrize(
    ("server", "state", "message"),
    [("h3", "ready", "has no server 'h3'"), ("h1", "ready unchecked", "has no health check")],
)
def test_a_backend_that_cannot_be_worked_with_is_refused(server: str, state: str, message: str) -> None:
    shell = fleet()
    shell.states["lb1"]["h1"] = state
    place = settings().haproxy
    assert place is not None
    with pytest.raises(DrainError, match=message):
        Haproxy(shell, place, server).look("lb1")


class FakeNginx:
    """A shell to an nginx whose reload takes what its file says."""

    def __init__(self, text: str, answer_late: str | None = None) -> None:
        self.text, self.answer_late = text, answer_late

    def address(self, host: str) -> str:
        return host

    def run(self, host: str, command: str) -> str:
        request = json.loads(_last_word(command))
        if "after" in request:
            assert request["before"] == self.text
            self.text = self.answer_late or request["after"]
        return json.dumps({"text": self.text, "connections": 3, "unhealthy": ""})


def test_nginx_is_read_back_and_counts_the_others() -> None:
    place = DrainSettings.model_validate({"nginx": {"hosts": ["lb"], "file": "/etc/nginx/x.conf"}}).nginx
    assert place is not None
    shell = FakeNginx(UPSTREAM)
    balancer = Nginx(shell, place, "10.0.0.1:8000")
    free = Standing(serving=True, ours=False, held="", up=True, busy=3, others=2, check="healthy")
    assert balancer.look("lb") == free
    assert balancer.take_out("lb") == replace(free, serving=False, ours=True)
    assert balancer.put_back("lb") == free
    assert shell.text == UPSTREAM
    assert Nginx(shell, place, "10.0.0.10:8000").look("lb").held == "marked down by hand"
    with pytest.raises(DrainError, match=r"did you mean '10\.0\.0\.1:8000'"):
        Nginx(shell, place, "10.0.0.1:800").look("lb")
    with pytest.raises(DrainError, match="changed by somebody else"):
        Nginx(FakeNginx(UPSTREAM, answer_late="server 10.0.0.1:8000;"), place, "10.0.0.1:8000").take_out("lb")


# --- settings --------------------------------------------------------------------------------------------------------

_HAPROXY = {"hosts": ["lb"], "backend": "vllm"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "exactly one of haproxy and nginx"),
        ({"haproxy": _HAPROXY, "nginx": {"hosts": ["lb"], "file": "/x"}}, "exactly one of haproxy and nginx"),
        ({"haproxy": {**_HAPROXY, "server": "{host}"}}, "use {name} or {address}"),
        ({"haproxy": {**_HAPROXY, "server": "h1; show info"}}, "no blank"),
        ({"haproxy": {**_HAPROXY, "backend": "a b"}}, "letters, digits"),
        ({"haproxy": _HAPROXY, "at_limit": "hope"}, "'fail' or 'go_on'"),
        ({"haproxy": {**_HAPROXY, "hosts": []}}, "at least 1 item"),
    ],
)
def test_bad_settings_are_refused_before_any_host(data: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        host_settings("h1", [{"drain": data}])


def test_a_balancer_that_the_inventory_has_not_is_named() -> None:
    with_drain = host_settings("h1", [{"drain": {"haproxy": {"hosts": ["lb-1"], "backend": "vllm"}}}])
    known = {"h1": with_drain, "lb1": host_settings("lb1", [{}])}
    assert [str(problem) for problem in balancer_problems(known, known)] == [
        "inventory data of h1: drain: the inventory has no host 'lb-1' (did you mean 'lb1'?)"
    ]


# --- the engine's own count ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ('vllm:num_requests_running{engine="0",m="a}b"} 2.0\nvllm:num_requests_waiting{engine="0"} 1.0\n', "3"),
        ('vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_running{engine="1"} 1e0\n', "1"),
        ("vllm:num_requests_running 0.0\n", "0"),
        ('sglang:num_running_reqs{model_name="m"} 2.0\nsglang:num_queue_reqs{model_name="m"} 1.0\n', "3"),
        ("up 1\n", "error"),
        (None, "null"),
    ],
)
def test_requests_in_the_engine_are_counted_over_all_its_cores(page: str | None, printed: str) -> None:
    class Metrics(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Metrics) as server:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        if page is not None:
            threading.Thread(target=server.handle_request, daemon=True).start()
        else:
            server.server_close()
        argv = [sys.executable, str(PROGRAMS / "engine_requests.py"), json.dumps(url)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)
    assert (done.stdout.strip() or done.stderr.split(":")[0]) == printed
