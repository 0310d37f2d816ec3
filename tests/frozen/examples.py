"""One example of every message, as the JSON of its fields, all of them; none is its default where it need not be.

Kinds stand for the classes, so that classes can move.
"""

from __future__ import annotations

from typing import Final

from tests.frozen.enrolment_example import ENROLMENT_EXAMPLES
from tests.frozen.study_example import (
    ARCHITECTURE,
    ARGUMENT,
    COLUMN,
    FROZEN,
    LAYER,
    MODEL,
    PRIVACY,
    RANKING,
    RULE,
    SCHEMA,
    SECOND_WEIGHT,
    SPLIT,
    STUDY,
    SUMMARY,
    TASK,
    TRAINING,
)
from tests.frozen.values import Fields, digest, key_id, party, signature, signed

STUDY_DIGEST: Final = digest("study")
ROUND: Final[Fields] = {"study_digest": STUDY_DIGEST, "round": 7, "attempt": 2}
PLACE: Final[Fields] = {"study_digest": STUDY_DIGEST, "round": 7}
BOTH: Final = ("operator-a", "operator-b")
SITES: Final = ("clinic-1", "clinic-2", "clinic-3")

OPERATOR_A: Final = party("operator-a", "operator", url="https://a.example:8441")
OPERATOR_B: Final = party("operator-b", "operator", url="https://b.example:8442")
ROSTER: Final[Fields] = {
    "federation": "clinics",
    "operator_a": OPERATOR_A,
    "operator_b": OPERATOR_B,
    "requester": "clinic-0",
    "sites": [party(f"clinic-{n}", "site", samples=100 + n) for n in range(4)],
}

HISTORY: Final[Fields] = {
    "party": "operator-a",
    "run": digest("run"),
    "start": 3,
    "began": 400,
    "changes": 417,
    "restored_at_s": 1760000000,
}

WEIGHTS: Final = [{"site": name, "numerator": 32 - place} for place, name in enumerate(SITES)]
WEIGHT_LIST: Final[Fields] = {
    **PLACE,
    "grid": 32,
    "weights": WEIGHTS,
    "salt": digest("salt"),
    "requester": 7,
    "tag_seed": digest("seed of tags"),
}
ANNOUNCEMENT: Final[Fields] = {
    **PLACE,
    "listed": list(SITES),
    "least_contributors": 3,
    "opens": "nothing",
    "purpose": "update",
    "model_version": 6,
    "model_digest": digest("model"),
    "weight_list_digest": digest("weight list"),
    "closes_at_s": 2_000_000_000,
    "ckks_key_id": key_id("ckks"),
    "tag_seed_hash": None,  # ciphertexts have no tags
    "roster_head": digest("roster head"),
}
COLLECTED: Final[Fields] = {
    "site": "clinic-1",
    "announcement_digest": digest("announcement"),
    "commitment_a": digest("commitment a"),
    "commitment_b": digest("commitment b"),
}
AGREED_SET: Final[Fields] = {**ROUND, "announcement_digest": digest("announcement"), "contributions": [COLLECTED]}
CHALLENGE: Final[Fields] = {
    "agreed_set_digest": digest("agreed set"),
    "commitment_a": digest("commitment to a"),
    "nonce_b": digest("nonce b"),
    "nonce_a": digest("nonce a"),
    "challenge": digest("challenge"),
}
RELEASE_SET: Final[Fields] = {
    **ROUND,
    "agreed_set_digest": digest("agreed set"),
    "sites": ["clinic-0", "clinic-1", "clinic-2"],
    "failed_check": ["clinic-3"],
}
SUM_RELEASE: Final[Fields] = {**ROUND, "release_digest": digest("release"), "sum_digest": digest("sum")}
OUTCOME: Final[Fields] = {
    **ROUND,
    "outcome": "burnt",
    "cause": "products_refused",
    "found": 2,
    "needed": 3,
    "code": "correlation_reused",
    "site": "clinic-1",
}
RECEIPT: Final[Fields] = {**ROUND, "site": "clinic-1", "side": "a", "body_digest": digest("body")}
END: Final[Fields] = {
    "study_digest": STUDY_DIGEST,
    "state": "local_only",
    "cause": "policy",
    "clause": "least_number",
    "site": "clinic-3",
    "reason": "zu wenige: 2 – “two”",
}
RELEASED: Final[Fields] = {**ROUND, "release_digest": digest("release")}
COMMITMENTS: Final = [
    signed({**RELEASED, "side": side, "share_kind": kind, "half_digest": digest(kind)}, f"operator-{side}")
    for side, kind in (("a", "seed"), ("b", "vector"))
]
CHECKS: Final = [
    signed(
        {**ROUND, "side": side, "commitment_digest": digest(f"commitment of {side}"), "values": values},
        f"operator-{side}",
    )
    for side, values in (("a", ["0123456789abcdef", "8000000000000000"]), ("b", ["fedcba9876543211"] * 2))
]
HALVES: Final[Fields] = {**RELEASED, "commitments": COMMITMENTS, "checks": CHECKS}
ROUND_VIEW: Final[Fields] = {
    "round": 7,
    "attempt": 2,
    "state": "measured",
    "announcement": signed(ANNOUNCEMENT, "clinic-0"),
    "agreed_set": signed(AGREED_SET, *BOTH),
    "transcript": signed(CHALLENGE, *BOTH),
    "release_set": signed(RELEASE_SET, "clinic-0"),
    "sum_release": signed(SUM_RELEASE, *BOTH),
    "outcome": signed(OUTCOME, *BOTH),
    "commitment": COMMITMENTS[0],
    "go": signed(HALVES, "clinic-0"),
}
PAUSE: Final[Fields] = {"cause": "requester_away", "skips": 3}
CONTRIBUTED: Final[Fields] = {**ROUND, "study": "lungs", "body_digest": digest("body")}
CORRELATION: Final[Fields] = {"site": "clinic-1", "session": digest("session"), "batch": 3, "index": 1}
PAST_RELEASE: Final[Fields] = {
    "announcement": ANNOUNCEMENT,
    "weight_list": WEIGHT_LIST,
    "agreed_set": signed(AGREED_SET, *BOTH),
    "release_set": signed(RELEASE_SET, "clinic-0"),
    "sum_release": signed(SUM_RELEASE, *BOTH),
    "go": signed(HALVES, "clinic-0"),
}
COUNTED: Final[Fields] = {**PLACE, "totals": [0, 12, 345]}
READY: Final[Fields] = {"study_digest": STUDY_DIGEST, "site": "clinic-1"}
ATTESTATION: Final[Fields] = {
    **PLACE,
    "site": "clinic-1",
    "model_version": 7,
    "checkpoint_digest": digest("checkpoint"),
}
SIGNED_KIND: Final = "ready"
"""The kind of message in the example of a signed one."""

