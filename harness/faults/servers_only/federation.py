"""Keys, settings and fresh databases of the servers that are simulated, and rosters that change under them."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from harness.engine.parties import Parties, SiteEntry, make_parties
from harness.faults.schedule import Party, RosterChanged
from harness.faults.simulated import MEMORY
from harness.federation.memory.learners import light_sites
from harness.federation.processes import FederationSpec, RunningFederation
from protocol.parameters import StudyParameters
from protocol.sharing import Side
from protocol.wire import messages
from protocol.wire.authentic import countersign, sign
from protocol.wire.chain.chain import RosterChain, signers
from protocol.wire.chain.file import dump_chain
from protocol.wire.chain.making import Wanted, claimed, proposed
from protocol.wire.keyfile import PartyKeys
from protocol.wire.messages import LayerShape, ModelSpec, RosterChange, RuleName, RuleSpec, Signed, Study, TrainingSpec
from servers.server import open_server
from servers.settings import ServerSettings, load_settings

SITES: Final = ("requester", "c1", "c2", "c3")
NEWCOMER: Final = "c4"
"""In no roster until a change adds it."""
NAME: Final = "servers"
DIMENSION: Final = 16
_DEADLINE_S: Final = 90.0
"""Shorter than many absences: rounds end in every way there is."""
_SAMPLES: Final = 100
_NEWCOMERS_SEED: Final = bytes(32)


class Federation:
    """What every run begins with, made once in a process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="moiety-servers-", dir=MEMORY if MEMORY.is_dir() else None)
        spec = FederationSpec("servers", SITES[0], light_sites(SITES), seed=5)
        made = RunningFederation(spec, Path(self._folder.name))
        self.parties: Parties = made.parties
        self.first = RosterChain(made.parties.roster)
        self.state = Path(self._folder.name) / "state"
        self.settings = {side: self._own_roster(made, side) for side in Side}
        self._newcomer = make_parties(NAME, NEWCOMER, [SiteEntry(NEWCOMER, _SAMPLES)], _NEWCOMERS_SEED).keys_of(
            NEWCOMER
        )
        self._claimed = claimed(self._newcomer, self.first.first_digest, samples=_SAMPLES)
        self._longer: dict[tuple[str, str, str], RosterChain] = {}
        self._fresh = {side: one.data_dir.with_name("fresh") for side, one in self.settings.items()}
        for side, one in self.settings.items():
            open_server(one).store.close()  # runs the migrations
            shutil.copytree(one.data_dir, self._fresh[side])

    def _own_roster(self, made: RunningFederation, side: Side) -> ServerSettings:
        """Each server's people put its file in place by themselves."""
        found = load_settings(made.config(made.parties.roster.message.operator(side).name))
        own = found.data_dir.with_name("roster.toml")
        own.write_text(dump_chain(self.first), encoding="utf-8")
        return found.model_copy(update={"roster": own})

    def clean(self) -> None:
        """As before anything ran."""
        shutil.rmtree(self.state, ignore_errors=True)
        for side, one in self.settings.items():
            shutil.rmtree(one.data_dir)
            shutil.copytree(self._fresh[side], one.data_dir)
            put_in_place(one.roster, self.first)

    def keys_of(self, name: Party) -> PartyKeys:
        return self._newcomer if name == NEWCOMER else self.parties.keys_of(name)

    def party_of(self, name: Party) -> messages.Party:
        """A site as the roster has it, or will."""
        return self._claimed.party if name == NEWCOMER else next(p for p in self.first.head.sites if p.name == name)

    def changed(self, chain: RosterChain, change: RosterChanged) -> RosterChain:
        """With one more link that everybody has signed; the same chain where it would change nothing."""
        adds = (self._claimed,) if change.adds and chain.head.party(NEWCOMER) is None else ()
        removes = tuple(name for name in change.removes if chain.head.party(name) is not None)
        if not adds and not removes:
            return chain
        place = (chain.head_digest, change.adds, " ".join(removes))
        if place not in self._longer:
            self._longer[place] = self._signed(chain, Wanted(given=adds, remove=removes))
        return self._longer[place]

    def _signed(self, chain: RosterChain, wanted: Wanted) -> RosterChain:
        first, *others = signers(chain.head)
        signed: Signed[RosterChange] = sign(
            proposed(chain, wanted, "sites come and go"), first, self.keys_of(first).signing
        )
        for name in others:
            signed = countersign(signed, name, self.keys_of(name).signing)
        return chain.extended_by(signed)

    def study(self, rounds: int, least: int) -> Study:
        """``least``: contributors to a sum."""
        return Study(
            name=NAME,
            roster_digest=self.first.first_digest,
            parameters=StudyParameters(
                dimension=DIMENSION, clip_norm=1.0, weight_grid=4, least_contributors=least, encoded_norm_log2=21
            ),
            rule=RuleSpec(name=RuleName.WEIGHT_EROSION),
            model=ModelSpec(kind="linear", layers=(LayerShape(name="w", shape=(DIMENSION,)),)),
            training=TrainingSpec(),
            rounds=rounds,
            round_deadline_s=_DEADLINE_S,
        )


@cache
def federation() -> Federation:
    """This process's."""
    return Federation()


class RosterFiles:
    """Which roster each server's people have put in place in one run; ``newest`` is the one that all have signed."""

    def __init__(self, made: Federation) -> None:
        self._made = made
        self.newest = made.first
        self.given = dict.fromkeys(Side, made.first)

    def change(self, change: RosterChanged) -> None:
        """Everybody has signed, and the first of both servers gets it."""
        self.newest = self._made.changed(self.newest, change)
        self.give(change.first)

    def give(self, side: Side) -> None:
        if self.given[side] is not self.newest:
            self.given[side] = self.newest
            put_in_place(self._made.settings[side].roster, self.newest)


def put_in_place(file: Path, chain: RosterChain) -> None:
    """Whole, whatever this machine's disk says that is simulated as full."""
    beside = file.with_name("roster.tmp")
    beside.write_text(dump_chain(chain), encoding="utf-8")
    beside.replace(file)
