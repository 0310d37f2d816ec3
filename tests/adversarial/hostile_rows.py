"""The table of hostile messages that a server refuses: who sends what, when, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from harness.adversaries import contributions as forged
from harness.adversaries.scripted.rounds import LARGE, LAST, SITES, SMALL, STRANGER, VICTIM, Phase
from protocol.errors import ErrorCode
from protocol.sharing import Side
from protocol.wire import paths
from tests.adversarial.hostile_messages import (
    BATCH,
    PRODUCTS,
    Attack,
    altered_header,
    announced,
    announced_by_a_site,
    as_peer,
    bad_signature,
    both_shares_to_one_server,
    component_left_out,
    expired_signature,
    first_the_others_share,
    flat_digest_of_a_contribution,
    for_another_announcement,
    future_signature,
    header,
    in_another_name,
    missing_signature,
    next_round_with_an_old_release,
    other_set_to_lock,
    output_for_an_outsider,
    peer_with_another_key,
    post,
    queries,
    ready_for_somebody_else,
    released,
    replayed_at_the_other_server,
    replayed_signature,
    same_id_other_bytes,
    share,
    signature_of_another_key,
    site_as_peer,
    site_not_in_the_roster,
    too_few_listed,
    unknown_study,
    vector_of,
    wrong_content_digest,
    wrong_version_of_a_study,
)


@dataclass(frozen=True)
class Row:
    """One hostile message. ``recorded``: the server keeps a note of who sent it."""

    name: str
    attack: Attack
    status: int
    code: ErrorCode
    phase: Phase = Phase.COLLECTING
    recorded: bool = False
    dimension: int = SMALL
    says: str = ""


E_ = ErrorCode
COMPONENTS = ("@method", "@target-uri", "sealed-head-digest", "created", "keyid", "alg", "nonce", "tag")

REQUEST_ROWS = (
    Row("unknown study", unknown_study, 404, E_.UNKNOWN_STUDY, says="elsewhere"),
    Row("site not in the roster", site_not_in_the_roster, 401, E_.BAD_SIGNATURE, says="does not match"),
    Row("signature of another key", signature_of_another_key, 401, E_.BAD_SIGNATURE),
    Row("bad signature", bad_signature, 401, E_.BAD_SIGNATURE),
    Row("missing signature", missing_signature, 401, E_.BAD_SIGNATURE),
    Row("expired signature", expired_signature, 401, E_.BAD_SIGNATURE, says="s ago"),
    Row("future-dated signature", future_signature, 401, E_.BAD_SIGNATURE, says="future"),
    Row("replayed signature", replayed_signature, 401, E_.BAD_SIGNATURE, says="nonce"),
    Row("request replayed at the other server", replayed_at_the_other_server, 401, E_.BAD_SIGNATURE),
    *(Row(f"{name} left out of the signature", component_left_out(name), 401, E_.BAD_SIGNATURE) for name in COMPONENTS),
    Row("wrong content digest", wrong_content_digest, 401, E_.BAD_SIGNATURE, says="digest"),
    Row("flat digest of a contribution", flat_digest_of_a_contribution, 401, E_.BAD_SIGNATURE, says="sealed-digest"),
)

CONTRIBUTION_ROWS = (
    Row(
        "share sealed to the wrong key",
        share(lambda r: forged.sealed_to_the_wrong_key(r.honest[VICTIM], Side.B)),
        400,
        E_.BROKEN_SEAL,
    ),
    Row(
        "share for the other side",
        share(lambda r: r.honest[VICTIM][Side.A].sealed()),
        400,
        E_.MALFORMED_MESSAGE,
        says="side 'a'",
    ),
    Row("both shares to one server", both_shares_to_one_server, 409, E_.CONFLICTING_MESSAGE, recorded=True),
    Row("the other side's share first", first_the_others_share, 400, E_.MALFORMED_MESSAGE, says="vector"),
    Row(
        "wrong commitment",
        share(lambda r: forged.another_share_than_committed(r.honest[VICTIM], Side.B)),
        400,
        E_.COMMITMENT_MISMATCH,
    ),
    Row("wrong length in the header", header(length=SMALL + 1), 400, E_.MALFORMED_MESSAGE),
    Row("vector too short", share(lambda r: vector_of(r, SMALL - 1).sealed()), 400, E_.MALFORMED_MESSAGE, says="152"),
    Row("vector too long", share(lambda r: vector_of(r, SMALL + 1).sealed()), 400, E_.MALFORMED_MESSAGE, says="168"),
    Row("truncated", share(lambda r: forged.truncated(r.honest[VICTIM][Side.B].sealed())), 400, E_.BROKEN_SEAL),
    Row("over-long", share(lambda r: forged.over_long(r.honest[VICTIM][Side.B].sealed())), 400, E_.BROKEN_SEAL),
    Row(
        "a megabyte over-long",
        share(lambda r: forged.over_long(r.honest[VICTIM][Side.B].sealed(), 2**20)),
        413,
        E_.TOO_LARGE,
    ),
    Row("bit flipped", share(lambda r: forged.bit_flipped(r.honest[VICTIM][Side.B].sealed())), 400, E_.BROKEN_SEAL),
    Row("header changed after sealing", share(altered_header), 400, E_.BROKEN_SEAL),
    Row("not sealed at all", share(lambda r: b"\x00" * 3000), 400, E_.MALFORMED_MESSAGE),
    Row("empty body", share(lambda r: b""), 400, E_.BROKEN_SEAL),
    Row(
        "chunks swapped",
        share(lambda r: forged.chunks_swapped(r.honest[VICTIM][Side.B])),
        400,
        E_.BROKEN_SEAL,
        dimension=LARGE,
    ),
    Row(
        "last chunk missing",
        share(lambda r: forged.last_chunk_missing(r.honest[VICTIM][Side.B])),
        400,
        E_.BROKEN_SEAL,
        dimension=LARGE,
        says="last chunk",
    ),
    Row("wrong round in the header", header(round=999), 409, E_.WRONG_ROUND),
    Row("wrong attempt in the header", header(attempt=2), 409, E_.WRONG_ROUND),
    Row("wrong round in the address", lambda r: r.put(VICTIM, Side.A, b"x", round=999), 409, E_.WRONG_ROUND),
    Row("wrong protocol version", header(version="moiety/3"), 400, E_.OTHER_VERSION, says="moiety/3"),
    Row("unknown field in the header", header(note="x"), 400, E_.MALFORMED_MESSAGE, says="note"),
    Row("another study's digest", header(study_digest="00" * 32), 409, E_.ANNOUNCEMENT_MISMATCH),
    Row("bound to another announcement", for_another_announcement, 409, E_.ANNOUNCEMENT_MISMATCH),
    Row("in another site's name", in_another_name, 403, E_.NOT_LISTED),
    Row("a site that is not listed", lambda r: r.put(STRANGER, Side.A, b"x"), 403, E_.NOT_LISTED, says="is not listed"),
    Row("same id with other bytes", same_id_other_bytes, 409, E_.CONFLICTING_MESSAGE, recorded=True),
    Row("after the lock, other bytes", same_id_other_bytes, 409, E_.CONFLICTING_MESSAGE, Phase.LOCKED, recorded=True),
    Row("after the lock, a late site", lambda r: r.put(STRANGER, Side.A, b"x"), 409, E_.WRONG_ROUND, Phase.LOCKED),
    Row("before the announcement", share(lambda r: b"x"), 409, E_.WRONG_ROUND, Phase.SETTLED),
)


CONTROL_ROWS = (
    Row("malformed JSON", post(paths.ANNOUNCEMENT, b'{"message":'), 400, E_.MALFORMED_MESSAGE, says="JSON"),
    Row("JSON of another kind", post(paths.ANNOUNCEMENT, b"[1, 2]"), 400, E_.MALFORMED_MESSAGE),
    Row("five megabytes of JSON", post(paths.ANNOUNCEMENT, b" " * 5 * 2**20), 413, E_.TOO_LARGE),
    Row("wrong version of a study", wrong_version_of_a_study, 400, E_.OTHER_VERSION, says="moiety/3"),
    Row("announcement by a site", announced_by_a_site, 401, E_.BAD_SIGNATURE, Phase.SETTLED),
    Row(
        "another announcement of this round",
        announced(model_digest="22" * 32),
        409,
        E_.CONFLICTING_MESSAGE,
        recorded=True,
    ),
    Row("announcement of a later round", announced(round=10**5), 409, E_.WRONG_ROUND, Phase.SETTLED),
    Row(
        "announcement that names unknown sites",
        announced(listed=(*SITES[1:], "nobody")),
        400,
        E_.MALFORMED_MESSAGE,
        Phase.SETTLED,
        says="nobody",
    ),
    Row(
        "announcement below the study's least number",
        announced(least_contributors=2),
        400,
        E_.MALFORMED_MESSAGE,
        Phase.SETTLED,
        says="below the study's 3",
    ),
    Row(
        "announcement with fewer sites than it promises",
        too_few_listed,
        400,
        E_.MALFORMED_MESSAGE,
        Phase.SETTLED,
    ),
    Row(
        "announcement of another study",
        announced(study_digest="00" * 32),
        409,
        E_.ANNOUNCEMENT_MISMATCH,
        Phase.SETTLED,
    ),
    Row("ready for somebody else", ready_for_somebody_else, 403, E_.NOT_LISTED),
)

PEER_ROWS = (
    Row("a peer with another key", peer_with_another_key, 401, E_.BAD_SIGNATURE),
    Row("a site as peer", site_as_peer, 403, E_.NOT_LISTED),
    Row("frame shorter than its length field", as_peer(paths.PEER_EXTEND, b"\x00"), 400, E_.MALFORMED_MESSAGE),
    Row("frame that says too much", as_peer(paths.PEER_EXTEND, b"\xff\xff\xff\xff{}"), 400, E_.MALFORMED_MESSAGE),
    Row("frame with a broken message", as_peer(paths.PEER_EXTEND, b"\x00\x00\x00\x02{]"), 400, E_.MALFORMED_MESSAGE),
    Row("frame of another kind", as_peer(paths.PEER_PRODUCTS, BATCH), 400, E_.MALFORMED_MESSAGE, Phase.LOCKED),
    Row("frame for a session that is not open", as_peer(paths.PEER_EXTEND, BATCH), 404, E_.UNKNOWN_RESOURCE),
    Row(
        "other products for the same attempt",
        as_peer(paths.PEER_PRODUCTS, PRODUCTS),
        409,
        E_.CONFLICTING_MESSAGE,
        Phase.MEASURED,
    ),
    Row("a lock on a set that B does not hold", other_set_to_lock, 409, E_.PROTOCOL_VIOLATION),
    Row("another set for a round that is locked", other_set_to_lock, 409, E_.CONFLICTING_MESSAGE, Phase.LOCKED),
)

QUERY_ROWS = (
    Row("queries of a wrong length", queries(length=SMALL + 1), 400, E_.MALFORMED_MESSAGE, Phase.LOCKED, says="length"),
    Row("queries cut short", queries(short_by=8), 400, E_.MALFORMED_MESSAGE, Phase.LOCKED, says="bytes"),
    Row(
        "queries for sites not in the set",
        queries(targets=(STRANGER, *SITES[2:])),
        400,
        E_.MALFORMED_MESSAGE,
        Phase.LOCKED,
    ),
    Row("queries for one site only", queries(targets=(VICTIM,)), 400, E_.MALFORMED_MESSAGE, Phase.LOCKED),
    Row(
        "queries for another challenge",
        queries(transcript_digest="00" * 32),
        409,
        E_.TRANSCRIPT_MISMATCH,
        Phase.LOCKED,
    ),
    Row("queries for the other side", queries(side=Side.A), 400, E_.MALFORMED_MESSAGE, Phase.LOCKED),
    Row("queries of a site", queries(sender=VICTIM), 403, E_.NOT_LISTED, Phase.LOCKED),
    Row("queries before the lock", post(paths.QUERIES, b"x"), 409, E_.WRONG_ROUND, Phase.COLLECTING),
    Row("other queries for the same attempt", queries(), 409, E_.CONFLICTING_MESSAGE, Phase.MEASURED, recorded=True),
)

RELEASE_ROWS = (
    Row(
        "release set beyond the agreed set",
        released(*SITES, STRANGER),
        400,
        E_.MALFORMED_MESSAGE,
        Phase.MEASURED,
    ),
    Row("release set naming a site twice", released(*SITES, LAST), 400, E_.MALFORMED_MESSAGE, Phase.MEASURED),
    Row(
        "release set below the announced number",
        released(*SITES[:3]),
        400,
        E_.MALFORMED_MESSAGE,
        Phase.MEASURED,
        says="at least 3",
    ),
    Row("release set without the requester", released(*SITES[1:]), 400, E_.MALFORMED_MESSAGE, Phase.MEASURED),
    Row(
        "release set for another agreed set",
        released(agreed_set_digest="00" * 32),
        409,
        E_.ANNOUNCEMENT_MISMATCH,
        Phase.MEASURED,
    ),
    Row("release set signed by a site", released(signer=VICTIM), 401, E_.BAD_SIGNATURE, Phase.MEASURED),
    Row("release set before the opening", released(), 409, E_.WRONG_ROUND, Phase.LOCKED),
    Row(
        "release of a contribution that was released",
        released(*SITES[:4]),
        409,
        E_.CONFLICTING_MESSAGE,
        Phase.RELEASED,
        recorded=True,
    ),
    Row(
        "release of it at the other server",
        released(*SITES[:4], side=Side.B),
        409,
        E_.CONFLICTING_MESSAGE,
        Phase.RELEASED,
        recorded=True,
    ),
    Row("release of an older round", next_round_with_an_old_release, 409, E_.WRONG_ROUND),
    Row(
        "another contribution after the release",
        same_id_other_bytes,
        409,
        E_.CONFLICTING_MESSAGE,
        Phase.RELEASED,
        recorded=True,
    ),
    Row("output for a site that was not listed", output_for_an_outsider, 403, E_.NOT_LISTED, Phase.RELEASED),
)

ROWS = REQUEST_ROWS + CONTRIBUTION_ROWS + CONTROL_ROWS + PEER_ROWS + QUERY_ROWS + RELEASE_ROWS
