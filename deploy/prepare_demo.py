"""Write what deploy/compose.demo.yaml mounts: keys, roster, certificates, settings and data of four hospitals.

One place makes everybody's keys here, for a demonstration only; in a real federation every party makes its own.
Usage: ``python -m deploy.prepare_demo FOLDER`` in the project's root; needs ``pip install 'moiety[harness]'``.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import trustme

from client_agent.learning.names import DataNames
from harness.datasets.bundled import breast_cancer_five_hospitals
from harness.datasets.site_data import Federation, SiteData, write_site_folder
from harness.engine.parties import OPERATOR_NAMES, Parties, SiteEntry, make_parties
from harness.federation.processes import toml_lines
from protocol.roster.keyfile import dump_party_keys, dump_roster
from protocol.sharing import Side

PORT: Final = 8443
STUDY_FILE: Final = Path(__file__).with_name("study.demo.toml")
_SITES: Final = 4
_DATA_SEED: Final = 0


def demo_sites() -> tuple[SiteData, ...]:
    """The requester and three contributors."""
    return _federation().sites


def _federation() -> Federation:
    whole = breast_cancer_five_hospitals(_DATA_SEED)
    return replace(whole, sites=whole.sites[:_SITES])


def prepare(folder: Path, urls: dict[Side, str] | None = None) -> Parties:
    """One folder per party below ``folder``, which only its owner may enter: the containers' user is another one.

    ``urls``: where sites call the servers, in place of their containers' names and port.
    """
    folder.mkdir(parents=True, mode=0o700)
    federation = _federation()
    sites = federation.sites
    urls = urls or {side: f"https://{name}:{PORT}" for side, name in OPERATOR_NAMES.items()}
    entries = [SiteEntry(site.name, len(site.train)) for site in sites]
    parties = make_parties("demo", sites[0].name, entries, os.urandom(32), urls)
    authority = trustme.CA()
    for keys in parties.keys:
        place = folder / keys.name
        place.mkdir()
        (place / "keys.toml").write_text(dump_party_keys(keys), encoding="utf-8")  # see entrypoint.sh for who reads it
        (place / "roster.toml").write_text(dump_roster(parties.roster), encoding="utf-8")
        authority.cert_pem.write_to_path(str(place / "ca.pem"))
    for side in Side:
        _write_server(folder / OPERATOR_NAMES[side], side, urls, authority)
    for site in sites:
        _write_site(folder / site.name, site, federation.names)
    shutil.copy(STUDY_FILE, folder / sites[0].name / "study.toml")
    return parties


def _write_server(place: Path, side: Side, urls: dict[Side, str], authority: trustme.CA) -> None:
    certificate = authority.issue_cert(OPERATOR_NAMES[side])
    certificate.private_key_pem.write_to_path(str(place / "tls-key.pem"))
    (place / "tls-certificate.pem").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    settings = {
        "side": side.value,
        "host": "0.0.0.0",  # noqa: S104 - inside a container; who reaches it is the networks' business
        "port": PORT,
        "public_url": urls[side],
        "peer_url": urls[side.other],
        "roster": "roster.toml",
        "keys": "keys.toml",
        "data_dir": "/var/lib/moiety",
        "tls_certificate": "tls-certificate.pem",
        "tls_key": "tls-key.pem",
        "peer_ca": "ca.pem",
    }
    (place / "settings.toml").write_text(toml_lines(settings), encoding="utf-8")


def _write_site(place: Path, site: SiteData, names: DataNames) -> None:
    write_site_folder(site, place / "data", names)
    settings = {
        "site": site.name,
        "roster": "roster.toml",
        "keys": "keys.toml",
        "data": "data",
        "state_dir": "/var/lib/moiety",
        "ca": "ca.pem",
        "device": "cpu",
        "approve": "policy",  # nobody is asked in a demo
    }
    (place / "settings.toml").write_text(toml_lines(settings), encoding="utf-8")


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
    sys.stdout.write(f"{sys.argv[1]}: keys, settings and data for deploy/compose.demo.yaml, for a demonstration only\n")
