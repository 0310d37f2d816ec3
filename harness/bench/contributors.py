"""The process that plays every contributor of a benchmark, one after the other.

``python -m harness.bench.contributors FOLDER`` reads one command a line on standard input and answers each with one
line. CPU time and memory are its own, so they are an agent's; making synthetic updates is not counted as CPU time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from harness.bench.results import Figures
from harness.bench.synthetic import Place, SyntheticAgent, numerator_of, update_of
from protocol.messages.control import Announcement, Study, WeightList
from protocol.rounds.evidence import PastRelease

KEPT_OPEN: Final = 101  # sites, the requester among them; connections of more are opened anew for each command


class Contribute(Figures):
    """Every listed site checks its policy, makes its update, encodes, shares, seals and sends it."""

    kind: Literal["contribute"] = "contribute"
    study: Study
    announcement: Announcement
    weights: WeightList


class Open(Figures):
    """Every listed site fetches and opens the released sum."""

    kind: Literal["open"] = "open"
    study: Study
    past: PastRelease


Command = Annotated[Contribute | Open, Field(discriminator="kind")]
COMMANDS: Final[TypeAdapter[Contribute | Open]] = TypeAdapter(Command)


class Played(Figures):
    """Cost of one command, summed over the sites. ``making_s``: wall time of the synthetic updates."""

    cpu_ns: int
    making_s: float
    sealed_bytes: int
    upload_s: float
    sent_bytes: int
    received_bytes: int


@dataclass
class _Taken:
    """A :class:`Played` that grows."""

    cpu_ns: int = 0
    making_s: float = 0.0
    sealed_bytes: int = 0
    upload_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0

    @contextmanager
    def by(self, agent: SyntheticAgent) -> Iterator[None]:
        """Count what an agent does."""
        before, begun = agent.traffic, time.process_time_ns()
        yield
        self.cpu_ns += time.process_time_ns() - begun
        self.sent_bytes += agent.traffic.socket_sent_bytes - before.socket_sent_bytes
        self.received_bytes += agent.traffic.socket_received_bytes - before.socket_received_bytes


class Contributors:
    """All contributors of a federation, in one process."""

    def __init__(self, folder: Path) -> None:
        self._place = Place(folder)
        self._roster = self._place.roster()
        self._open: dict[str, SyntheticAgent] = {}

    def play(self, command: Contribute | Open) -> Played:
        """Every listed site does its part, one after the other."""
        taken = _Taken()
        if isinstance(command, Contribute):
            for site in command.announcement.listed:
                self._contribute(command, site, taken)
        else:
            for site in command.past.announcement.listed:
                with self._agent(site) as agent:
                    with taken.by(agent):
                        agent.open_output(command.study, command.past)
                    agent.tidy(command.study)
        return Played(**asdict(taken))

    def _contribute(self, command: Contribute, site: str, taken: _Taken) -> None:
        study, place = command.study, self._roster.place(site)
        begun = time.perf_counter()
        update = update_of(place, study.parameters.dimension)
        taken.making_s += time.perf_counter() - begun
        numerator = numerator_of(place, study.parameters.weight_grid)
        with self._agent(site) as agent:
            with taken.by(agent):
                agent.check_policy(study, command.announcement, command.weights)
                seed = command.weights.tag_seed
                record = agent.prepare(study, command.announcement, numerator, update, seed)
                done = agent.send(study, record)
            agent.tidy(study)
        taken.sealed_bytes += done.sealed_bytes
        taken.upload_s += done.upload_s

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
