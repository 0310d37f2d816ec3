"""The kinds of letters: topics, routes and caps."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from client_agent.requester.study import _SKIPS_KEPT, RELEASES_KEPT
from client_agent.site.letters import Attestation, StudyRefusal, WeightMail
from protocol.channel.encoding import LENGTH_BYTES, pack_message, pad, shortened
from protocol.channel.sealing import seal_small, sealed_length, sealed_small_length
from protocol.errors import Clause, ErrorCode, MalformedMessage, NotListed, UnknownParty
from protocol.messages.control import (
    MAX_CONTROL_BYTES,
    AgreedSet,
    CollectedContribution,
    Decline,
    ListedWeight,
    Message,
    ReleaseSet,
    RoundOutcome,
    RuleName,
    RuleSpec,
    Signature,
    Signed,
    WeightList,
    sign,
)
from protocol.messages.letter import (
    ATTESTED_BYTES,
    ATTESTED_SEALED_BYTES,
    NOTICE_BYTES,
    NOTICE_REASON_BYTES,
    NOTICE_SEALED_BYTES,
    LetterKind,
    Topic,
    letter_info,
    most_bytes,
    open_letter,
    padded_bytes,
    parse_topic,
    require_length,
    require_route,
)
from protocol.messages.paths import EVERY_SITE
from tests.kit.present import present
from tests.unit.client_agent.announced_rounds import weights
from tests.unit.client_agent.federation import CONTRIBUTORS, DIGEST, REQUESTER, ROSTER, keys, release, study
from tests.unit.client_agent.test_requester import skip_of

SITE = CONTRIBUTORS[0]
TWO = (Signature(signer="s" * 63, value="f" * 128),) * 2
CODE, CLAUSE = max(ErrorCode, key=len), max(Clause, key=len)


@pytest.mark.parametrize("text", ["welcome-0", "checkpoint-12", "weights-1", "decline-1000000", "refusal"])
def test_a_topic_is_read_and_written(text: str) -> None:
    assert str(parse_topic(text)) == text


def test_a_topic_holds_its_number() -> None:
    assert parse_topic("weights-12") == Topic(LetterKind.WEIGHTS, 12)
    assert parse_topic("refusal") == Topic(LetterKind.REFUSAL)
    assert [kind for kind in LetterKind if kind.of_a_round] == [LetterKind.WEIGHTS, LetterKind.DECLINE]


@pytest.mark.parametrize(
    "text",
    [
        *("", "weights", "weights-", "weights-01", "weights-1-1", "weights-١", "refusal-0", "refusal-", "x-1"),
        *("decline-12345678", "decline--1", "every-site", " refusal", "refusal\n", "y" * 1000),
    ],
)
def test_a_topic_has_one_spelling(text: str) -> None:
    with pytest.raises(MalformedMessage, match=r"is no topic .* welcome-NUMBER.* refusal, hindered$") as refused:
        parse_topic(text)
    assert len(refused.value.detail) < 250


@pytest.mark.parametrize(
    ("kind", "sender", "recipient"),
    [
        (LetterKind.WELCOME, REQUESTER, SITE),
        (LetterKind.WEIGHTS, REQUESTER, SITE),
        (LetterKind.CHECKPOINT, REQUESTER, EVERY_SITE),
        (LetterKind.DECLINE, SITE, REQUESTER),
        (LetterKind.REFUSAL, SITE, REQUESTER),
        (LetterKind.HINDERED, SITE, REQUESTER),
    ],
)
def test_each_kind_has_one_route(kind: LetterKind, sender: str, recipient: str) -> None:
    require_route(kind, sender, recipient, ROSTER)
    with pytest.raises(NotListed):
        require_route(kind, SITE if sender == REQUESTER else REQUESTER, recipient, ROSTER)
    with pytest.raises((NotListed, UnknownParty)):
        require_route(kind, sender, "stranger", ROSTER)
    with pytest.raises((NotListed, UnknownParty)):
        require_route(kind, sender, SITE if recipient == EVERY_SITE else EVERY_SITE, ROSTER)


def test_the_requester_writes_no_letters_to_itself() -> None:
    with pytest.raises(UnknownParty):
        require_route(LetterKind.WEIGHTS, REQUESTER, REQUESTER, ROSTER)


def test_caps_follow_from_the_study_and_the_roster() -> None:
    adaptive = study().model_copy(update={"rule": RuleSpec(name=RuleName.FEDADAM)})
    one, three = (sealed_length(4 * vectors * study().model_dimension) for vectors in (1, 3))
    assert most_bytes(LetterKind.CHECKPOINT, study(), 4) == one
    assert most_bytes(LetterKind.CHECKPOINT, adaptive, 4) == three
    assert most_bytes(LetterKind.REFUSAL, study(), 4) == most_bytes(LetterKind.DECLINE, study(), 999)
    assert most_bytes(LetterKind.WELCOME, study(), 4) < most_bytes(LetterKind.WELCOME, study(), 5)
    counting = study().model_copy(update={"rule": RuleSpec(name=RuleName.WFEDAVG)})
    more = most_bytes(LetterKind.WEIGHTS, counting, 4) - most_bytes(LetterKind.WEIGHTS, study(), 4)
    assert more == 32 * study().model.classes
    assert most_bytes(LetterKind.WEIGHTS, study(), 10**6) == sealed_small_length(MAX_CONTROL_BYTES)


def test_notices_and_checkpoints_have_exactly_one_length() -> None:
    for kind in (LetterKind.DECLINE, LetterKind.REFUSAL, LetterKind.HINDERED, LetterKind.CHECKPOINT):
        require_length(kind, 100, 100)
        with pytest.raises(MalformedMessage, match="has 100 bytes, this one has 99"):
            require_length(kind, 99, 100)
    require_length(LetterKind.WEIGHTS, 99, 100)


@pytest.mark.parametrize("reason", ["x", "\x00", "𝔽"])
def test_the_longest_reason_of_the_longest_names_fits_a_notice(reason: str) -> None:
    name, told = "n" * 63, shortened(reason * 5000, NOTICE_REASON_BYTES)
    decline = Decline(study_digest="f" * 64, round=10**6, site=name, code=CODE, clause=CLAUSE, reason=told)
    refusal = StudyRefusal(study_digest="f" * 64, site=name, code=CODE, clause=CLAUSE, reason=told)
    for message in (decline, refusal):
        signed = sign(message, name, keys(SITE).signing)
        assert LENGTH_BYTES + len(pack_message(signed)) <= NOTICE_BYTES


def test_every_attestation_fits_its_length() -> None:
    name, far = "n" * 63, 10**6
    said = Attestation(study_digest="f" * 64, site=name, model_version=far, round=far, checkpoint_digest="e" * 64)
    assert LENGTH_BYTES + len(pack_message(sign(said, name, keys(SITE).signing))) <= ATTESTED_BYTES
    assert most_bytes(LetterKind.ATTESTED, study(), 4) == ATTESTED_SEALED_BYTES < NOTICE_SEALED_BYTES


@pytest.mark.parametrize("sites", [3, 60])
def test_the_longest_evidence_there_can_be_fits_a_weight_list(sites: int) -> None:
    """Long names, every release that is kept, every skip: the servers must take what an honest requester sends."""
    names = tuple(f"{number:063}" for number in range(sites))
    listed = weights((32, 32, 32)).model_copy(
        update={"weights": tuple(ListedWeight(site=name, numerator=32) for name in names)}
    )
    held = CollectedContribution(site=names[0], announcement_digest=DIGEST, commitment_a=DIGEST, commitment_b=DIGEST)
    one = release(1)
    agreed = one.agreed_set.message.model_copy(update={"contributions": (held,) * (sites + 1)})
    released = one.release_set.message.model_copy(update={"sites": names, "failed_check": names})
    past = one.model_copy(
        update={
            "announcement": one.announcement.model_copy(update={"listed": names}),
            "weight_list": listed,
            "agreed_set": Signed[AgreedSet](
                message=agreed.model_copy(update={"contributions": (held,) * (sites + 1)}), signatures=TWO
            ),
            "release_set": Signed[ReleaseSet](
                message=released.model_copy(update={"sites": names, "failed_check": names}), signatures=TWO
            ),
        }
    )
    skip = Signed[RoundOutcome](message=skip_of(1).message, signatures=TWO)
    mail = WeightMail(weight_list=listed, previous=past, missed=(past,) * RELEASES_KEPT, skipped=(skip,) * _SKIPS_KEPT)
    assert sealed_small_length(LENGTH_BYTES + len(pack_message(mail))) <= most_bytes(
        LetterKind.WEIGHTS, study(), sites + 1
    )


def as_sent(padded: bytes, kind: str = "weights") -> bytes:
    return seal_small(padded, present(ROSTER.party(SITE)).sealing, letter_info(kind, DIGEST, REQUESTER, SITE, 1))


def as_read(letter: bytes, form: type[Message] = WeightMail, kind: str = "weights") -> Message:
    return open_letter(letter, form, kind, DIGEST, REQUESTER, SITE, 1, keys(SITE).sealing)


def test_a_letter_that_is_not_padded_like_all_others_is_refused() -> None:
    """So a site whose agent does not pad is noticed, and not only a site that reads."""
    content = pack_message(WeightMail(weight_list=weights((9, 9, 9))))
    assert as_read(as_sent(pad(content, padded_bytes(content, "weights"))))
    with pytest.raises(MalformedMessage, match="write and pad it like every other"):
        as_read(as_sent(pad(content, padded_bytes(content, "weights") + 1)))
    fields: dict[str, Any] = {"study_digest": DIGEST, "site": SITE, "reason": ""}
    said = pack_message(StudyRefusal(code=ErrorCode.POLICY_REFUSAL, **fields))
    for wrong in (-1, 1):
        letter = as_sent(pad(said, padded_bytes(said, "refusal") + wrong), "refusal")
        with pytest.raises(MalformedMessage, match="write and pad it like every other"):
            as_read(letter, StudyRefusal, "refusal")


def test_a_letter_that_leaves_a_field_to_its_default_is_refused() -> None:
    """An omitted field would make one letter shorter than another that says the same."""

    class Shorter(Message):
        KIND: ClassVar[str] = "weight_mail"
        weight_list: WeightList

    content = pack_message(Shorter(weight_list=weights((9, 9, 9))))
    with pytest.raises(MalformedMessage, match="with every field spelled"):
        as_read(as_sent(pad(content, padded_bytes(content, "weights"))))
