"""A whole session: products, order, lengths, replay, and its opening."""

from __future__ import annotations

import pytest

from protocol.errors import ConsistencyCheckFailed, MalformedMessage, ProtocolViolation
from protocol.ot import base, session
from protocol.ot.base import DEFAULT_EXTENSION, IKNP, SOFTSPOKEN, Extension
from protocol.ot.session import OtReceiver, OtSender, ReceiverBatch, SenderBatch
from tests.unit.mpc.ot.exchange import EXTENSIONS, LENGTHS, SESSION, Exchange, errors, open_pair, seed

CONTRIBUTOR = (2048,) + (1,) * 40
STEPS = ("columns", "challenge", "answer", "products")


@EXTENSIONS
def test_every_product_is_exact_over_several_batches(extension: Extension):
    a, b = open_pair(extension=extension)
    vectors = set()
    for label in ("first", "second", "third"):
        done = Exchange(a, b, LENGTHS, label)
        assert [half.lengths for half in done.halves_a] == LENGTHS
        for one, other in zip(done.halves_a, done.halves_b, strict=True):
            assert errors(one, other) == [0] * len(one.lengths)
            vectors |= {one.vector.tobytes(), other.vector.tobytes()}
    assert len(vectors) == 3 * 2 * len(LENGTHS)


@pytest.mark.parametrize(("extension", "cost"), [(IKNP, 2_652_744), (Extension(32), 1_046_856), (SOFTSPOKEN, 862_848)])
def test_what_a_contributor_costs(extension: Extension, cost: int):
    done = Exchange(*open_pair(extension=extension), [CONTRIBUTOR])
    assert errors(done.halves_a[0], done.halves_b[0]) == [0] * 41
    assert len(done.sent["columns"]) == session.extension_message_bytes(2088, extension)
    assert len(done.sent["products"]) == session.products_message_bytes(2088)
    assert sum(map(len, done.sent.values())) == cost


def test_the_default_costs_less_than_the_budget_with_what_is_sent_online():
    done = Exchange(*open_pair(), [CONTRIBUTOR])
    online = 2 * 8 * sum(CONTRIBUTOR)  # each server sends its masked vector once
    assert DEFAULT_EXTENSION == SOFTSPOKEN
    assert sum(map(len, done.sent.values())) + online < 900_000


def test_streams_and_row_indices_are_never_reused():
    a, b = open_pair()
    same = [Exchange(a, b, [(2,)], "same"), Exchange(a, b, [(2,)], "same")]
    assert (same[0].halves_a[0].vector != same[1].halves_a[0].vector).all()
    assert (same[0].halves_b[0].vector != same[1].halves_b[0].vector).all()
    assert (same[0].batch_a.columns != same[1].batch_a.columns).any(axis=1).all()
    assert (same[0].batch_b.columns != same[1].batch_b.columns).any(axis=1).all()
    assert same[1].batch_a.first_row == same[1].batch_b.first_row == 64 * 2 + 192


def test_the_extra_choice_bits_belong_to_no_element():
    done = Exchange(*open_pair(), [(2,)])
    assert done.batch_a.choices.size == 8 * 2 + 24
    assert done.batch_a.choices[:16].tobytes() == done.halves_a[0].vector.astype("<u8").tobytes()
    assert len(set(done.batch_a.choices[16:].tolist())) > 1


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "alter", [lambda m: m[:-1], lambda m: m + b"\0", lambda m: b""], ids=["short", "long", "empty"]
)
def test_wrong_lengths_are_refused_and_change_nothing(step: str, alter):
    a, b = open_pair()
    honest = Exchange(*open_pair(), LENGTHS)
    refused: list[str] = []

    def once(name: str, message: bytes) -> bytes:
        if name == step and not refused:
            refused.append(name)
            take = {
                "columns": lambda m: b.challenge(m, LENGTHS, seed("x")),
                "challenge": lambda m: a.answer(a._batch, m),  # type: ignore[arg-type]
                "answer": lambda m: b.respond(b._batch, m),  # type: ignore[arg-type]
                "products": lambda m: a.finish(a._batch, m),  # type: ignore[arg-type]
            }
            with pytest.raises(MalformedMessage, match="bytes, found"):
                take[name](alter(message))
        return message

    done = Exchange(a, b, LENGTHS, alter=once)
    assert refused == [step]
    assert done.sent == honest.sent


@pytest.mark.parametrize("step", STEPS)
def test_messages_of_another_batch_are_refused(step: str):
    a, b = open_pair()
    old = Exchange(a, b, LENGTHS).sent
    with pytest.raises(ProtocolViolation, match="belongs to batch 0, batch 1"):
        Exchange(a, b, LENGTHS, "next", alter=lambda name, message: old[name] if name == step else message)


