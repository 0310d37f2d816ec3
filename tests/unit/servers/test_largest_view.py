"""The largest federation that a roster file can hold, its longest names, every letter: its views fit a control message.

A roster is a control message itself, so that its parties' keys bound how many sites there are.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from protocol.messages.control import (
    MAX_CONTROL_BYTES,
    AgreedSet,
    Announcement,
    ChallengeTranscript,
    CollectedContribution,
    Message,
    Party,
    ReleaseSet,
    Role,
    RoundOutcome,
    RoundState,
    Signature,
    Signed,
    StudyEnd,
    StudyEndState,
    StudyState,
    SumRelease,
)
from protocol.messages.letter import LetterKind, Topic
from protocol.messages.paths import EVERY_SITE
from protocol.messages.purpose import EndCause, OutcomeCause
from protocol.parameters import Needs
from protocol.rounds.states import RoundKey
from servers.notifications import Changes
from servers.store.records import MailRecord
from servers.store.study_records import RoundRecord, StudyRecord
from servers.studies import view

DIGEST, LATE = "f" * 64, 10**6
SHORTEST = Party(name="s", role=Role.SITE, signing_key=DIGEST, sealing_key="f" * 2432, samples=1)
MOST_SITES = MAX_CONTROL_BYTES // len(SHORTEST.canonical())
NAMES = [f"{number:063d}" for number in range(MOST_SITES)]
REQUESTER, CONTRIBUTORS = NAMES[0], NAMES[1:]
KEPT = {kind: 3 if kind.of_a_round else 1 for kind in LetterKind}
"""Letters of a kind between two sites: of at most two rounds, one more for what is under way, else the newest."""


def signed(message: Any) -> Signed[Any]:
    """By as many as sign anything, with the longest names."""
    signatures = tuple(Signature(signer=name, value="f" * 128) for name in NAMES[:3])
    kind: Any = Signed[type(message)]  # type: ignore[misc]
    return kind(message=message, signatures=signatures)


def full_round() -> RoundRecord:
    """Everything that a round can show at once, and more: an end, a sum's release and the requester's set."""
    of: dict[str, Any] = {"study_digest": DIGEST, "round": LATE, "attempt": 1000}
    contributions = tuple(
        CollectedContribution(site=name, announcement_digest=DIGEST, commitment_a=DIGEST, commitment_b=DIGEST)
        for name in NAMES
    )
    messages: dict[str, Message] = {
        "announcement": Announcement(
            study_digest=DIGEST,
            round=LATE,
            listed=tuple(CONTRIBUTORS),
            least_contributors=len(CONTRIBUTORS),
            opens=Needs.NOTHING,
            model_version=LATE,
            model_digest=DIGEST,
            weight_list_digest=DIGEST,
            closes_at_s=2**53,
            ckks_key_id="f" * 32,
        ),
        "agreed_set": AgreedSet(**of, announcement_digest=DIGEST, contributions=contributions),
        "transcript": ChallengeTranscript(
            agreed_set_digest=DIGEST, commitment_a=DIGEST, nonce_a=DIGEST, nonce_b=DIGEST, challenge=DIGEST
        ),
        "release_set": ReleaseSet(**of, agreed_set_digest=DIGEST, sites=tuple(NAMES), failed_check=tuple(NAMES)),
        "sum_release": SumRelease(**of, release_digest=DIGEST, sum_digest=DIGEST),
        "outcome": RoundOutcome(
            **of, outcome=RoundState.SKIPPED, cause=OutcomeCause.ANNOUNCED_AT_ONE_SERVER, found=LATE, needed=LATE
        ),
    }
    made: dict[str, Any] = {name: signed(message) for name, message in messages.items()}
    return RoundRecord(RoundKey(DIGEST, LATE, 1000), RoundState.SKIPPED, closes_at_s=0.0, **made)


def letters() -> list[MailRecord]:
    """What the limits let lie at a server at once; a checkpoint for each version that some site's welcome names."""
    found = []
    for kind, count in KEPT.items():
        for number in range(LATE - count + 1, LATE + 1):
            for place, site in enumerate(CONTRIBUTORS):
                sender, recipient = (REQUESTER, site) if kind.from_requester else (site, REQUESTER)
                if kind is LetterKind.CHECKPOINT:
                    topic, recipient = Topic(kind, LATE - place), EVERY_SITE
                else:
                    topic = Topic(kind, number)
                found.append(MailRecord(DIGEST, sender, recipient, str(topic), DIGEST, "file"))
    return found


@pytest.fixture(scope="module")
def server() -> tuple[Any, StudyRecord]:
    end = StudyEnd(
        study_digest=DIGEST, state=StudyEndState.LOCAL_ONLY, cause=EndCause.POLICY, site=NAMES[1], reason="\x00" * 500
    )
    named: Any = SimpleNamespace(message=SimpleNamespace(name="n" * 63))
    record = StudyRecord(DIGEST, named, StudyState.LOCAL_ONLY, "", 10**9, end=signed(end))
    one, mail = full_round(), letters()
    store = SimpleNamespace(
        current_round=lambda digest: one,
        ready_sites=lambda digest: tuple(NAMES),
        mail_for=lambda digest, recipients: mail,
    )
    roster = SimpleNamespace(sites=[SimpleNamespace(name=name) for name in NAMES])
    parts = {"store": store, "roster": roster, "chain": SimpleNamespace(number=1000), "pictures": {}}
    return SimpleNamespace(**parts, changes=Changes()), record


def test_the_roster_bounds_how_many_sites_there_are() -> None:
    assert 1_000 < MOST_SITES < 2_000
    assert MOST_SITES * len(SHORTEST.canonical()) <= MAX_CONTROL_BYTES


@pytest.mark.parametrize("caller", [REQUESTER, CONTRIBUTORS[0]], ids=["requester", "contributor"])
def test_the_largest_view_is_far_below_a_control_message(caller: str, server: tuple[Any, StudyRecord]) -> None:
    """At most half of one: a view needs no pages."""
    made = view(*server, caller)
    size = len(made.canonical())
    assert len(made.mail) >= MOST_SITES
    assert MAX_CONTROL_BYTES // 8 < size < MAX_CONTROL_BYTES // 2
    assert type(made).parse(made.canonical()) == made
