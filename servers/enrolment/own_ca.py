"""A certificate authority for one server and its TLS certificate, for operators without a public name or CA.

The CA is constrained to the server's own host name: a site that trusts it lets it vouch for nobody else's server.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protocol.errors import ConfigurationError

_CA_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 397
_EARLY: Final = timedelta(hours=1)
"""A margin for clocks that are a little behind."""


@dataclass(frozen=True)
class OwnCa:
    """PEM texts; the key can make certificates for the host, and belongs on no machine but the operator's."""

    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True)
class TlsFiles:
    """PEM texts of what a server shows, and of the private key for it."""

    certificate: str
    key: str = field(repr=False)


def new_ca(operator: str, host: str, now: datetime) -> OwnCa:
    """A CA of ten years that may vouch for ``host`` alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Moiety CA of {operator}")
    until = now + timedelta(days=_CA_DAYS)
    builder = _builder(name, name, key.public_key(), now, until)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    ).add_extension(x509.NameConstraints([_constraint(host)], None), critical=True)
    return OwnCa(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode(), _pem(key))


def issue(ca: OwnCa, host: str, now: datetime) -> TlsFiles:
    """A certificate for ``host``, with a new key. Raises: ConfigurationError, when these files are no CA"""
    try:
        issuer = x509.load_pem_x509_certificate(ca.certificate.encode())
        signs = load_pem_private_key(ca.key.encode(), None)
    except ValueError as error:
        raise ConfigurationError(f"ca.pem and ca-key.pem are not a CA and its key: {error}") from None
    if not isinstance(signs, ec.EllipticCurvePrivateKey) or signs.public_key() != issuer.public_key():
        raise ConfigurationError("ca-key.pem is not the key of ca.pem")
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + timedelta(days=CERTIFICATE_DAYS), issuer.not_valid_after_utc)
    builder = _builder(_name(host), issuer.subject, key.public_key(), now, until)
    builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signs.public_key()), critical=False
    )
    return TlsFiles(builder.sign(signs, hashes.SHA256()).public_bytes(Encoding.PEM).decode(), _pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now.astimezone(UTC) - _EARLY).not_valid_after(until.astimezone(UTC))


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _constraint(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_network(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
