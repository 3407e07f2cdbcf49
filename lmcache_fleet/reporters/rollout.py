"""A rollout, told to people while it goes on: a live table on a terminal, plain lines when piped."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lmcache_fleet.rollout.journey import Journey, Progress, Stage

_STYLES = {
    Stage.WAITING: "dim",
    Stage.PREPARING: "cyan",
    Stage.PREPARED: "cyan",
    Stage.DRAINING: "yellow",
    Stage.SWITCHING: "yellow",
    Stage.UNDRAINING: "yellow",
    Stage.DONE: "green",
    Stage.BACK: "red",
    Stage.FAILED: "red",
}
_BAR = 40
_ROWS = 24


class PlainWatcher:
    """One line for each change of state, with the time.

    Args:
        out: where to.
    """

    def __init__(self, out: Console) -> None:
        self.out = out
        self._last: dict[str, Stage] = {}

    def moved(self, journey: Journey) -> None:
        """A host's way went on."""
        before, self._last[journey.host] = self._last.get(journey.host), journey.stage
        if before is journey.stage:
            self._line(f"{journey.host} gets requests again")
            return
        about = f" {journey.release}" if journey.stage in {Stage.DONE, Stage.BACK} and journey.release else ""
        cause = f": {journey.cause}" if journey.cause else ""
        self._line(f"{journey.host} {journey.stage.value}{about}{cause}")

    def doing(self, host: str, step: str, text: str) -> None:
        """A host is at a step; only long work has a text, and only that is worth a line."""
        if text:
            self._line(f"{host} {step}: {text}")

    def said(self, text: str) -> None:
        """Something about the whole."""
        self._line(text)

    def _line(self, text: str) -> None:
        self.out.print(Text(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}"))


class LiveWatcher:
    """A table that stays in its place: a bar a wave, a row for each host that is on its way or failed.

    Args:
        out: where to; a terminal.
        progress: where the hosts are.
        waves: the hosts, wave by wave.
        clock: gives the time in seconds.
    """

    def __init__(
        self, out: Console, progress: Progress, waves: Sequence[Sequence[str]], clock: Any = time.monotonic
    ) -> None:
        self.journeys: dict[str, Journey] = dict(progress.journeys)
        self.waves = waves
        self.clock = clock
        self.began = clock()
        self.since: dict[str, float] = {}
        self.steps: dict[str, str] = {}
        self.text = ""
        # A function, so that each redrawing shows the times as they are then.
        self.live = Live(console=out, get_renderable=self.render, refresh_per_second=4, transient=False)

    def __enter__(self) -> LiveWatcher:
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def moved(self, journey: Journey) -> None:
        """A host's way went on."""
        self.journeys[journey.host] = journey
        self.since[journey.host] = self.clock()
        self.steps.pop(journey.host, None)

    def doing(self, host: str, step: str, text: str) -> None:
        """A host is at a step."""
        self.steps[host] = f"{step}: {text}" if text else step

    def said(self, text: str) -> None:
        """Something about the whole."""
        self.text = text

    def render(self) -> Group:
        """What is on the screen now."""
        head = Text(f"{_duration(self.clock() - self.began)}  ", style="bold") + Text(self.text)
        bars = [wave_bar(number, wave, self.journeys) for number, wave in enumerate(self.waves, start=1)]
        return Group(head, *bars, self._table())

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
        table.add_column("host", no_wrap=True)
        table.add_column("stage", no_wrap=True)
        table.add_column("for", justify="right", no_wrap=True)
        table.add_column("at", overflow="fold")
        shown = [item for item in self.journeys.values() if item.stage not in {Stage.WAITING, Stage.DONE}]
        for item in shown[:_ROWS]:
            # How long a host that is through with it failed is nobody's question.
            time_at = "" if item.stage.over else _duration(self.clock() - self.since.get(item.host, self.began))
            about = item.cause or self.steps.get(item.host, "")
            style = _STYLES[item.stage]
            table.add_row(Text(item.host), Text(item.stage.value, style=style), time_at, Text(about))
        if len(shown) > _ROWS:
            table.add_row("", Text(f"and {len(shown) - _ROWS} more", style="dim"), "", "")
        return table


def wave_bar(number: int, wave: Sequence[str], journeys: Mapping[str, Journey]) -> Text:
    """A wave as a bar: what is done, on its way, failed, and waiting.

    Args:
        number: the wave's.
        wave: its hosts.
        journeys: where they are.
    """
    stages = sorted((journeys[name].stage for name in wave), key=list(_STYLES)[::-1].index)
    stages.sort(key=lambda stage: (stage is not Stage.DONE, stage is Stage.WAITING))
    bar = Text(f"wave {number:<2} ")
    width = min(_BAR, max(len(wave), 10))
    for cell in range(width):
        stage = stages[cell * len(stages) // width]
        bar.append("░" if stage is Stage.WAITING else "█", style=_STYLES[stage])
    done = sum(stage is Stage.DONE for stage in stages)
    failed = sum(stage in {Stage.BACK, Stage.FAILED} for stage in stages)
    bar.append(f" {done}/{len(wave)}")
    if failed:
        bar.append(f"  {failed} failed", style="red")
    return bar


def show_standing(out: Console, progress: Progress, outcome: str, resumable: bool = True) -> None:
    """Where the fleet stands at the end.

    Args:
        out: where to.
        progress: where its hosts are.
        outcome: how it ended.
        resumable: whether it can be taken up again; a rollback is just begun anew.
    """
    for journey in progress.failures:
        served = f"; it serves {journey.release}" if journey.release and journey.stage is Stage.BACK else ""
        left = "; no requests are sent to it" if journey.drained else ""
        word = "went back" if journey.stage is Stage.BACK else "failed"
        out.print(Text(f"{journey.host}: {word} ({journey.cause}){served}{left}", style="red"))
        if journey.remedy:
            out.print(Text(f"  remedy: {journey.remedy}", style="yellow"))
    releases: dict[str, list[str]] = {}
    for name in progress.at(Stage.DONE):
        releases.setdefault(progress.journeys[name].release or "as wanted", []).append(name)
    for release, names in releases.items():
        out.print(Text(f"{release}: {_names(names)}", style="green"))
    between = [name for name in progress.journeys if progress.journeys[name].stage.out]
    if between:
        out.print(Text(f"left on the way, maybe out of service: {_names(between)}", style="red"))
    waiting = progress.at(Stage.WAITING, Stage.PREPARING, Stage.PREPARED)
    if waiting:
        out.print(f"not changed: {_names(waiting)}")
    done = len(progress.at(Stage.DONE))
    stopped = "STOPPED: more hosts failed than may" if progress.over_budget else "STOPPED"
    words = {"done": "done", "stopped": stopped, "interrupted": "INTERRUPTED"}
    total, failed = len(progress.journeys), len(progress.failures)
    text = f"==> {words.get(outcome, outcome)}: {done} of {total} hosts as wanted, {failed} failed"
    if resumable and (outcome != "done" or failed):
        text += "; --resume takes it up again"
    out.print(Text(text, style="bold"))


def _names(names: Sequence[str]) -> str:
    return " ".join(names) if len(names) <= 20 else f"{' '.join(names[:20])} and {len(names) - 20} more"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
