"""Every decoder of what others send, with valid inputs to alter, and what may come of altered ones.

A decoder either takes an input or refuses it as a ``MoietyError``; everything else is a crash. What is sealed is tried
twice: the sealed bytes, which an altered byte breaks, and, past the seal, what a party with valid keys can put inside.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import numpy as np

from protocol.arithmetic.ring import from_bytes, to_bytes
from protocol.channel import envelope
from protocol.channel.encoding import pad, unpad
from protocol.channel.sealing import open_small, seal_small
from protocol.channel.signing import sign_request, verify_request
from protocol.ckks.ciphertext import BodyHeader, ChunkReader, CkksParameters, Kind, SeededChunk, SumChunk, chunk_bytes
from protocol.errors import ErrorCode, MoietyError
from protocol.messages import bodies, letter
from protocol.messages.control import Decline, ShareKind
from protocol.messages.peer import MaskedSumHeader
from protocol.ot.extension import CHECK_ANSWER_BYTES, CheckAnswer
from protocol.ot.session import OtReceiver, OtSender
from protocol.parameters import Needs
from protocol.roster.chain import Given, RosterChain, dump_chain, dump_given, parse_chain, parse_given
from protocol.roster.enrolment import Invitation, OperatorCard, dump_card, invitation_line, parse_card, read_invitation
from protocol.roster.keyfile import dump_party_keys, dump_roster, parse_party_keys, parse_roster
from protocol.sharing import Side
from tests.frozen.examples import EXAMPLES, SIGNED_KIND
from tests.frozen.product import messages
from tests.fuzz.mutations import mutated, mutated_json
from tests.property.test_bodies import contributed, halves, header_of, opened_by, parts, shares, taken
from tests.property.test_bodies_released import output_header, read_masked_sum, read_vector
from tests.sealed_bodies import KEY, SECRET, SITE, closed, vector
from tests.unit.client_agent.federation import CONTRIBUTORS, DIGEST, PARTIES, REQUESTER, ROSTER, operator_keys, study

LENGTH: Final = 40
_NONCE: Final = "a" * 24
_URL: Final = "https://a.example/v1/sealed"


@dataclass(frozen=True)
class Decoder:
    """``share``: of the inputs, beside that of others; slow ones have less."""

    name: str
    valid: tuple[bytes, ...] = field(repr=False)
    decode: Callable[[bytes], object] = field(repr=False)
    share: float = 1.0
    mutate: Callable[[Any, Random], bytes] = field(default=mutated, repr=False)
    refuses: tuple[type[Exception], ...] = (MoietyError,)


@functools.cache
def decoders() -> tuple[Decoder, ...]:
    """All of them; each takes its own valid inputs."""
    found = (*_json_messages(), *_texts(), *_channel(), *_sealed_bodies(), *_opened_bodies(), *_numbers())
    for one in found:
        for valid in one.valid:
            one.decode(valid)
    return found


def _json_messages() -> list[Decoder]:
    """Every kind of message there is."""
    by_kind = {kind.KIND: kind for kind in messages()}
    found = []
    for name in EXAMPLES:
        form: Any = by_kind[name]
        if name == "signed":
            form = form[by_kind[SIGNED_KIND]]
        valid = form.parse(json.dumps(EXAMPLES[name]).encode()).canonical()
        found.append(Decoder(f"message {name}", (valid,), form.parse, mutate=mutated_json))
    return found


def _texts() -> list[Decoder]:
    """Files and lines that people hand to each other."""
    card = OperatorCard.parse(json.dumps(EXAMPLES[OperatorCard.KIND]).encode())
    invitation = Invitation.parse(json.dumps(EXAMPLES[Invitation.KIND]).encode())
    chain, party = RosterChain(PARTIES.roster), ROSTER.sites[1]
    keys = PARTIES.keys_of(REQUESTER)
    return [
        Decoder("file roster", (dump_roster(PARTIES.roster).encode(),), _as_text(parse_roster), 0.5),
        Decoder("file chain of rosters", (dump_chain(chain).encode(),), _as_text(parse_chain), 0.5),
        Decoder("file party", (dump_given(Given(party), DIGEST).encode(),), _as_text(parse_given), 0.5),
        Decoder("file keys", (dump_party_keys(keys).encode(),), _as_text(parse_party_keys), 0.5),
        Decoder("file card", (dump_card(card).encode(),), _as_text(parse_card), 0.5),
        Decoder("line invitation", (invitation_line(invitation).encode(),), _line(read_invitation)),
        Decoder("path topic", (b"weights-3", b"welcome-12", b"checkpoint-1", b"refusal"), _line(_topic)),
    ]


def _as_text(parse: Callable[[str, str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"), "a file")


def _line(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("latin-1"))


def _topic(text: str) -> object:
    return letter.parse_topic(text)


def _channel() -> list[Decoder]:
    """Envelopes, paddings, signatures of requests."""
    operator = operator_keys(Side.A)
    between = envelope.Correspondence("ab" * 16, "cd" * 16, _NONCE)
    asked = envelope.EnclosedRequest.parse(json.dumps(EXAMPLES[envelope.EnclosedRequest.KIND]).encode())
    body = bytes(asked.enclosed_bytes)
    request = envelope.close_request(asked, body, operator.sealing.public, between)[envelope.LENGTH_BYTES :]
    answer = envelope.close_answer(200, b"{}", operator.sealing.public, between)
    inside = open_small(request, operator.sealing, between.info("request"))

    def past_the_seal(data: bytes) -> object:
        sealed = seal_small(data, operator.sealing.public, between.info("request"))
        return envelope.open_request(sealed, operator.sealing, between)

    return [
        Decoder("envelope request", (request,), lambda d: envelope.open_request(d, operator.sealing, between), 0.5),
        Decoder("envelope answer", (answer,), lambda d: envelope.open_answer(d, operator.sealing, between), 0.5),
        Decoder("inside an envelope", (inside,), past_the_seal, 0.2),
        Decoder(
            "length of an envelope", (len(request).to_bytes(envelope.LENGTH_BYTES, "big"),), envelope.envelope_length
        ),
        Decoder("padding", (pad(b"abc", 64), pad(b"", 8)), unpad),
        Decoder("headers of a request", _signed_headers(), _verify_headers, 0.5),
    ]


def _signed_headers() -> tuple[bytes, ...]:
    keys = PARTIES.keys_of(REQUESTER)
    signed = sign_request(
        "POST", _URL, hashlib.sha256(b"x").digest(), keys.signing, keys.key_id, created=1000, nonce=_NONCE
    )
    return ("\n".join(f"{name}: {value}" for name, value in signed).encode(),)


def _verify_headers(data: bytes) -> object:
    lines = [line.partition(": ") for line in data.decode("latin-1").split("\n")]
    keys = PARTIES.keys_of(REQUESTER)
    headers = [(name, value) for name, _, value in lines]
    return verify_request("POST", _URL, headers, {keys.key_id: keys.signing.public}.get, 1000)


def _sealed_bodies() -> list[Decoder]:
    """Bodies as they come over the line."""
    both = parts(LENGTH)
    contributions = contributed(both, halves(LENGTH))
    found = [
        Decoder(f"contribution at {side}", (contributions[side],), lambda d, s=side: taken(d, both[s]), 0.2)  # type: ignore[misc]
        for side in Side
    ]
    of = bodies.Queries(DIGEST, Side.A, CONTRIBUTORS, 5)
    asked = bodies.query_content(of.header(2), vector(15), SECRET[:32])
    queries = bodies.seal_body(of.header(2), [asked], KEY.public, SECRET).whole()
    opened = bodies.seal_opening(header_of(), shares(Needs.DISTANCES), KEY.public, SECRET)
    released = output_header(ShareKind.VECTOR, LENGTH)
    half = bodies.seal_output(released, [to_bytes(vector(LENGTH))], KEY.public, SECRET).whole()
    header = MaskedSumHeader(release_digest=DIGEST, length=LENGTH)
    summed = bodies.seal_body(header, iter([to_bytes(vector(LENGTH))]), KEY.public, SECRET).whole()
    return [
        *found,
        Decoder("queries", (queries,), lambda d: _opened_queries(of, d), 0.2),
        Decoder("opening", (opened,), lambda d: bodies.read_opening(d, header_of(), REQUESTER, KEY), 0.2),
        Decoder("output", (half,), lambda d: read_vector(released, d), 0.2),
        Decoder("masked sum", (summed,), lambda d: read_masked_sum(header, d), 0.2),
        Decoder("letter", (_letter(),), _open_letter, 0.2),
        Decoder("checkpoint", (_checkpoint(),), _open_checkpoint, 0.2),
    ]


def _opened_queries(of: bodies.Queries, data: bytes) -> object:
    header, found = opened_by(of, data)
    return bodies.read_query(header, found)


def _letter() -> bytes:
    said = Decline(study_digest=DIGEST, round=1, site=SITE, code=ErrorCode.WRONG_ROUND, reason=letter.told("late"))
    to = next(party for party in ROSTER.sites if party.name == REQUESTER)
    return letter.seal_letter(said, "decline", DIGEST, SITE, to, 1)


def _open_letter(data: bytes) -> object:
    return letter.open_letter(data, Decline, "decline", DIGEST, SITE, REQUESTER, 1, KEY)


@functools.cache
def _model() -> bytes:
    return np.random.default_rng(1).normal(size=study().model_dimension).astype("<f4").tobytes()


def _checkpoint() -> bytes:
    return letter.seal_checkpoint(_model(), SECRET[:32])


def _open_checkpoint(data: bytes) -> object:
    return letter.open_checkpoint(data, SECRET[:32], hashlib.sha256(_model()).hexdigest(), study())


def _opened_bodies() -> list[Decoder]:
    """The content of seals, and the messages of the two servers for products."""
    of = bodies.Queries(DIGEST, Side.A, CONTRIBUTORS, 5)
    both = parts(LENGTH)
    content = b"".join(to_bytes(one.range_shares) + to_bytes(one.values) for one in shares(Needs.DISTANCES))
    found = [
        Decoder(
            f"header of a contribution at {side}",
            (part.header(_COMMITTED).canonical(),),
            part.require,
            1.0,
            mutated_json,
        )
        for side, part in both.items()
    ]
    return [
        *found,
        _header("header of queries", of.header(1).canonical(), of.require),
        Decoder("queries past the seal", (bytes(8 * 15),), lambda d: bodies.read_query(of.header(2), d), 0.5),
        Decoder("opening past the seal", (content,), _opening_past_the_seal, 0.2),
        *_products(),
    ]


def _header(name: str, valid: bytes, decode: Callable[[bytes], object]) -> Decoder:
    return Decoder(name, (valid,), decode, 1.0, mutated_json)


_COMMITTED: Final = dict.fromkeys(Side, b"x" * 32)


def _opening_past_the_seal(data: bytes) -> object:
    return bodies.read_opening(closed(header_of(), [data], KEY.public), header_of(), REQUESTER, KEY)


def _products() -> list[Decoder]:
    """Messages of the oblivious transfer; a session that refused one is never used again, so each input has its own."""
    session, lengths = bytes(32), [(3,), (2, 4)]
    _, first = OtSender.open(session, bytes(32))
    _, reply = OtReceiver.open(session, first, bytes([1]) * 32)

    def sender_reads(data: bytes) -> object:
        return OtSender.open(session, bytes(32))[0].finish(data)

    def at_sender(data: bytes) -> object:
        return OtSender.open(session, bytes(32))[0].finish(reply).challenge(data, lengths, bytes(32))

    receiver, _ = OtReceiver.open(session, first, bytes([1]) * 32)
    _, extended = receiver.extend(lengths)
    return [
        Decoder(
            "first message of oblivious transfer", (first,), lambda d: OtReceiver.open(session, d, bytes(32)), 0.01
        ),
        Decoder("reply of oblivious transfer", (reply,), sender_reads, 0.01),
        Decoder("extension of oblivious transfer", (extended,), at_sender, 0.01),
        Decoder("answer to the consistency check", (bytes(CHECK_ANSWER_BYTES),), CheckAnswer.from_bytes),
    ]


def _numbers() -> list[Decoder]:
    """Ring vectors and ciphertexts."""
    ckks = CkksParameters()
    seeded, summed = bytes(chunk_bytes(ckks, Kind.CONTRIBUTION)), bytes(chunk_bytes(ckks, Kind.SUM))
    header = BodyHeader(Kind.CONTRIBUTION, bytes(16), bytes(16), 9)
    return [
        Decoder("ring vector", (to_bytes(vector(LENGTH)),), lambda d: from_bytes(d, LENGTH)),
        Decoder("ciphertext", (seeded,), lambda d: SeededChunk.parse(d, ckks), 0.2),
        Decoder("sum of ciphertexts", (summed,), lambda d: SumChunk.parse(d, ckks), 0.2),
        Decoder("body of ciphertexts", (header.to_bytes() + seeded,), lambda d: ChunkReader(ckks, header).feed(d), 0.2),
    ]
