"""The process that plays every contributor of a benchmark, one after the other.

``python -m harness.bench.contributors FOLDER`` reads one command a line on standard input and answers each with one
line. CPU time and memory are its own, so they are an agent's; making synthetic updates is not counted as CPU time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from harness.bench.synthetic import Place, SyntheticAgent, numerator_of, update_of
from protocol.evidence import PastRelease
from protocol.wire.messages import Announcement, Study, WeightList

KEPT_OPEN: Final = 101  # sites, the requester among them; connections of more are opened anew for each command


class Contribute(BaseModel):
    """Every listed site checks its policy, makes its update, encodes, shares, seals and sends it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["contribute"] = "contribute"
    study: Study
    announcement: Announcement
    weights: WeightList


class Open(BaseModel):
    """Every listed site fetches and opens the released sum."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["open"] = "open"
    study: Study
    past: PastRelease


Command = Annotated[Contribute | Open, Field(discriminator="kind")]
COMMANDS: Final[TypeAdapter[Contribute | Open]] = TypeAdapter(Command)


class Played(BaseModel):
    """What one command took, summed over the sites. ``making_s``: wall time of the synthetic updates."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    cpu_ns: int
    making_s: float
    sealed_bytes: int
    upload_s: float
    sent_bytes: int
    received_bytes: int


class _Stopwatch:
    def __init__(self) -> None:
        self.cpu_ns = 0
        self.making_s = 0.0

    @contextmanager
    def agent(self) -> Iterator[None]:
        begun = time.process_time_ns()
        yield
        self.cpu_ns += time.process_time_ns() - begun

    @contextmanager
    def making(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.making_s += time.perf_counter() - begun


class Contributors:
    """All contributors of a federation, in one process."""

    def __init__(self, folder: Path) -> None:
        self._place = Place(folder)
        self._roster = self._place.roster()
        self._open: dict[str, SyntheticAgent] = {}

    def play(self, command: Contribute | Open) -> Played:
        """Every listed site does its part, one after the other."""
        if isinstance(command, Contribute):
            return self._contribute(command)
        return self._take(command)

    def _contribute(self, command: Contribute) -> Played:
        watch, sealed, upload_s, sent, received = _Stopwatch(), 0, 0.0, 0, 0
        for site in command.announcement.listed:
            place = self._roster.place(site)
            with watch.making():
                update = update_of(place, command.study.parameters.dimension)
            numerator = numerator_of(place, command.study.parameters.weight_grid)
            with self._agent(site) as agent:
                before = agent.traffic
                with watch.agent():
                    agent.check_policy(command.study, command.announcement, command.weights)
                    seed = command.weights.tag_seed
                    record = agent.prepare(command.study, command.announcement, numerator, update, seed)
                    done = agent.send(command.study, record)
                after = agent.traffic
                agent.tidy(command.study)
            sealed, upload_s = sealed + done.sealed_bytes, upload_s + done.upload_s
            sent += after.socket_sent_bytes - before.socket_sent_bytes
            received += after.socket_received_bytes - before.socket_received_bytes
        return Played(
            cpu_ns=watch.cpu_ns,
            making_s=watch.making_s,
            sealed_bytes=sealed,
            upload_s=upload_s,
            sent_bytes=sent,
            received_bytes=received,
        )

    def _take(self, command: Open) -> Played:
        watch, sent, received = _Stopwatch(), 0, 0
        for site in command.past.announcement.listed:
            with self._agent(site) as agent:
                before = agent.traffic
                with watch.agent():
                    agent.open_output(command.study, command.past)
                after = agent.traffic
                agent.tidy(command.study)
            sent += after.socket_sent_bytes - before.socket_sent_bytes
            received += after.socket_received_bytes - before.socket_received_bytes
        return Played(
            cpu_ns=watch.cpu_ns,
            making_s=0.0,
            sealed_bytes=0,
            upload_s=0.0,
            sent_bytes=sent,
            received_bytes=received,
        )

    @contextmanager
    def _agent(self, site: str) -> Iterator[SyntheticAgent]:
        kept_open = len(self._roster.sites) <= KEPT_OPEN
        agent = self._open.get(site) or SyntheticAgent(self._place, self._roster, site, kept_open=kept_open)
        if kept_open:
            self._open[site] = agent
            yield agent
            return
        try:
            yield agent
        finally:
            agent.close()

    def close(self) -> None:
        for agent in self._open.values():
            agent.close()


def main(folder: Path) -> None:
    """Answer commands until standard input ends."""
    contributors = Contributors(folder)
    try:
        for line in sys.stdin:
            played = contributors.play(COMMANDS.validate_json(line))
            sys.stdout.write(played.model_dump_json() + "\n")
            sys.stdout.flush()
    finally:
        contributors.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
