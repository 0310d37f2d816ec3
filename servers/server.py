"""The state that every part of one running server shares."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from host.audit_log import Action, AuditLog
from host.failpoints import Failpoints
from host.files import private_folder, take_back
from host.folder_lock import PROCESSES, Owner, one_at_a_time, require_owner
from host.randomness import Randomness, server_randomness
from protocol.channel.keys import SealingPublicKey
from protocol.ckks.ciphertext import CkksParameters
from protocol.errors import ConfigurationError, MoietyError, ShareAltered, Unavailable, UnknownParty
from protocol.messages.control import (
    Message,
    Party,
    Roster,
    RoundState,
    Signed,
    countersign,
    sign,
)
from protocol.messages.letter import LetterKind
from protocol.messages.paths import EVERY_SITE
from protocol.roster.chain import RosterChain, require_same_servers
from protocol.roster.keyfile import PartyKeys
from protocol.rounds.states import RoundKey
from protocol.sharing import Side
from servers.ckks.process import CkksProcess
from servers.event_loop import Changes
from servers.failpoints import Point, failpoints_of
from servers.identity.certificate import ServedCertificate
from servers.identity.history import OwnHistory
from servers.identity.roster import keep_chain, load_identity, require_continued
from servers.identity.sessions import Sessions
from servers.monitoring import Metrics, Recent
from servers.scale.ray import open_shards
from servers.scale.shares import ClusterShares
from servers.settings import Role, ServerSettings
from servers.store.cache import StudyPicture
from servers.store.files import ShareFiles
from servers.store.migrate import upgrade
from servers.store.processes import beside_of
from servers.store.records import RoundRecord
from servers.store.shares import Shares
from servers.store.sql import SqlStore
from servers.store.upload_parts import UploadParts

M = TypeVar("M", bound=Message)
_ANOTHER_FOLDER: Final = (
    "give this server a folder and a database of its own; after new keys without a change of the roster, too"
)


@dataclass
class Server:
    """One server's identity, stores and clock; made by ``open_server``."""

    settings: ServerSettings
    chain: RosterChain
    keys: PartyKeys = field(repr=False)
    store: SqlStore
    files: ShareFiles
    shares: Shares
    """Here, or in a cluster's storage with its workers."""
    randomness: Randomness
    boot: int
    changes: Changes
    metrics: Metrics = field(default_factory=Metrics)
    clock: Callable[[], float] = time.time
    failpoints: Failpoints = field(default_factory=Failpoints)
    ckks: CkksProcess = field(default_factory=lambda: CkksProcess(CkksParameters()))
    certificate: ServedCertificate | None = None
    """None where nothing is served under TLS."""
    drains: bool = False
    """It takes no new study or round, to be upgraded."""
    drives: bool = True
    """This process speaks with the other server and takes rounds further; of several, one does."""

    def __post_init__(self) -> None:
        self.recent = Recent(self.clock)
        self.sessions = Sessions(self.clock)
        self.audit = AuditLog(self.settings.data_dir, self.keys.name, self.clock)
        self.uploads = UploadParts(self.own_folder / "uploads", self._upload_midway)
        self.history = OwnHistory(self.store, self.name, max(self.boot, 1), drives=self.drives)
        self.pictures: dict[str, StudyPicture] = {}
        self.outputs = itertools.count()
        self.altered: dict[RoundKey, ShareAltered] = {}
        """Attempts of which this side found a share altered while the other side's sum was coming."""
        self.follow(self.chain)

    def _upload_midway(self) -> None:
        for point in (Point.UPLOAD_MIDWAY, Point.DISK_FULL):
            self.failpoints.reach(point)

    def follow(self, chain: RosterChain) -> None:
        """Go by this chain, which was checked: requests are accepted of the parties of its head."""
        self.chain = chain
        self.verify_keys = {p.key_id: p.verify_key for p in self.roster.parties}
        self.parties = {p.key_id: p for p in self.roster.parties}
        self._named = {p.name: p for p in self.roster.parties}
        self._key_ids = {p.name: key_id for key_id, p in self.parties.items()}
        self._sites = {p.name: p for p in self.roster.sites}
        self.peer = self.roster.operator(self.side.other)
        former = {p.key_id: p.name for roster in chain.rosters for p in roster.parties}
        self.former_keys = {key: name for key, name in former.items() if key not in self.parties}
        """The names by keys that a change removed or replaced."""
        self.former_keys_seen: set[str] = set()
        """The former keys that the log has named since the change."""
        self._sealing_keys: dict[str, SealingPublicKey] = {}

    @property
    def own_folder(self) -> Path:
        """Give each of several processes a folder of its own for uploads that come to it in parts."""
        data_dir, beside = self.settings.data_dir, self.store.beside
        return data_dir if beside is None else data_dir / PROCESSES / beside.name

    @property
    def uploads_of_all(self) -> list[Path]:
        """Return the upload folders of this server's processes, running or not; empty where it is one process."""
        return [] if self.store.beside is None else [*(self.settings.data_dir / PROCESSES).glob("*/uploads")]

    def drive(self, boot: int) -> None:
        """Drive from here on, as this start of the server. Raises: Unavailable, and then it does not"""
        self.boot, self.history = boot, OwnHistory(self.store, self.name, boot)
        self.drives = True

    def require_taking(self) -> None:
        """Before a study or a round that is new here. Raises: Unavailable"""
        if self.drains:
            raise Unavailable("this server is about to be upgraded and takes no new study or round: ask again later")

    def note_round(self, record: RoundRecord, ended: RoundState) -> None:
        """An entry in the audit log before the round ends so; after a kill it may stand there twice, never not."""
        key, study = record.key, self.store.study(record.key.study)
        contributed = ", ".join(self.store.contributors_of(key)) or "nobody"
        summed = "" if record.release_set is None else f"; summed: {', '.join(record.release_set.message.sites)}"
        self.audit.add(
            Action.ROUND,
            f"attempt {key.attempt} {ended.value}; contributed: {contributed}{summed}",
            study="" if study is None else study.name,
            study_digest=key.study,
            round_number=key.round,
        )

    @property
    def roster(self) -> Roster:
        """The head of the chain: who may ask anything now."""
        return self.chain.head

    @property
    def most_sites(self) -> int:
        """As many as any round under way can have, whichever link it runs under."""
        return max(len(roster.sites) for roster in self.chain.rosters)

    @property
    def side(self) -> Side:
        return self.settings.side

    @property
    def name(self) -> str:
        return self.keys.name

    def is_site(self, party: Party) -> bool:
        """Return whether this very party, with these keys, is a site of the roster now."""
        found = self._sites.get(party.name)
        return found is party or found == party

    def is_peer(self, party: Party) -> bool:
        return party is self.peer or party == self.peer

    def sealing_key_of(self, party: str) -> SealingPublicKey:
        known = self._sealing_keys.get(party)
        if known is None:
            known = self._sealing_keys[party] = self._party(party).sealing
        return known

    def key_id_of(self, party: str) -> str:
        """Return the name of a party's key in headers and signatures."""
        self._party(party)
        return self._key_ids[party]

    def is_known(self, party: Party) -> bool:
        """Return whether this very party, with these keys, is in the roster now."""
        found = self._named.get(party.name)
        return found is party or found == party

    def _party(self, name: str) -> Party:
        found = self._named.get(name)
        if found is None:
            raise UnknownParty(f"{name!r} is not in the roster")
        return found

    def sign(self, message: M) -> Signed[M]:
        return sign(message, self.name, self.keys.signing)

    def countersign(self, signed: Signed[M]) -> Signed[M]:
        return countersign(signed, self.name, self.keys.signing)


