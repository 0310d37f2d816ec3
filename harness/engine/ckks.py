"""Sums under CKKS in one process: sites encrypt, one server adds, sites decrypt (docs/protocol.md 11).

Class counts are summed as shares. SEAL draws its noise itself: two runs from one seed differ by it, within bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain

from harness.engine.secure import SecureSum
from harness.engine.site_updates import ClippedUpdate
from harness.engine.summing import Counted, RoundInputs, Summed
from host.memory_file import MemoryFile
from protocol.arithmetic.prg import derive
from protocol.ckks.cipher import Adder
from protocol.ckks.ciphertext import Kind, chunks_of
from protocol.ckks.parameters import CkksParameters
from protocol.ckks.scheme import Scheme, SecretKey
from protocol.ckks.update import body_header
from protocol.mpc.measurement import OpenedSite
from protocol.protection.ckks import Ciphertexts, open_sum
from protocol.protection.interface import AtSite, UnderKey
from protocol.wire.messages import Announcement, Study


def ckks_sum(study: Study, sites: int, shares: SecureSum) -> CkksSum:
    """Raises: ConfigurationError without TenSEAL, or for too many sites"""
    parameters = CkksParameters()
    parameters.require_sites(sites)
    return CkksSum(study, Scheme(parameters).secret_key(derive(shares.seed, "ckks key"), study.digest()), shares)


@dataclass(frozen=True, eq=False)
class CkksSum:
    """``shares`` sums the class counts."""

    study: Study
    key: SecretKey = field(repr=False)
    shares: SecureSum = field(repr=False)

    def updates(self, inputs: RoundInputs) -> Summed:
        present = (inputs.requester, *(weight.site for weight, _ in inputs.contributed))
        judgement = inputs.judge([OpenedSite(site, True) for site in present])
        if not judgement.releases(inputs.announcement.least_contributors):
            return Summed(None, judgement)
        grid, took_part = inputs.weight_list.grid, judgement.measured.took_part
        weighed = [(inputs.requester, inputs.own, inputs.own.weight(1.0))]
        weighed += [(w.site, u, u.weight(w.numerator / grid)) for w, u in inputs.contributed if w.site in took_part]
        summed, sites = inputs.announcement.digest(), [site for site, _, _ in weighed]
        with closing(MemoryFile()) as adds, closing(MemoryFile()) as opens:
            pieces = self._sum(weighed, inputs.announcement, Adder(self.key.scheme, adds))
            averaged = open_sum(pieces, self.study, summed, sites, self.key, opens)
        return Summed(averaged, judgement, sum(weight for _, _, weight in weighed))

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        return self.shares.counts(announcement, counts)

    def _sum(
        self, weighed: Sequence[tuple[str, ClippedUpdate, float]], announcement: Announcement, adder: Adder
    ) -> Iterator[bytes]:
        """The body of the sum, as server A makes it: one ciphertext of every site at a time."""
        header, of = (body_header(kind, self.key, self.study.model_dimension) for kind in (Kind.SUM, Kind.CONTRIBUTION))
        under, sources = UnderKey(self.key, lambda: closing(MemoryFile()), BytesIO), []
        for site, update, weight in weighed:
            at = AtSite(self.study, site, self.shares.roster, under)
            encoded = Ciphertexts().encode(at, announcement, update.values, weight, b"")
            sources.append(chunks_of(encoded.pieces, self.key.scheme.parameters, of))
        return chain([header.to_bytes()], map(adder.sum, zip(*sources, strict=True)))
