"""Sites that no roster names yet: registrations without an invitation, in another's place, and a roster's other keys.

An operator's desk in this process, with the folder that its command made. What people read to each other by phone is
not tried here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from harness.adversaries.catalogue.attack import Attack, Found, Party, passes, taken_out
from protocol.errors import MoietyError
from protocol.sharing import Side
from protocol.wire.enrolment.exchange import close_asked
from protocol.wire.enrolment.invitation import Invitation
from protocol.wire.enrolment.questions import Asked, Registration
from protocol.wire.keyfile import PartyKeys
from protocol.wire.keys import SEALING_KEY_BYTES, generate_sealing_key, generate_signing_key
from protocol.wire.messages import Role
from servers.enrolment.desk import Desk
from servers.enrolment.folder import NewServer, make_folder
from servers.settings import load_settings

_FEDERATION: Final = "clinics"
_SITE: Final = "clinic-1"
_OTHER: Final = "clinic-2"
_HOUR_S: Final = 3600.0
_SAMPLES: Final = 100


def _keys(name: str) -> PartyKeys:
    return PartyKeys(
        name=name,
        role=Role.SITE,
        signing=generate_signing_key(secrets.token_bytes(32)),
        sealing=generate_sealing_key(secrets.token_bytes(SEALING_KEY_BYTES)),
    )


class Operator:
    """Server A's operator before there is a federation; ``now_s`` is its clock."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1_800_000_000.0
        new = NewServer(
            side=Side.A,
            federation=_FEDERATION,
            operator="operator-a",
            url="https://a.example:8443",
            port=8443,
            own_ca=True,
        )
        with taken_out({"servers.enrolment.folder.require_free": passes}):  # nobody listens here
            make_folder(new, folder / "a")
        self.desk = Desk(load_settings(folder / "a" / "settings.toml"), lambda: self.now_s)

    def invite(self, site: str = _SITE) -> Invitation:
        return self.desk.register.invite(self.desk.card, site, _HOUR_S, requester=False)

    def asked(self, secret: str, name: str, of: PartyKeys, signs: PartyKeys, at_s: float | None = None) -> bool:
        """Register ``of``'s public card, asked by ``name``. -> whether it is registered afterwards"""
        party = of.party(samples=_SAMPLES)
        question = Asked(
            federation=_FEDERATION,
            to=self.desk.card.digest(),
            name=name,
            at_s=int(self.now_s if at_s is None else at_s),
            question=Registration(secret=secret, party=party),
        )
        try:
            self.desk.answer(close_asked(question, signs, self.desk.card))
        except MoietyError:
            return False
        return any(one.party == party for one in self.desk.register.registrants)


Try = Callable[[Operator], bool]


class Registering(Attack):
    """Several ways to be registered; the figure is how many of them an operator's server took."""

    def __init__(
        self, name: str, party: Party, tries: str, defence: str, without: Mapping[str, object], ways: Mapping[str, Try]
    ) -> None:
        self.name, self.party, self.tries, self.defence, self.without = name, party, tries, defence, without
        self._ways = ways
        self.figure = f"of {len(ways)} such registrations that an operator's server took"

    def attempt(self, folder: Path) -> Found:
        honest = Operator(folder / "honest")
        if not _as_invited(honest, honest.invite()):
            return Found(True, 1, "an honest registration is refused")
        taken = []
        for place, (name, way) in enumerate(self._ways.items()):
            operator = Operator(folder / str(place))
            if way(operator):
                taken.append(name)
        return Found(bool(taken), len(taken), "; ".join(taken))


def _as_invited(operator: Operator, invitation: Invitation, name: str = _SITE) -> bool:
    keys = _keys(name)
    return operator.asked(invitation.secret, name, keys, keys)


def _guessed(operator: Operator) -> bool:
    operator.invite()
    return operator.asked(secrets.token_hex(32), _SITE, keys := _keys(_SITE), keys)


def _expired(operator: Operator) -> bool:
    invitation = operator.invite()
    operator.now_s += _HOUR_S + 1
    return _as_invited(operator, invitation)


def _stolen(operator: Operator) -> bool:
    """The site has used it before; the thief's public card would take its place."""
    invitation = operator.invite()
    _as_invited(operator, invitation)
    return _as_invited(operator, invitation)


def _withdrawn(operator: Operator) -> bool:
    invitation = operator.invite()
    operator.desk.register.withdraw(_SITE, ())
    return _as_invited(operator, invitation)


def _signed_by_another(operator: Operator) -> bool:
    return operator.asked(operator.invite().secret, _SITE, _keys(_SITE), _keys(_SITE))


def _named_otherwise(operator: Operator) -> bool:
    return operator.asked(operator.invite().secret, _SITE, _keys(_SITE), _keys(_OTHER))


def _old(operator: Operator) -> bool:
    """A registration that a proxy kept for an hour."""
    keys = _keys(_SITE)
    return operator.asked(operator.invite().secret, _SITE, keys, keys, at_s=operator.now_s - _HOUR_S)


def enrolments() -> tuple[Attack, ...]:
    """Every attack of this family."""
    usable = "servers.enrolment.register.Register._require_usable"
    return (
        Registering(
            "registration-by-a-thief",
            Party.STRANGER,
            "registers by a guessed, an expired or a withdrawn invitation, by another site's, or by a used one",
            "an invitation's secret serves one public card of the site that it names, for a time",
            {usable: passes, "servers.enrolment.register._require_newcomer": passes},
            {
                "guessed": _guessed,
                "expired": _expired,
                "withdrawn": _withdrawn,
                "of another site": lambda operator: _as_invited(operator, operator.invite(_OTHER)),
                "used before": _stolen,
            },
        ),
        Registering(
            "registration-in-anothers-place",
            Party.NETWORK,
            "registers a public card that did not sign, signs in another name, or sends an old registration",
            "a site's own signature under the question, its name in it, and the minute in which it was asked",
            {
                "servers.enrolment.desk.check_signature_of": passes,
                "servers.enrolment.desk.require_asked_by": lambda signed, *_: signed.message,
            },
            {"signed by other keys": _signed_by_another, "in another name": _named_otherwise, "old": _old},
        ),
    )