def test_every_step_runs_once_and_in_order():
    a, b = open_pair()
    batch_a, columns = a.extend(LENGTHS)
    with pytest.raises(ProtocolViolation, match="extend came where 'answer'"):
        a.extend(LENGTHS)
    with pytest.raises(ProtocolViolation, match="finish"):
        a.finish(batch_a, b"")
    batch_b, challenge = b.challenge(columns, LENGTHS, seed("3"))
    with pytest.raises(ProtocolViolation, match="challenge"):
        b.challenge(columns, LENGTHS, seed("4"))
    answer = a.answer(batch_a, challenge)
    with pytest.raises(ProtocolViolation, match="answer"):
        a.answer(batch_a, challenge[:8] + bytes(16))
    halves, products = b.respond(batch_b, answer)
    with pytest.raises(ProtocolViolation, match="respond"):
        b.respond(batch_b, answer)
    assert errors(a.finish(batch_a, products)[0], halves[0]) == [0, 0, 0]
    with pytest.raises(ProtocolViolation, match="finish"):
        a.finish(batch_a, products)
    assert (repr(a), repr(b)) == ("OtReceiver(due='extend', batches=1)", "OtSender(due='challenge', batches=1)")


def test_a_handle_of_another_session_is_refused():
    a, b = open_pair()
    other_a, other_b = open_pair("other")
    batch, columns = a.extend(LENGTHS)
    other_batch, _ = other_a.extend(LENGTHS)
    _, challenge = b.challenge(columns, LENGTHS, seed("2"))
    with pytest.raises(ProtocolViolation):
        a.answer(other_batch, challenge)
    with pytest.raises(ProtocolViolation):
        other_b.respond(b._batch, bytes(session.ANSWER_MESSAGE_BYTES))  # type: ignore[arg-type]
    assert isinstance(b._batch, SenderBatch)
    assert isinstance(batch, ReceiverBatch)


def test_sessions_do_not_mix():
    a, _ = open_pair()
    _, b = open_pair("other")
    with pytest.raises(ConsistencyCheckFailed):
        Exchange(a, b, LENGTHS)


def test_closing_overwrites_the_keys():
    a, b = open_pair()
    a.close()
    b.close()
    assert a.closed
    assert b.closed
    assert not a._keys.any()
    assert not b._keys.any()
    with pytest.raises(ProtocolViolation, match="closed"):
        a.extend(LENGTHS)


@pytest.mark.parametrize("lengths", [[], [()], [(0,)], [(3, 0)], [(1,), ()], [(-1,)]])
def test_batches_without_products_are_refused(lengths: list[tuple[int, ...]]):
    a, b = open_pair()
    with pytest.raises(ProtocolViolation, match="at least one"):
        a.extend(lengths)
    with pytest.raises(ProtocolViolation, match="at least one"):
        b.challenge(b"", lengths, seed("1"))


def test_randomness_of_the_wrong_length_is_refused():
    _, b = open_pair()
    with pytest.raises(ProtocolViolation, match="rand"):
        OtReceiver.open(SESSION, OtSender.open(SESSION, seed("b"))[1], b"1")
    with pytest.raises(ProtocolViolation, match="rand"):
        b.challenge(b"", LENGTHS, b"1")
    with pytest.raises(ProtocolViolation, match="rand"):
        OtSender.open(SESSION, b"1")


def test_repr_hides_secrets_everywhere():
    opening, _ = OtSender.open(SESSION, seed("b"))
    assert repr(opening) == "OtSenderOpening(due='finish')"
    done = Exchange(*open_pair(), [(2,)])
    assert repr(done.batch_a) == "ReceiverBatch(number=0, first_row=0)"
    assert repr(done.batch_b) == "SenderBatch(number=0, first_row=0)"
    assert repr(done.halves_a[0]) == "CorrelationHalf(lengths=(2,))"


def opening_and_reply(extension: Extension = SOFTSPOKEN) -> tuple[session.OtSenderOpening, bytes]:
    opening, message = OtSender.open(SESSION, seed("b"), extension=extension)
    return opening, OtReceiver.open(SESSION, message, seed("a"), extension=extension)[1]


@EXTENSIONS
def test_the_opening_has_the_documented_size(extension: Extension):
    _, reply = opening_and_reply(extension)
    assert len(reply) == (4096 + 1 if extension == IKNP else 4096 + 1 + 64 * 128)


def test_inconsistent_trees_end_the_opening_for_good():
    opening, reply = opening_and_reply()
    with pytest.raises(ConsistencyCheckFailed, match="trees"):
        opening.finish(reply[:-1] + bytes([reply[-1] ^ 1]))
    assert repr(opening) == "OtSenderOpening(due='closed')"
    with pytest.raises(ProtocolViolation, match="has had its reply"):
        opening.finish(reply)


def test_an_opening_takes_one_reply():
    opening, reply = opening_and_reply()
    assert not opening.finish(reply).closed
    with pytest.raises(ProtocolViolation, match="has had its reply"):
        opening.finish(reply)


def test_a_malformed_reply_changes_nothing():
    opening, reply = opening_and_reply()
    for bad in (reply[:-1], reply + b"\0", reply[: base.SENDER_MESSAGE_BYTES], b"", bytes(32) + reply[32:]):
        with pytest.raises(MalformedMessage):
            opening.finish(bad)
    assert not opening.finish(reply).closed


def test_servers_with_different_extensions_say_so():
    opening, message = OtSender.open(SESSION, seed("b"), extension=Extension(22))
    with pytest.raises(MalformedMessage, match="has 21 digits, this server's 22"):
        opening.finish(OtReceiver.open(SESSION, message, seed("a"), extension=SOFTSPOKEN)[1])
    with pytest.raises(MalformedMessage, match="take 1 bytes"):
        base.require_tree_message(IKNP, bytes(2))
