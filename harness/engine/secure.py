"""Sums and measurements under shares in one process, around :mod:`harness.engine.rounds.secure`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from harness.datasets.site_data import SiteData
from harness.engine.parties import SiteEntry, make_parties
from harness.engine.rounds.correlations import DrawCorrelations, SourceName, correlations_from
from harness.engine.rounds.secure import SecureRound, honest
from harness.engine.site_inputs import CountsInput, SiteInput
from harness.engine.summing import Counted, RoundInputs, Summed, everybody_in_range
from protocol import release
from protocol.arithmetic.prg import derive
from protocol.arithmetic.ring import Ring
from protocol.errors import ConfigurationError
from protocol.wire.messages import Announcement, Roster, Study

TamperInRound: TypeAlias = Callable[[int, str, Ring], Ring]
"""What a site does to its encoded vector before it shares it, by round and site."""


def secure_sum(
    study: Study,
    sites: Sequence[SiteData],
    correlation_source: SourceName | None = None,
    tamper: TamperInRound | None = None,
) -> SecureSum:
    """The share path of a run in one process, every draw from the study's seed. Raises: ConfigurationError"""
    if study.seed is None:
        raise ConfigurationError("a run in one process needs study.seed, so that it can be repeated")
    seed = hashlib.sha256(f"moiety/2 in one process {study.seed} {study.digest()}".encode()).digest()
    entries = [SiteEntry(site.name, len(site.train)) for site in sites]
    roster = make_parties("in-one-process", sites[0].name, entries, derive(seed, "parties")).roster.message
    draw = correlations_from(correlation_source or study.correlation_source, derive(seed, "correlations"))
    return SecureSum(study, roster, seed, draw, tamper)


@dataclass(frozen=True, eq=False)
class SecureSum:
    """Sum and measurements under the protocol, both servers in this process."""

    study: Study
    roster: Roster
    seed: bytes = field(repr=False)
    draw: DrawCorrelations = field(repr=False)
    tamper: TamperInRound | None = None

    def updates(self, inputs: RoundInputs) -> Summed:
        parameters, grid = self.study.parameters, inputs.weight_list.grid
        own = inputs.weight_list.own_numerator
        given = [SiteInput(inputs.requester, inputs.own.shared(parameters.clip_norm), own)]
        given += [
            SiteInput(weight.site, update.shared(parameters.clip_norm), weight.numerator)
            for weight, update in inputs.contributed
        ]
        numerators = {one.site: one.numerator for one in given}
        self_weighted = self.study.rule.name.self_weighted

        def bound(released: tuple[str, ...]) -> int:
            if self_weighted:
                return release.self_weighted_bound(parameters, len(released))
            total = sum(numerators[site] for site in released)
            bounded = inputs.announcement.opens.bounds_norms
            return release.coordinate_bound(parameters, total, len(released), bounded)

        result = self._round(inputs.announcement, bound).run(given, inputs.judge, inputs.probe)
        if result.total is None:
            return Summed(None, result.judgement)
        if self_weighted:
            last = int(result.total[-1])
            sum_of_weights = release.own_weights_sum(last, parameters, len(result.released))
            release.require_clipped_sum(result.total[:-1], last, len(result.released))
            averaged = release.average_chunk(result.total[:-1], sum_of_weights, parameters)
        else:
            sum_of_weights = sum(numerators[site] for site in result.released) / grid
            averaged = release.average_chunk(result.total, sum_of_weights, parameters)
        return Summed(averaged, result.judgement, sum_of_weights)

    def counts(self, announcement: Announcement, counts: Mapping[str, tuple[int, ...]]) -> Counted:
        parameters = self.study.parameters

        def bound(released: tuple[str, ...]) -> int:
            return release.self_weighted_bound(parameters, len(released))

        given = [CountsInput(site, numbers) for site, numbers in counts.items()]
        result = self._round(announcement, bound).run(given, everybody_in_range(announcement, self.roster.requester))
        failed = () if result.judgement is None else result.judgement.failed
        if result.total is None:
            return Counted(None, failed=failed)
        totals = release.class_totals(result.total, self.study.model.classes, len(result.released))
        took_part = tuple(site for site in result.released if site != self.roster.requester)
        return Counted(totals, took_part, failed)

    def _round(self, announcement: Announcement, bound: Callable[[tuple[str, ...]], int]) -> SecureRound:
        number, tamper = announcement.round, self.tamper
        return SecureRound(
            self.roster,
            self.study.parameters,
            announcement,
            derive(self.seed, f"round {number}"),
            self.draw,
            bound,
            honest if tamper is None else lambda site, encoded: tamper(number, site, encoded),
        )
