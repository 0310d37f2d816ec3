"""Requests whose signature, time or body is not what it should be."""

from __future__ import annotations

from harness.adversaries.catalogue.attack import NO_SIGNATURE_COUNTS, Attack, Party, passes
from harness.adversaries.catalogue.refused import Refused, Row, Words
from harness.adversaries.hostile import between
from harness.adversaries.hostile import requests as sent
from protocol.errors import ErrorCode as E

_COMPONENTS = ("@method", "@target-uri", "sealed-head-digest", "created", "keyid", "alg", "nonce", "tag")


def _requests_badly_signed() -> Refused:
    return Refused(
        Words(
            "requests-badly-signed",
            Party.STRANGER,
            "sends requests of sites and of a server that another key, no key or half a signature signs",
            "the signature of every request, by a key of the roster, over all that says what is asked and when",
        ),
        NO_SIGNATURE_COUNTS,
        (
            Row("site not in the roster", sent.site_not_in_the_roster, 401, E.BAD_SIGNATURE, says="does not match"),
            Row("signature of another key", sent.signature_of_another_key, 401, E.BAD_SIGNATURE),
            Row("bad signature", sent.bad_signature, 401, E.BAD_SIGNATURE),
            Row("missing signature", sent.missing_signature, 401, E.BAD_SIGNATURE),
            *(
                Row(f"{name} left out of the signature", sent.component_left_out(name), 401, E.BAD_SIGNATURE)
                for name in _COMPONENTS
            ),
            Row("a peer with another key", between.peer_with_another_key, 401, E.BAD_SIGNATURE),
        ),
    )


def _requests_out_of_their_minute() -> Refused:
    return Refused(
        Words(
            "requests-out-of-their-minute",
            Party.NETWORK,
            "brings requests too late, too early, twice, or to the other server",
            "the age of a signature, its nonce, and the server's address under it",
        ),
        {
            "protocol.wire.channel.signing.require_time": passes,
            "servers.store.sql.SqlStore.remember_nonce": passes,
        },
        (
            Row("expired signature", sent.expired_signature, 401, E.BAD_SIGNATURE, says="s ago"),
            Row("future-dated signature", sent.future_signature, 401, E.BAD_SIGNATURE, says="future"),
            Row("replayed signature", sent.replayed_signature, 401, E.BAD_SIGNATURE, says="nonce"),
            Row("replayed at the other server", sent.replayed_at_the_other_server, 401, E.BAD_SIGNATURE),
        ),
    )


def _requests_with_another_body() -> Refused:
    return Refused(
        Words(
            "requests-with-another-body",
            Party.NETWORK,
            "puts another share behind a site's signature",
            "the digest of the body inside the signed envelope",
        ),
        {"servers.http.authentication.Caller.require_digest": passes},
        (
            Row("wrong content digest", sent.wrong_content_digest, 401, E.BAD_SIGNATURE, says="digest"),
            Row(
                "flat digest of a contribution",
                sent.flat_digest_of_a_contribution,
                401,
                E.BAD_SIGNATURE,
                says="sealed-digest",
            ),
        ),
    )


def hostile_requests() -> tuple[Attack, ...]:
    """Every attack of this family."""
    return (
        _requests_badly_signed(),
        _requests_out_of_their_minute(),
        _requests_with_another_body(),
    )