LISTED_STUDY: Final[Fields] = {"name": "heart-2026", "study_digest": digest("study")}

DELETED: Final[Fields] = {"path": "metrics.jsonl", "size_bytes": 4100, "sha256": digest("deleted")}

EXAMPLES: Final[dict[str, Fields]] = {
    "deleted_file": DELETED,
    "deletion_receipt": {
        "study": "heart",
        "study_digest": STUDY_DIGEST,
        "site": "clinic-1",
        "person": "Dr. A",
        "reason": "permit 7 ended",
        "at_s": 1_769_860_800,
        "files": [DELETED],
    },
    "server_deletion_receipt": {
        "study": "heart",
        "study_digest": STUDY_DIGEST,
        "operator": "operator-a",
        "person": "Dr. O",
        "reason": "permit 7 ended",
        "at_s": 1_769_860_800,
        "files": [{**DELETED, "path": "shares/" + digest("share")}],
        "letters": 3,
        "answers": 2,
        "rounds": 1,
    },
    **ENROLMENT_EXAMPLES,
    "agreed_set": AGREED_SET,
    "announcement": ANNOUNCEMENT,
    "attestation": ATTESTATION,
    "challenge": CHALLENGE,
    "challenge_reply": {"signature": signature("operator-b")},
    "challenge_reveal": {"transcript": signed(CHALLENGE, "operator-a")},
    "collected": COLLECTED,
    "column": COLUMN,
    "collected_set": {**AGREED_SET, "complete": True},
    "contributed_round": CONTRIBUTED,
    "contributed_rounds": {"site": "clinic-1", "nonce": digest("nonce"), "rounds": [CONTRIBUTED], "more": True},
    "contribution": {
        "version": "moiety/2",
        **ROUND,
        "site": "clinic-1",
        "side": "b",
        "announcement_digest": digest("announcement"),
        "commitment_a": digest("commitment a"),
        "commitment_b": digest("commitment b"),
        "share_kind": "vector",
        "length": 7,
    },
    "correlation_ref": CORRELATION,
    "counted_classes": COUNTED,
    "decline": {
        **PLACE,
        "site": "clinic-2",
        "code": "policy_refusal",
        "clause": "isolation",
        "reason": "isolation: 0.12 < 0.3",
    },
    "enclosed_answer": {"version": "moiety/2", "status": 409, "body_bytes": 312},
    "enclosed_request": {
        "version": "moiety/2",
        "method": "PUT",
        "target": "/v1/studies/lungs/ready",
        "body_digest": digest("body"),
        "digest_field": "sealed-digest",
        "enclosed_bytes": 100,
        "body_bytes": 5000,
    },
    "argument": ARGUMENT,
    "architecture": ARCHITECTURE,
    "frozen": FROZEN,
    "go": HALVES,
    "halves_checked": HALVES,
    "hand_over": {"go": signed(HALVES, "clinic-0")},
    "key_claim": {"first": digest("first roster"), "party": party("clinic-9", "site", samples=12)},
    "layer": LAYER,
    "listed_weight": {"site": "clinic-1", "numerator": 31},
    "lock_reply": {"signature": signature("operator-b"), "nonce_b": digest("nonce b")},
    "lock_request": {"agreed_set": signed(AGREED_SET, "operator-a"), "commitment_a": digest("commitment to a")},
    "masked_sum": {"release_digest": digest("release"), "length": 7, "share_kind": "vector48"},
    "model": MODEL,
    "opening": {
        "transcript_digest": digest("transcript"),
        "side": "a",
        "checked": ["clinic-0", "clinic-1"],
        "opens": "inner_products",
    },
    "ot_batch": {"session": digest("session"), "batch": 3, "lengths": [[4096, 40], [1]]},
    "output": {
        "version": "moiety/2",
        "release_digest": digest("release"),
        "side": "b",
        "share_kind": "vector",
        "recipient": key_id("recipient"),
        "length": 7,
    },
    "output_commitment": COMMITMENTS[0]["message"],
    "party": party("clinic-9", "site", url="https://c.example", samples=12),
    "past_release": PAST_RELEASE,
    "pause": PAUSE,
    "products": {"transcript_digest": digest("transcript"), "correlations": [CORRELATION]},
    "query": {
        "version": "moiety/2",
        "transcript_digest": digest("transcript"),
        "side": "a",
        "share_kind": "seed",
        "targets": ["clinic-1", "clinic-2"],
        "length": 2048,
    },
    "privacy": PRIVACY,
    "ranking": RANKING,
    "ready": READY,
    "receipt": RECEIPT,
    "release_set": RELEASE_SET,
    "roster": ROSTER,
    "roster_change": {
        "federation": "clinics",
        "first": digest("first roster"),
        "number": 3,
        "previous": digest("change 2"),
        "reason": "clinic-3 has a new key",
        "roster": ROSTER,
        "claims": [signature("clinic-3")],
    },
    "round_outcome": OUTCOME,
    "round_view": ROUND_VIEW,
    "rule": RULE,
    "schema": SCHEMA,
    "second_weight": SECOND_WEIGHT,
    "session_open": {"session": digest("session"), "sealed_key_part": "00ff" * 8},
    "session_grant": {
        "version": "moiety/2",
        "session": "ab" * 16,
        "offer_digest": digest("offer"),
        "sealed_secret": "cd" * 1168,
        "lives_s": 3600,
    },
    "session_offer": {"version": "moiety/2", "secret": digest("secret"), "key": "ef" * 1216},
    "session_opened": {"session": digest("session"), "sealed_key_part": "ff00" * 8},
    "signature": signature("clinic-1"),
    "summary": SUMMARY,
    "signed": signed(READY, "clinic-1"),
    "split": SPLIT,
    "study": STUDY,
    "task": TASK,
    "study_end": END,
    "study_index": {"roster_changes": 2, "studies": [LISTED_STUDY], "more": True, "unchanged": True},
    "held_upload": {"body_digest": digest("body"), "held_bytes": 2**22, "part_bytes": 2**21},
    "listed_study": LISTED_STUDY,
    "hindrance": {
        "study_digest": STUDY_DIGEST,
        "site": "clinic-2",
        "declined": True,
        "paused": True,
        "since_s": 1760000000,
    },
    "server_histories": {"own": signed(HISTORY, "operator-a"), "known": signed(HISTORY, "operator-b")},
    "server_history": HISTORY,
    "study_refusal": {
        "study_digest": STUDY_DIGEST,
        "site": "clinic-2",
        "code": "policy_refusal",
        "clause": "may_rank",
        "reason": "may_rank: no",
    },
    "study_view": {
        "roster_changes": 2,
        "study": "lungs",
        "study_digest": STUDY_DIGEST,
        "end": signed(END, "clinic-0"),
        "pause": PAUSE,
        "cursor": 41,
        "ready": ["clinic-1", "clinic-2"],
        "mail": ["welcome-6"],
        "current": ROUND_VIEW,
    },
    "sum_release": SUM_RELEASE,
    "tag_check": CHECKS[0]["message"],
    "tag_seed": {**ROUND, "seed": digest("seed of tags")},
    "tag_shares": {
        **RELEASED,
        "side": "a",
        "sites": ["clinic-0", "clinic-1"],
        "values": [["0000000000000000", "ffffffffffffffff"], ["0123456789abcdef", "8000000000000000"]],
    },
    "tags_failed": HALVES,
    "training": TRAINING,
    "weight_list": WEIGHT_LIST,
    "weight_mail": {
        "weight_list": WEIGHT_LIST,
        "previous": PAST_RELEASE,
        "missed": [PAST_RELEASE],
        "skipped": [signed({**OUTCOME, "outcome": "skipped", "cause": "too_few_contributors", "code": None}, *BOTH)],
        "counted": signed(COUNTED, "clinic-0"),
    },
    "welcome": {
        "study_digest": STUDY_DIGEST,
        "site": "clinic-1",
        "model_version": 6,
        "checkpoint_digest": digest("checkpoint"),
        "site_key": digest("site key"),
        "content_key": digest("content key"),
        "previous": PAST_RELEASE,
        "attestations": [signed(ATTESTATION, "clinic-1")],
        "ckks_key_seed": digest("ckks seed"),
        "ckks_key_id": key_id("ckks"),
    },
}
