"""Signatures of requests, answers and messages: their one form, and every refusal (docs/protocol.md 3, 14)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

import pytest

from protocol.channel.keys import SigningKey, VerifyKey, generate_signing_key, key_id_of
from protocol.channel.signing import (
    DigestField,
    VerifiedAnswer,
    VerifiedRequest,
    sign_answer,
    sign_message,
    sign_request,
    verify_answer,
    verify_message,
    verify_request,
)
from protocol.errors import BadSignature, MalformedMessage, Unavailable

KEY = generate_signing_key(bytes(range(32)))
OTHER = generate_signing_key(bytes(range(1, 33)))
KEYS = {"north": KEY.public, "south": OTHER.public}
METHOD, URL = "POST", "https://a.example/studies/7/rounds/3?side=A"
DIGEST = hashlib.sha256(b"body").digest()
NOW = 1_800_000_000
NONCE = "0123456789abcdef-_AZ"
COVERED = '("@method" "@target-uri" "content-digest")'
PARAMETERS = f';created={NOW};keyid="north";alg="ed25519";nonce="{NONCE}";tag="moiety/2"'

Headers = Sequence[tuple[str, str]]


def signed(created: int = NOW, key_id: str = "north", nonce: str = NONCE) -> tuple[tuple[str, str], ...]:
    return sign_request(METHOD, URL, DIGEST, KEY, key_id, created=created, nonce=nonce)


def verify(headers: Headers, now: int = NOW, method: str = METHOD, url: str = URL) -> VerifiedRequest:
    return verify_request(method, url, headers, KEYS.get, now)


def refused(headers: Headers, match: str, now: int = NOW, method: str = METHOD, url: str = URL) -> None:
    with pytest.raises(BadSignature, match=match) as error:
        verify(headers, now, method, url)
    assert "south" not in error.value.detail


def by_hand(
    covered: str = COVERED, parameters: str = PARAMETERS, lines: Sequence[str] | None = None, **other: str
) -> list[tuple[str, str]]:
    """A request signed correctly, but over whatever the test asks for."""
    digest = f"sha-256=:{base64.b64encode(DIGEST).decode()}:"
    if lines is None:
        lines = [f'"@method": {METHOD}', f'"@target-uri": {URL}', f'"content-digest": {digest}']
    base = "\n".join([*lines, f'"@signature-params": {covered}{parameters}'])
    signature = base64.b64encode(KEY.sign(base.encode())).decode()
    headers = {"content-digest": digest, "signature-input": f"moiety={covered}{parameters}"}
    headers["signature"] = f"moiety=:{signature}:"
    return list((headers | other).items())


def replaced(headers: Headers, name: str, value: str) -> list[tuple[str, str]]:
    return [(key, value if key.lower() == name else old) for key, old in headers]


def test_round_trip() -> None:
    headers = signed()
    assert [name for name, _ in headers] == ["Content-Digest", "Signature-Input", "Signature"]
    others = [("Host", "a.example"), ("Content-Type", "application/octet-stream")]
    assert verify([*others, *headers]) == VerifiedRequest("north", NONCE, NOW, DIGEST)


def sealed() -> tuple[tuple[str, str], ...]:
    return sign_request(METHOD, URL, DIGEST, KEY, "north", created=NOW, nonce=NONCE, digest_field=DigestField.SEALED)


def test_a_contribution_signs_a_digest_field_of_its_own() -> None:
    headers = sealed()
    assert [name for name, _ in headers] == ["Sealed-Digest", "Signature-Input", "Signature"]
    assert headers[0][1] == f":{base64.b64encode(DIGEST).decode()}:"
    assert verify(headers) == VerifiedRequest("north", NONCE, NOW, DIGEST, DigestField.SEALED)


def test_the_two_digest_fields_do_not_stand_for_each_other() -> None:
    digest = base64.b64encode(DIGEST).decode()
    content, own = ("Content-Digest", f"sha-256=:{digest}:"), ("Sealed-Digest", f":{digest}:")
    refused([content, *sealed()[1:]], "cover exactly @method, @target-uri, content-digest")
    refused([own, *signed()[1:]], "cover exactly @method, @target-uri, sealed-digest")
    refused([content, *sealed()], "headers content-digest and sealed-digest, there must be exactly one of them")
    refused([own, *signed()], "exactly one of them")
    refused([("Sealed-Head-Digest", own[1]), *sealed()[1:]], "cover exactly @method, @target-uri, sealed-head-digest")
    refused([("Sealed-Digest", content[1]), *sealed()[1:]], "sealed-digest header must be one digest")
    refused([own, *sealed()], "2 sealed-digest headers")
    altered = base64.b64encode(hashlib.sha256(b"other").digest()).decode()
    refused([("Sealed-Digest", f":{altered}:"), *sealed()[1:]], "does not match")


def test_signs_exactly_what_the_rfc_says() -> None:
    assert sorted((name.lower(), value) for name, value in signed()) == sorted(by_hand())
    assert verify(by_hand()).body_digest == DIGEST


def test_header_names_and_outer_blanks_do_not_matter() -> None:
    assert verify([(name.upper(), f" {value}\t") for name, value in signed()]).key_id == "north"


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("PUT", URL),
        (METHOD, URL.replace("7", "8")),
        (METHOD, URL.replace("side=A", "side=B")),
        (METHOD, URL.split("?", maxsplit=1)[0]),
        (METHOD, URL.replace("https", "http")),
        (METHOD, URL.replace("a.example", "b.example")),
    ],
)
def test_another_request_is_refused(method: str, url: str) -> None:
    refused(signed(), "does not match", method=method, url=url)


@pytest.mark.parametrize(
    ("method", "url"), [("post", URL), (METHOD, "/studies/7"), (METHOD, "https://a.example/a b"), (METHOD, f"{URL}\n")]
)
def test_requests_that_cannot_be_signed(method: str, url: str) -> None:
    with pytest.raises(MalformedMessage, match="cannot be signed"):
        sign_request(method, url, DIGEST, KEY, "north", created=NOW, nonce=NONCE)
    refused(signed(), "does not match", method=method, url=url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:80/x?a=1&b", "https://[::1]:8441/x", "https://A_b.example/%C3%A9"])
def test_any_printed_address_can_be_signed(url: str) -> None:
    headers = sign_request("GET", url, DIGEST, KEY, "no.rth", created=NOW, nonce=NONCE)
    assert verify_request("GET", url, headers, {"no.rth": KEY.public}.get, NOW).key_id == "no.rth"


@pytest.mark.parametrize("created", [-(10**20), 10**20])
def test_impossible_time_cannot_be_signed(created: int) -> None:
    with pytest.raises(MalformedMessage, match="cannot be signed"):
        signed(created=created)


@pytest.mark.parametrize(
    ("key_id", "nonce"),
    [
        ("", NONCE),
        ("two words", NONCE),
        ("x" * 129, NONCE),
        ('no"rth', NONCE),
        ("north", "short"),
        ("north", "x" * 65),
        ("north", "é" * 20),
    ],
)
def test_bad_key_id_or_nonce_is_neither_signed_nor_accepted(key_id: str, nonce: str) -> None:
    with pytest.raises(MalformedMessage, match="nonce of 16 to 64"):
        signed(key_id=key_id, nonce=nonce)
    parameters = PARAMETERS.replace("north", key_id).replace(NONCE, nonce)
    refused(by_hand(parameters=parameters), "cover exactly")


def test_wrong_digest_length_is_not_signed() -> None:
    with pytest.raises(MalformedMessage, match="body digest has 31 bytes"):
        sign_request(METHOD, URL, DIGEST[1:], KEY, "north", created=NOW, nonce=NONCE)


@pytest.mark.parametrize("name", ["content-digest", "signature-input", "signature"])
def test_each_header_must_be_there_once(name: str) -> None:
    headers = signed()
    refused([line for line in headers if line[0].lower() != name], f"0 {name} headers")
    refused([*headers, *(line for line in headers if line[0].lower() == name)], f"2 {name} headers")


SHA_512 = f"sha-512=:{base64.b64encode(hashlib.sha512(b'body').digest()).decode()}:"
SHA_256 = f"sha-256=:{base64.b64encode(DIGEST).decode()}:"


LINES = (f'"@method": {METHOD}', f'"@target-uri": {URL}', f'"content-digest": {SHA_256}')
KEYED = '"content-digest";key="sha-256"'
OTHER_COMPONENTS = [
    ('("@target-uri" "content-digest")', LINES[1:]),
    ('("@method" "content-digest")', LINES[::2]),
    ('("@method" "@target-uri")', LINES[:2]),
    ('("@method" "@target-uri" "content-digest" "@path")', (*LINES, '"@path": /studies/7/rounds/3')),
    ('("@method" "@target-uri" "content-digest" "@method")', (*LINES, LINES[0])),
    ('("@method" "@target-uri" "content-digest" 5)', (*LINES, "5: 5")),
    (f'("@method" "@target-uri" {KEYED})', (*LINES[:2], f"{KEYED}: :{base64.b64encode(DIGEST).decode()}:")),
    ('("content-digest" "@target-uri" "@method")', LINES[::-1]),
]
PARTS = PARAMETERS[1:].split(";")
OTHER_PARAMETERS = [
    *("".join(f";{part}" for part in PARTS if part != left_out) for left_out in PARTS),
    "".join(f";{part}" for part in reversed(PARTS)),
    PARAMETERS + f";expires={NOW + 10}",
    PARAMETERS + ";extra",
    PARAMETERS.replace("ed25519", "hmac-sha256"),
    PARAMETERS.replace(str(NOW), f'"{NOW}"'),
    PARAMETERS.replace(str(NOW), f"{NOW}.0"),
    PARAMETERS.replace(str(NOW), f"0{NOW}"),
    PARAMETERS.replace(f'"{NONCE}"', "5"),
    PARAMETERS.replace('"north"', "?1"),
]
NOT_ONE_SHA_256 = [
    "", "sha-256", SHA_512, f"{SHA_256}, {SHA_512}", f"{SHA_512}, {SHA_256}", f"{SHA_256};x=1", SHA_256[:-2] + ":",
    SHA_256.upper(), f"{SHA_256}, {SHA_256}", "sha-256=:" + "A" * 42 + "B=:", "sha-256=:" + "A" * 40 + ":",
]  # fmt: skip
MALFORMED = ["", "moiety", "moiety=5", "moiety=:!:", "é", "moiety=()", "\x00", "((((("]
LONG = {
    "signature-input": ", ".join(f'a{i}=("x");created={i}' for i in range(900)),
    "signature": ", ".join(f"a{i}=:AAAA:" for i in range(2500)),
    "content-digest": "sha-256=:" + "A" * 2000 + ":",
}
OTHER_DIGEST = f"sha-256=:{base64.b64encode(hashlib.sha256(b'other').digest()).decode()}:"


@pytest.mark.parametrize(
    ("headers", "match"),
    [
        *((by_hand(covered=covered, lines=lines), "cover exactly") for covered, lines in OTHER_COMPONENTS),
        *((by_hand(parameters=parameters), "cover exactly") for parameters in OTHER_PARAMETERS),
        (by_hand(parameters=PARAMETERS.replace("moiety/2", "other")), "tag must be 'moiety/2'"),
        (by_hand(parameters=PARAMETERS.replace("north", "nobody")), "does not match"),
        *(
            (by_hand(lines=[*LINES[:2], f'"content-digest": {digest}'], **{"content-digest": digest}), "be one digest")
            for digest in NOT_ONE_SHA_256
        ),
        (replaced(signed(), "content-digest", OTHER_DIGEST), "does not match"),
        *((replaced(signed(), name, value), "at most 1024 are read") for name, value in LONG.items()),
        *(
            (replaced(signed(), name, value), "cover exactly")
            for name in ("signature-input", "signature")
            for value in MALFORMED
        ),
        (replaced(signed(), "signature", dict(signed())["Signature"].replace("moiety=", "other=")), "cover exactly"),
        *(
            (replaced(signed(), "signature-input", dict(signed())["Signature-Input"].replace(old, new)), "not match")
            for old, new in ((NONCE, NONCE[::-1]), (str(NOW), str(NOW - 1)))
        ),
    ],
)
def test_any_other_header_is_refused(headers: Headers, match: str) -> None:
    refused(headers, match)


def test_an_unknown_key_id_and_a_wrong_signature_get_the_same_words() -> None:
    texts = []
    none: dict[str, VerifyKey] = {}
    for keys in ({"north": OTHER.public}.get, none.get):
        with pytest.raises(BadSignature) as caught:
            verify_request(METHOD, URL, signed(), keys, NOW)
        texts.append(caught.value.detail)
    assert texts[0] == texts[1]


def test_an_unknown_key_id_is_tried_with_a_key_and_that_keys_signature_is_refused_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[bytes] = []

    def watched(key: VerifyKey, signature: bytes, message: bytes) -> None:
        tried.append(key.raw)
        verify_as_ever(key, signature, message)

    verify_as_ever = VerifyKey.verify
    monkeypatch.setattr(VerifyKey, "verify", watched)
    nobodys = SigningKey.from_bytes(bytes(32))
    headers = sign_request(METHOD, URL, DIGEST, nobodys, "nobody", created=NOW, nonce=NONCE)
    refused(headers, "does not match")
    assert tried == [nobodys.public.to_bytes()]


def test_every_bit_class_of_the_signature_counts() -> None:
    headers = signed()
    raw = base64.b64decode(dict(headers)["Signature"].removeprefix("moiety=:").removesuffix(":"))
    for bit in range(0, 512, 41):
        bad = bytearray(raw)
        bad[bit // 8] ^= 1 << (bit % 8)
        refused(replaced(headers, "signature", f"moiety=:{base64.b64encode(bad).decode()}:"), "does not match")
    short = base64.b64encode(raw[:-1]).decode()
    refused(replaced(headers, "signature", f"moiety=:{short}:"), "cover exactly")
    spare = dict(headers)["Signature"]
    spelled = f"{spare[:-4]}{chr(ord(spare[-4]) + 1)}==:"
    assert base64.b64decode(spelled[8:-1]) == raw
    refused(replaced(headers, "signature", spelled), "cover exactly")


def test_several_signatures_are_refused() -> None:
    second = dict(by_hand(parameters=PARAMETERS.replace("moiety/2", "other")))
    headers = signed()
    for name in ("signature-input", "signature"):
        own = {key.lower(): value for key, value in headers}[name]
        headers = (*replaced(headers, name, f"{own}, {second[name].replace('moiety=', 'second=', 1)}"),)
    refused(headers, "cover exactly")


@pytest.mark.parametrize(("now", "age"), [(NOW + 60, 60), (NOW, 0), (NOW - 5, -5)])
def test_age_within_the_limits(now: int, age: int) -> None:
    assert now - verify(signed(), now).created == age


def test_old_and_future_requests_are_refused() -> None:
    refused(signed(), "signed 61 s ago, at most 60 s", now=NOW + 61)
    refused(signed(), "signed 6 s in the future, at most 5 s", now=NOW - 6)
    refused(by_hand(parameters=PARAMETERS.replace(str(NOW), "999999999999999")), "in the future")
    refused(by_hand(parameters=PARAMETERS.replace(str(NOW), "-5")), "s ago")


def test_trouble_in_the_key_store_is_not_a_bad_signature() -> None:
    def broken(key_id: str) -> VerifyKey | None:
        raise Unavailable(f"no keys now, asked for {key_id}")

    with pytest.raises(Unavailable, match="asked for north"):
        verify_request(METHOD, URL, signed(), broken, NOW)


def test_key_is_asked_for_only_after_the_fixed_rules() -> None:
    asked: list[str] = []

    def keys(key_id: str) -> VerifyKey | None:
        asked.append(key_id)
        return KEYS.get(key_id)

    for headers in (by_hand(parameters=PARAMETERS.replace("moiety/2", "other")), signed(created=NOW - 100)):
        with pytest.raises(BadSignature):
            verify_request(METHOD, URL, headers, keys, NOW)
    assert asked == []
    verify_request(METHOD, URL, signed(), keys, NOW)
    assert asked == ["north"]


# --- answers ----------------------------------------------------------------------------------------------------------

KEY_ID = key_id_of(KEY.public.to_bytes())
TYPE = "application/octet-stream"
AnswerHeaders = list[tuple[str, str]]


def asked(nonce: str = "n" * 24) -> str:
    """The Signature field of a request."""
    return dict(sign_request("POST", "https://a.example/x", DIGEST, OTHER, "c", created=1, nonce=nonce))["Signature"]


REQUEST = asked()


def answered(field: DigestField = DigestField.CONTENT, status: int = 200) -> AnswerHeaders:
    made = sign_answer(status, TYPE, DIGEST, KEY, KEY_ID, created=1, request_signature=REQUEST, digest_field=field)
    return list(made)


def verified(headers: AnswerHeaders, status: int = 200, request: str = REQUEST) -> VerifiedAnswer:
    return verify_answer(status, headers, request, KEY.public, KEY_ID)


@pytest.mark.parametrize("field", [DigestField.CONTENT, DigestField.SEALED_HEAD])
def test_a_signed_answer_is_accepted_whatever_else_it_carries(field: DigestField) -> None:
    headers = [("Date", "today"), *answered(field), ("X-Proxy", "here")]
    assert verified(headers) == VerifiedAnswer(TYPE, DIGEST, field)


def test_an_old_answer_does_not_serve_another_request() -> None:
    with pytest.raises(BadSignature, match="does not match status, type, digest and request"):
        verified(answered(), request=asked("m" * 24))


def of_another_key(key: SigningKey, key_id: str) -> AnswerHeaders:
    return list(sign_answer(200, TYPE, DIGEST, key, key_id, created=1, request_signature=REQUEST))


@pytest.mark.parametrize(
    ("headers", "status", "match"),
    [
        (answered(), 404, None),
        (replaced(answered(), "content-type", "application/json"), 200, None),
        (replaced(answered(), "content-digest", f"sha-256=:{base64.b64encode(bytes(32)).decode()}:"), 200, None),
        *(([line for line in answered() if line[0] != name], 200, None) for name in dict(answered())),
        *(([*answered(), (name, value)], 200, None) for name, value in answered()),
        (of_another_key(OTHER, KEY_ID), 200, None),
        (of_another_key(KEY, "someone"), 200, "another key than the server's"),
    ],
)
def test_any_other_answer_is_refused(headers: AnswerHeaders, status: int, match: str | None) -> None:
    with pytest.raises(BadSignature, match=match):
        verified(headers, status)


def answer_by_hand(covered: str, parameters: str) -> AnswerHeaders:
    """A valid Ed25519 signature over something else than agreed."""
    values = {
        '"@status"': "200",
        '"content-type"': TYPE,
        '"content-digest"': dict(answered())["Content-Digest"],
        '"signature";req': REQUEST,
    }
    lines = [f"{name}: {values[name]}" for name in covered.split(" ")]
    stated = f"({covered}){parameters}"
    base = "\n".join([*lines, f'"@signature-params": {stated}'])
    value = base64.b64encode(KEY.sign(base.encode())).decode()
    kept = [line for line in answered() if not line[0].startswith("Signature")]
    return [*kept, ("Signature-Input", f"moiety={stated}"), ("Signature", f"moiety=:{value}:")]


WHOLE = '"@status" "content-type" "content-digest" "signature";req'
PARTS_OF_ALL = WHOLE.split(" ")
STATED = f';created=1;keyid="{KEY_ID}";alg="ed25519";tag="moiety/2"'


def test_a_signature_by_hand_over_all_of_it_is_accepted() -> None:
    assert verified(answer_by_hand(WHOLE, STATED)).body_digest == DIGEST


@pytest.mark.parametrize(
    ("covered", "parameters", "match"),
    [
        *(
            (" ".join(p for p in WHOLE.split(" ") if p != out), STATED, "must cover exactly")
            for out in WHOLE.split(" ")
        ),
        (WHOLE, STATED.replace("moiety/2", "moiety/1"), "and the tag"),
        (WHOLE, STATED.replace(";created=1", ""), "and the tag"),
        (WHOLE, STATED + ';nonce="x"', "and the tag"),
    ],
)
def test_a_signature_over_less_or_with_other_parameters_is_refused(covered: str, parameters: str, match: str) -> None:
    with pytest.raises(BadSignature, match=match):
        verified(answer_by_hand(covered, parameters))


def test_a_requests_own_digest_field_is_none_of_an_answers() -> None:
    sealed = [("Sealed-Digest" if name == "Content-Digest" else name, value) for name, value in answered()]
    sealed = [(name, value.removeprefix("sha-256=")) for name, value in sealed]
    with pytest.raises(BadSignature, match="not sealed-digest"):
        verified(sealed)


def test_a_request_signature_that_no_header_can_hold_cannot_be_covered() -> None:
    with pytest.raises(BadSignature, match="cannot be signed"):
        sign_answer(200, TYPE, DIGEST, KEY, KEY_ID, created=1, request_signature="a\nb")


@pytest.mark.parametrize(("status", "kind"), [(99, TYPE), (600, TYPE), (200, ""), (200, "text/plain\n"), (200, " x")])
def test_an_answer_without_status_or_type_cannot_be_signed(status: int, kind: str) -> None:
    with pytest.raises(BadSignature, match="cannot be signed"):
        sign_answer(status, kind, DIGEST, KEY, KEY_ID, created=1, request_signature=REQUEST)
    headers = [("Content-Type", kind) if name == "Content-Type" else (name, value) for name, value in answered()]
    with pytest.raises(BadSignature, match="does not match status, type"):
        verified(headers, status=status)


# --- messages ---------------------------------------------------------------------------------------------------------


def test_message_round_trip() -> None:
    signature = sign_message("receipt", b"payload", KEY)
    assert signature == KEY.sign(b"moiety/2 receipt\x00payload")
    verify_message("receipt", b"payload", signature, KEY.public)
    verify_message("x", b"", sign_message("x", b"", KEY), KEY.public)


def test_message_refusals() -> None:
    signature = sign_message("receipt", b"payload", KEY)
    for domain, payload, key in (
        ("receipts", b"payload", KEY),
        ("receipt", b"payloae", KEY),
        ("receipt", b"payload\x00", KEY),
        ("receipt", b"payload", OTHER),
    ):
        with pytest.raises(BadSignature):
            verify_message(domain, payload, signature, key.public)
    with pytest.raises(BadSignature, match="64 bytes, found 0"):
        verify_message("receipt", b"payload", b"", KEY.public)


@pytest.mark.parametrize("domain", ["", "a\x00b", "a\nb", "é", "x" * 65])
def test_bad_domains_are_refused(domain: str) -> None:
    with pytest.raises(MalformedMessage, match="domain"):
        sign_message(domain, b"", KEY)
    with pytest.raises(MalformedMessage, match="domain"):
        verify_message(domain, b"", bytes(64), KEY.public)
