"""Operators before there is a federation: their desks in this process, with the folders that their commands made."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final
from unittest import mock

from protocol.errors import MoietyError
from protocol.sharing import Side
from protocol.wire.enrolment.exchange import close_asked, open_answered
from protocol.wire.enrolment.fingerprint import fingerprint_of
from protocol.wire.enrolment.invitation import Invitation
from protocol.wire.enrolment.questions import Answered, Asked, Founding, Registration, StandingQuestion
from protocol.wire.keyfile import PartyKeys
from protocol.wire.keys import SEALING_KEY_BYTES, generate_sealing_key, generate_signing_key
from protocol.wire.messages import Party, Role, Signature
from servers.enrolment.desk import Desk
from servers.enrolment.folder import NewServer, make_folder
from servers.enrolment.pairing import pair
from servers.settings import load_settings

FEDERATION: Final = "clinics"
SITE: Final = "clinic-1"
OTHER: Final = "clinic-2"
REQUESTER: Final = "requester"
HOUR_S: Final = 3600.0
_SAMPLES: Final = 100


def new_keys(name: str) -> PartyKeys:
    """A site's, fresh."""
    return PartyKeys(
        name=name,
        role=Role.SITE,
        signing=generate_signing_key(secrets.token_bytes(32)),
        sealing=generate_sealing_key(secrets.token_bytes(SEALING_KEY_BYTES)),
    )


def public_card(keys: PartyKeys) -> Party:
    """What a site registers."""
    return keys.party(samples=_SAMPLES)


class Operator:
    """One server's operator; ``now_s`` is its clock."""

    def __init__(self, folder: Path, side: Side = Side.A) -> None:
        self.now_s = 1_800_000_000.0
        new = NewServer(
            side=side,
            federation=FEDERATION,
            operator=f"operator-{side.value}",
            url=f"https://{side.value}.example:8443",
            port=8443,
            own_ca=True,
        )
        with mock.patch("servers.enrolment.folder.require_free"):  # nobody listens here
            make_folder(new, folder / side.value)
        self._settings = load_settings(folder / side.value / "settings.toml")
        self.desk = Desk(self._settings, lambda: self.now_s)

    def knows(self, other: Operator) -> None:
        """Keep the other operator's card, whose fingerprint was read over the phone."""
        pair(self._settings, other.desk.card, fingerprint_of(other.desk.card))

    def invite(self, site: str = SITE, *, requester: bool = False, renews: bool = False) -> Invitation:
        return self.desk.register.invite(self.desk.card, site, HOUR_S, requester=requester, renews=renews)

    def admitted(self, keys: PartyKeys, *, requester: bool = False, renews: bool = False) -> None:
        """A site that registered and whose fingerprint was compared."""
        invitation = self.invite(keys.name, requester=requester, renews=renews)
        self.registers(invitation.secret, keys.name, keys, keys)
        self.desk.register.admit(keys.name, fingerprint_of(public_card(keys)))

    def registers(self, secret: str, name: str, of: PartyKeys, signs: PartyKeys, at_s: float | None = None) -> bool:
        """Register ``of``'s public card, asked by ``name``. -> whether it is registered afterwards"""
        party = public_card(of)
        question = self._question(name, Registration(secret=secret, party=party), at_s)
        try:
            self.desk.answer(close_asked(question, signs, self.desk.card))
        except MoietyError:
            return False
        return any(one.party == party for one in self.desk.register.registrants)

    def founds(self, founding: Founding, requester: PartyKeys) -> Answered:
        """What the operator answers the requester that proposes a first roster."""
        return self._asks(founding, requester)

    def is_told(self, claim: Signature, by: PartyKeys) -> Answered:
        """What the operator answers a site that gives its word for its keys."""
        return self._asks(StandingQuestion(claim=claim), by)

    def _asks(self, question: Founding | StandingQuestion, keys: PartyKeys) -> Answered:
        asked = self._question(keys.name, question, None)
        return open_answered(self.desk.answer(close_asked(asked, keys, self.desk.card)), keys, asked, self.desk.card)

    def _question(self, name: str, question: Registration | Founding | StandingQuestion, at_s: float | None) -> Asked:
        return Asked(
            federation=FEDERATION,
            to=self.desk.card.digest(),
            name=name,
            at_s=int(self.now_s if at_s is None else at_s),
            question=question,
        )