def open_server(settings: ServerSettings, clock: Callable[[], float] = time.time) -> Server:
    """Read roster and keys, bring the database up to date, delete what a crash left behind.

    Raises: ConfigurationError
    """
    private_folder(settings.data_dir)
    with nullcontext() if settings.role is Role.ALL else one_at_a_time(settings.data_dir):
        return _opened(settings, clock)


def _opened(settings: ServerSettings, clock: Callable[[], float]) -> Server:
    chain, keys, accepted = load_identity(settings)
    owners = _owners(settings, chain)
    require_owner(settings.data_dir, "data_dir", owners[0], _ANOTHER_FOLDER, former=owners[1:])
    require_continued(chain, accepted)
    upgrade(settings.database)
    take_back(sorted(settings.data_dir.glob("server.db*")))
    changes, beside = Changes(), beside_of(settings)
    of_letters = partial(letter_came, changes)
    store = SqlStore(settings.database, changes.notify, clock, changes.notify_held, of_letters, beside)
    _require_own(store, owners)
    _require_undisturbed(store, chain, accepted)
    keep_chain(settings, chain)
    failpoints = failpoints_of(settings.failpoint)
    shards = open_shards(settings, f"server {settings.side.value} {keys.name} of {chain.head.federation}")
    storage = None if shards is None else shards.storage
    files = ShareFiles(settings.data_dir / "shares", settings.limits.disk_reserve_bytes, failpoints, storage)
    shares = Shares(store, files) if shards is None else ClusterShares(store, files, shards)
    metrics = Metrics()
    metrics.watch_disk(files.free_bytes, settings.limits.disk_reserve_bytes)
    boot = 0
    if beside is None:
        boot = store.next_boot()  # from here on no other process changes what is swept
        shares.sweep()
    server = Server(
        settings=settings,
        chain=chain,
        keys=keys,
        store=store,
        files=files,
        shares=shares,
        randomness=server_randomness(settings.seed, keys.name),
        boot=boot,
        changes=changes,
        metrics=metrics,
        clock=clock,
        failpoints=failpoints,
        drives=beside is None,
    )
    start = f"start {boot}" if beside is None else f"process {beside.name}"
    server.audit.add(Action.STARTED, f"side {settings.side.value}, {start}, under roster {chain.head_digest}")
    return server


def letter_came(changes: Changes, study: str, recipient: str, topic: str) -> None:
    """A round goes on once everybody has contributed or declined; what other letters say is their recipient's."""
    if recipient == EVERY_SITE or topic.startswith(LetterKind.DECLINE.value):
        changes.notify(study)
    else:
        changes.notify_letter(study, recipient)


def _require_undisturbed(store: SqlStore, chain: RosterChain, accepted: RosterChain | None) -> None:
    """Studies under way keep both operators and the requester as they are. Raises: ConfigurationError"""
    if any(not study.state.ended for study in store.studies()):
        try:
            require_same_servers(chain, accepted or chain.up_to(0))
        except MoietyError as wrong:
            store.close()
            raise ConfigurationError(f"key 'roster': {wrong.detail}") from None


def _owners(settings: ServerSettings, chain: RosterChain) -> tuple[Owner, ...]:
    """This server with each of the keys that it has had in the chain, the first ones first."""
    mine = [roster.operator(settings.side) for roster in chain.rosters]
    ids = dict.fromkeys(party.key_id for party in mine)
    kind = f"server {settings.side.value}"
    return tuple(Owner(kind, mine[0].name, key, chain.head.federation) for key in ids)


def _require_own(store: SqlStore, owners: tuple[Owner, ...]) -> None:
    known = store.owned_by(owners[0])
    if known not in owners:
        store.close()
        raise ConfigurationError(
            f"key 'data_dir' or 'database_url': the database belongs to {known}; this is {owners[0]}: {_ANOTHER_FOLDER}"
        )
