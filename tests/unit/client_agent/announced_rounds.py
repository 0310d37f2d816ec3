"""Rounds and welcomes as a contributor sees them: views and mail made by hand, no server."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from client_agent.contributor.decisions import Decision
from client_agent.site.letters import Attestation, WeightMail, Welcome
from protocol.messages.control import (
    Announcement,
    RoundOutcome,
    RoundState,
    RoundView,
    Signed,
    Study,
    StudyView,
    WeightList,
    countersign,
    sign,
)
from protocol.messages.letter import seal_checkpoint, seal_letter
from protocol.rounds.agreement import model_digest
from protocol.rounds.evidence import PastRelease
from protocol.sharing import Side
from tests.kit.present import present
from tests.unit.client_agent.benches import SITE, SITE_KEY, Bench
from tests.unit.client_agent.federation import (
    PARAMETERS,
    REQUESTER,
    ROSTER,
    announcement,
    evidence,
    keys,
    operator_keys,
    study,
    study_view,
    weight_list,
)

STUDY = study()
DIGEST = STUDY.digest()
MODEL = np.linspace(-1, 1, PARAMETERS.dimension, dtype=np.float32)


def weights(numerators: int | tuple[int, ...] = 32, round_number: int = 1) -> WeightList:
    return weight_list(round_number, numerators, study_digest=DIGEST)


def announced(of: WeightList, model: np.ndarray = MODEL, **changes: Any) -> Announcement:
    """The round of these weights over this model."""
    digest = model_digest(SITE_KEY, of.study_digest, of.round, model.tobytes())
    return announcement(of, **{"model_digest": digest, **changes})


def views(
    at_a: Announcement,
    at_b: Announcement | None = None,
    state: RoundState = RoundState.ANNOUNCED,
    attempt: int = 1,
    requester: str = REQUESTER,
) -> tuple[RoundView, RoundView]:
    made = []
    for side, message in ((Side.A, at_a), (Side.B, at_b or at_a)):
        operator = operator_keys(side)
        signed = countersign(sign(message, requester, keys(requester).signing), operator.name, operator.signing)
        made.append(RoundView(round=message.round, attempt=attempt, state=state, announcement=signed))
    return made[0], made[1]


def post(bench: Bench, listed: WeightList, skipped: tuple[Signed[RoundOutcome], ...] = (), **more: Any) -> None:
    """The requester's letter with this list waits for the site."""
    party = present(ROSTER.party(SITE))
    letter = WeightMail(weight_list=listed, skipped=skipped, **more)
    mail = seal_letter(letter, "weights", listed.study_digest, REQUESTER, party, listed.round)
    bench.servers[Side.A].mail[f"weights-{listed.round}/{SITE}"] = mail


def decided(bench: Bench, listed: WeightList, at: tuple[RoundView, RoundView]) -> Decision:
    post(bench, listed)
    return bench.contributor.decisions.decide(*at)


def released(
    round_number: int, version: int, sites: tuple[str, ...] = ("c2", "c3", "r0"), least: int = 2, **changes: Any
) -> PastRelease:
    """The evidence of a round on model ``version`` whose agreed set and sum are of ``sites``."""
    listed = weights(round_number=round_number)
    announcement = announced(listed, model_version=version, least_contributors=least, **changes)
    return evidence(announcement, listed, sites)


def attestation(welcome: Welcome, past: PastRelease, by: str, **changes: object) -> Signed[Attestation]:
    message = Attestation(
        study_digest=welcome.study_digest,
        site=by,
        model_version=welcome.model_version,
        round=past.announcement.round,
        checkpoint_digest=welcome.checkpoint_digest,
    )
    return sign(message.model_copy(update=changes), by, keys(by).signing)


def welcome_mail(
    bench: Bench,
    version: int,
    signer: str = REQUESTER,
    digest: str | None = None,
    previous: PastRelease | None = None,
    study: Study = STUDY,
    attested_by: tuple[str, ...] | None = None,
    attested: dict[str, object] | None = None,
) -> StudyView:
    """A welcome for which all contributors of ``previous`` vouch, unless ``attested`` says otherwise."""
    party = present(ROSTER.party(SITE))
    data, of = (MODEL * 2).tobytes(), study.digest()
    welcome = Welcome(
        study_digest=of,
        site=SITE,
        model_version=version,
        checkpoint_digest=digest or hashlib.sha256(data).hexdigest(),
        site_key="77" * 32,
        content_key="55" * 32,
        previous=previous,
    )
    if previous is not None:
        by = previous.release_set.message.sites if attested_by is None else attested_by
        said = tuple(attestation(welcome, previous, site, **(attested or {})) for site in by if site != REQUESTER)
        welcome = welcome.model_copy(update={"attestations": said})
    signed = sign(welcome, signer, keys(signer).signing)
    box = bench.servers[Side.A].mail
    box[f"welcome-{version}/{SITE}"] = seal_letter(signed, "welcome", of, REQUESTER, party, version)
    box[f"checkpoint-{version}/every-site"] = seal_checkpoint(data, bytes.fromhex("55" * 32))
    return study_view(of, mail=(f"welcome-{version}/{REQUESTER}", f"checkpoint-{version}/{REQUESTER}", "welcome-9/c2"))
