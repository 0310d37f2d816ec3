"""Request and message signatures: what is fixed, and every refusal (docs/protocol.md 3)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
from http_message_signatures.resolvers import MappingKeyResolver

from protocol.channel import signing
from protocol.channel.keys import SigningKey, VerifyKey, generate_signing_key
from protocol.channel.signing import DigestField, VerifiedRequest, sign_request, verify_request
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


@pytest.mark.parametrize(("method", "url"), [("post", URL), (METHOD, "/studies/7"), (METHOD, "https://a.example/a b")])
def test_requests_that_cannot_be_signed(method: str, url: str) -> None:
    with pytest.raises(MalformedMessage, match="cannot be signed"):
        sign_request(method, url, DIGEST, KEY, "north", created=NOW, nonce=NONCE)
    refused(signed(), "refused", method=method, url=url)


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
        ("north", "short"),
        ("north", "x" * 65),
        ("north", "é" * 20),
    ],
)
def test_bad_key_id_or_nonce_is_neither_signed_nor_accepted(key_id: str, nonce: str) -> None:
    with pytest.raises(MalformedMessage, match="nonce of 16 to 64"):
        signed(key_id=key_id, nonce=nonce)
    parameters = PARAMETERS.replace("north", key_id).replace(NONCE, nonce)
    refused(by_hand(parameters=parameters), "nonce of 16 to 64|Malformed")


def test_wrong_digest_length_is_not_signed() -> None:
    with pytest.raises(MalformedMessage, match="body digest has 31 bytes"):
        sign_request(METHOD, URL, DIGEST[1:], KEY, "north", created=NOW, nonce=NONCE)


def test_another_digest_is_refused() -> None:
    other = base64.b64encode(hashlib.sha256(b"other").digest()).decode()
    refused(replaced(signed(), "content-digest", f"sha-256=:{other}:"), "does not match")


@pytest.mark.parametrize("name", ["content-digest", "signature-input", "signature"])
def test_each_header_must_be_there_once(name: str) -> None:
    headers = signed()
    refused([line for line in headers if line[0].lower() != name], f"0 {name} headers")
    refused([*headers, *(line for line in headers if line[0].lower() == name)], f"2 {name} headers")


def test_unsigned_request_is_refused() -> None:
    refused([("Host", "a.example")], "0 content-digest headers")


SHA_512 = f"sha-512=:{base64.b64encode(hashlib.sha512(b'body').digest()).decode()}:"
SHA_256 = f"sha-256=:{base64.b64encode(DIGEST).decode()}:"


@pytest.mark.parametrize(
    "digest",
    ["", "sha-256", SHA_512, f"{SHA_256}, {SHA_512}", f"{SHA_512}, {SHA_256}", f"{SHA_256};x=1", SHA_256[:-2] + ":",
     SHA_256.upper(), f"{SHA_256}, {SHA_256}", "sha-256=:" + "A" * 42 + "B=:", "sha-256=:" + "A" * 40 + ":"],
)  # fmt: skip
def test_digest_must_be_one_sha_256(digest: str) -> None:
    lines = [f'"@method": {METHOD}', f'"@target-uri": {URL}', f'"content-digest": {digest}']
    refused(by_hand(lines=lines, **{"content-digest": digest}), "must be one digest")


@pytest.mark.parametrize("missing", range(3))
def test_missing_component_is_refused(missing: int) -> None:
    names = [name for place, name in enumerate(signing.COMPONENTS) if place != missing]
    lines = [f'"@method": {METHOD}', f'"@target-uri": {URL}', f'"content-digest": {SHA_256}']
    covered = "(" + " ".join(f'"{name}"' for name in names) + ")"
    kept = [line for place, line in enumerate(lines) if place != missing]
    refused(by_hand(covered=covered, lines=kept), "cover exactly")


@pytest.mark.parametrize(
    ("covered", "extra"),
    [
        ('("@method" "@target-uri" "content-digest" "@path")', '"@path": /studies/7/rounds/3'),
        ('("@method" "@target-uri" "content-digest" "@method")', f'"@method": {METHOD}'),
        ('("@method" "@target-uri" "content-digest" 5)', "5: 5"),
    ],
)
def test_further_component_is_refused(covered: str, extra: str) -> None:
    lines = [f'"@method": {METHOD}', f'"@target-uri": {URL}', f'"content-digest": {SHA_256}', extra]
    refused(by_hand(covered=covered, lines=lines), "cover exactly")


def test_component_with_parameters_is_refused() -> None:
    name = '"content-digest";key="sha-256"'
    lines = [f'"@method": {METHOD}', f'"@target-uri": {URL}', f"{name}: :{base64.b64encode(DIGEST).decode()}:"]
    refused(by_hand(covered=f'("@method" "@target-uri" {name})', lines=lines), "without parameters")


def test_order_of_components_and_parameters_is_free() -> None:
    lines = [f'"content-digest": {SHA_256}', f'"@target-uri": {URL}', f'"@method": {METHOD}']
    parameters = "".join(f";{part}" for part in reversed(PARAMETERS[1:].split(";")))
    headers = by_hand('("content-digest" "@target-uri" "@method")', parameters, lines)
    assert verify(headers) == VerifiedRequest("north", NONCE, NOW, DIGEST)


@pytest.mark.parametrize("name", ["created", "keyid", "alg", "nonce", "tag"])
def test_missing_parameter_is_refused(name: str) -> None:
    kept = "".join(f";{part}" for part in PARAMETERS[1:].split(";") if not part.startswith(name))
    refused(by_hand(parameters=kept), "exactly the parameters")


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        (PARAMETERS + f";expires={NOW + 10}", "exactly the parameters"),
        (PARAMETERS + ";extra", "exactly the parameters"),
        (PARAMETERS.replace("moiety/2", "other"), "tag must be 'moiety/2'"),
        (PARAMETERS.replace("ed25519", "hmac-sha256"), "algorithm"),
        (PARAMETERS.replace("north", "nobody"), "does not match"),
        (PARAMETERS.replace(str(NOW), f'"{NOW}"'), "created"),
        (PARAMETERS.replace(str(NOW), f"{NOW}.0"), "created"),
        (PARAMETERS.replace(f'"{NONCE}"', "5"), "nonce"),
        (PARAMETERS.replace('"north"', "?1"), "keyid"),
    ],
)
def test_wrong_parameter_is_refused(parameters: str, match: str) -> None:
    refused(by_hand(parameters=parameters), match)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("signature-input", ", ".join(f'a{i}=("x");created={i}' for i in range(900))),
        ("signature", ", ".join(f"a{i}=:AAAA:" for i in range(2500))),
        ("content-digest", "sha-256=:" + "A" * 2000 + ":"),
    ],
)
def test_a_header_that_takes_long_to_parse_is_not_parsed(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(*_: object, **__: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr("protocol.channel.signing.HTTPMessageVerifier.verify", parsed)
    refused(replaced(signed(), name, value), "at most 1024 are read")


def test_key_of_another_site_is_refused() -> None:
    headers = sign_request(METHOD, URL, DIGEST, OTHER, "north", created=NOW, nonce=NONCE)
    refused(headers, "does not match")


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

    class Watched(MappingKeyResolver):  # type: ignore[misc]
        def resolve_public_key(self, key_id: str) -> Any:
            found = super().resolve_public_key(key_id)
            tried.append(found.public_bytes_raw())
            return found

    def watched(key: VerifyKey, signature: bytes, message: bytes) -> None:
        tried.append(key.raw)
        verify_as_ever(key, signature, message)

    verify_as_ever = VerifyKey.verify
    monkeypatch.setattr("protocol.channel.signing.MappingKeyResolver", Watched)
    monkeypatch.setattr(VerifyKey, "verify", watched)
    nobodys = SigningKey.from_bytes(bytes(32))
    for key_id in ("nobody", "no.body"):  # in the usual form, and in one that the library reads
        headers = sign_request(METHOD, URL, DIGEST, nobodys, key_id, created=NOW, nonce=NONCE)
        refused(headers, "does not match")
    assert tried == [nobodys.public.to_bytes()] * 2


def test_signature_moved_to_another_nonce_or_time_is_refused() -> None:
    headers = signed()
    for old, new in ((NONCE, NONCE[::-1]), (str(NOW), str(NOW - 1))):
        value = dict(headers)["Signature-Input"].replace(old, new)
        refused(replaced(headers, "signature-input", value), "does not match")


def test_every_bit_class_of_the_signature_counts() -> None:
    headers = signed()
    raw = base64.b64decode(dict(headers)["Signature"].removeprefix("moiety=:").removesuffix(":"))
    for bit in range(0, 512, 41):
        bad = bytearray(raw)
        bad[bit // 8] ^= 1 << (bit % 8)
        refused(replaced(headers, "signature", f"moiety=:{base64.b64encode(bad).decode()}:"), "does not match")
    short = base64.b64encode(raw[:-1]).decode()
    refused(replaced(headers, "signature", f"moiety=:{short}:"), "does not match")


@pytest.mark.parametrize("name", ["signature-input", "signature"])
@pytest.mark.parametrize(
    "value", ["", "moiety", "moiety=5", "other=(", "moiety=:!:", "é", "moiety=()", "\x00", "((((("]
)
def test_malformed_headers_are_refused(name: str, value: str) -> None:
    refused(replaced(signed(), name, value), "refused|cover exactly")


def test_several_signatures_are_refused() -> None:
    second = dict(by_hand(parameters=PARAMETERS.replace("moiety/2", "other")))
    headers = signed()
    for name in ("signature-input", "signature"):
        own = {key.lower(): value for key, value in headers}[name]
        headers = (*replaced(headers, name, f"{own}, {second[name].replace('moiety=', 'second=', 1)}"),)
    refused(headers, "Multiple signatures")


def test_labels_must_agree() -> None:
    headers = signed()
    other = dict(headers)["Signature"].replace("moiety=", "other=")
    refused(replaced(headers, "signature", other), "different labels")


@pytest.mark.parametrize(("now", "age"), [(NOW + 60, 60), (NOW, 0), (NOW - 5, -5)])
def test_age_within_the_limits(now: int, age: int) -> None:
    assert now - verify(signed(), now).created == age


def test_old_and_future_requests_are_refused() -> None:
    refused(signed(), "signed 61 s ago, at most 60 s", now=NOW + 61)
    refused(signed(), "signed 6 s in the future, at most 5 s", now=NOW - 6)
    refused(by_hand(parameters=PARAMETERS.replace(str(NOW), "999999999999999")), "in the future")
    refused(by_hand(parameters=PARAMETERS.replace(str(NOW), "-5")), "s ago")


def test_limits_are_arguments() -> None:
    headers = signed()
    assert verify_request(METHOD, URL, headers, KEYS.get, NOW + 600, max_age_s=600).created == NOW
    assert verify_request(METHOD, URL, headers, KEYS.get, NOW - 30, max_skew_s=30).created == NOW
    with pytest.raises(BadSignature, match="at most 10 s"):
        verify_request(METHOD, URL, headers, KEYS.get, NOW + 11, max_age_s=10)


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
