"""A whole run under CKKS in one process: the plain run's loop around encryption, sum and opening (docs/protocol.md 11).

Class counts go through the share path, exactly as under shares. SEAL draws its noise itself: two runs from one seed
differ by it, within the stated error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain

from client_agent.learning.flat_vector import layer_sizes
from harness.datasets.site_data import SiteData
from harness.engine.correlations import SourceName
from harness.engine.history import RunHistory
from harness.engine.loop import run_rounds
from harness.engine.run_state import EVERYBODY, AfterRound, Attendance, Conditions, Progress
from harness.engine.secure import SecureSum, run_secure, secure_sum
from harness.engine.site_updates import ClippedUpdate
from harness.engine.summing import Counted, RoundInputs, Summed
from host.memory_file import MemoryFile
from protocol.arithmetic.fixed_point import scaling_of
from protocol.arithmetic.prg import derive
from protocol.ckks.check import SiteChecks, SumChecks
from protocol.ckks.cipher import Adder, Decryptor, Encryptor
from protocol.ckks.ciphertext import Kind, chunks_of
from protocol.ckks.parameters import CkksParameters
from protocol.ckks.scheme import Scheme, SecretKey
from protocol.ckks.streams import Scratch
from protocol.ckks.update import average, body_header, contribution
from protocol.errors import ConfigurationError
from protocol.mpc.measurement import OpenedSite
from protocol.policy.site_policy import SitePolicy
from protocol.wire.messages import Announcement, Study


def run_protected(
    study: Study,
    sites: Sequence[SiteData],
    *,
    correlation_source: SourceName | None = None,
    policy: SitePolicy | None = None,
    attendance: Attendance = EVERYBODY,
    resume: Progress | None = None,
    after_round: AfterRound = lambda progress: None,
) -> RunHistory:
    """A whole run under the protection that the study names. Raises: as :func:`run_ckks` and ``run_secure``"""
    run = run_ckks if study.protection.plan.keyed else run_secure
    return run(
        study,
        sites,
        correlation_source=correlation_source,
        policy=policy,
        attendance=attendance,
        resume=resume,
        after_round=after_round,
    )


def run_ckks(
    study: Study,
    sites: Sequence[SiteData],
    *,
    correlation_source: SourceName | None = None,
    policy: SitePolicy | None = None,
    attendance: Attendance = EVERYBODY,
    resume: Progress | None = None,
    after_round: AfterRound = lambda progress: None,
) -> RunHistory:
    """A whole run with everything but sealing, signatures and HTTP; the first of ``sites`` is the requester.

    ``correlation_source`` is for the round of class counts.

    Raises: as :func:`harness.engine.loop.run_plain`; AggregateOutOfBounds; ConfigurationError without TenSEAL, for a
            study that is not under CKKS, or too many sites
    """
    if not study.protection.plan.keyed:
        raise ConfigurationError(f"study {study.name!r} has protection {study.protection.value!r}, needed is 'ckks'")
    parameters = CkksParameters()
    parameters.require_sites(len(sites))
    shares = secure_sum(study, sites, correlation_source)
    key = Scheme(parameters).secret_key(derive(shares.seed, "ckks key"), study.digest())
    with closing(MemoryFile()) as scratch:
        return run_rounds(
            study,
            sites,
            CkksSum(study, key, scratch, shares),
            Conditions(policy=policy, attendance=attendance),
            protection="ckks",
            resume=resume,
            after_round=after_round,
        )


@dataclass(frozen=True, eq=False)
class CkksSum:
    """Sites encrypt, one server adds, sites decrypt; ``shares`` sums the class counts."""

    study: Study
    key: SecretKey = field(repr=False)
    scratch: Scratch = field(repr=False)
    shares: SecureSum = field(repr=False)

    def updates(self, inputs: RoundInputs) -> Summed:
        present = (inputs.requester, *(weight.site for weight, _ in inputs.contributed))
        judgement = inputs.judge([OpenedSite(site, True) for site in present])
        if not judgement.releases(inputs.announcement.least_contributors):
            return Summed(None, judgement)
        grid, took_part = inputs.weight_list.grid, judgement.measured.took_part
        digest = inputs.announcement.digest()
        weighed = [(inputs.requester, inputs.own, _weight(inputs.own, grid, grid))]
        weighed += [(w.site, u, _weight(u, w.numerator, grid)) for w, u in inputs.contributed if w.site in took_part]
        averaged = average(
            self._sum(weighed, digest),
            Decryptor(self.key, self.scratch),
            body_header(Kind.SUM, self.key, self.study.model_dimension),
            SumChecks(self.key, digest, [site for site, _, _ in weighed]),
            self.study.least_weight,
            self.study.parameters.clip_norm,
        )
        return Summed(averaged, judgement, sum(weight for _, _, weight in weighed))

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        return self.shares.counts(announcement, counts)

    def _sum(self, weighed: Sequence[tuple[str, ClippedUpdate, float]], digest: str) -> Iterator[bytes]:
        """The body of the sum, as server A makes it: one ciphertext of every site at a time."""
        adder = Adder(self.key.scheme, self.scratch)
        sources = [
            self._encrypted(update, weight, SiteChecks(self.key, digest, site)) for site, update, weight in weighed
        ]
        header = body_header(Kind.SUM, self.key, self.study.model_dimension)
        return chain([header.to_bytes()], (_added(adder, chunks) for chunks in zip(*sources, strict=True)))

    def _encrypted(self, update: ClippedUpdate, weight: float, checks: SiteChecks) -> Iterator[bytes]:
        """One site's ciphertexts."""
        parameters = self.study.parameters
        scaling = scaling_of(update.values, layer_sizes(self.study.model.layers), parameters, weight)
        header = body_header(Kind.CONTRIBUTION, self.key, self.study.model_dimension)
        encryptor = Encryptor(self.key, self.scratch)
        body = contribution(encryptor, header, update.values, scaling, parameters.clip_norm, checks)
        return chunks_of(body, self.key.scheme.parameters, header)


def _weight(update: ClippedUpdate, numerator: int, grid: int) -> float:
    """The site's own weight, or the listed one."""
    return numerator / grid if update.own_weight is None else update.own_weight


def _added(adder: Adder, chunks: Sequence[bytes]) -> bytes:
    for chunk in chunks:
        adder.add(chunk)
    return adder.finish()
