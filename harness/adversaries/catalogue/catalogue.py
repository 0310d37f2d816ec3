"""Every attack that can be run by its name."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Final

from harness.adversaries.catalogue.attack import Attack
from harness.adversaries.catalogue.by_network.altered import altered_requests
from harness.adversaries.catalogue.by_network.edge import floods_at_the_edge
from harness.adversaries.catalogue.by_network.enrolment import enrolments
from harness.adversaries.catalogue.by_network.made_up import made_up_answers
from harness.adversaries.catalogue.by_network.outside import outside_attacks
from harness.adversaries.catalogue.by_network.reading import reading_proxies
from harness.adversaries.catalogue.by_network.requests import hostile_requests
from harness.adversaries.catalogue.by_network.sessions import in_a_session
from harness.adversaries.catalogue.by_network.whole_studies import whole_studies
from harness.adversaries.catalogue.by_requester.data_sums import sums_of_data
from harness.adversaries.catalogue.by_requester.declined import declined_lists
from harness.adversaries.catalogue.by_requester.lists import hostile_lists
from harness.adversaries.catalogue.by_requester.measured import more_measurements
from harness.adversaries.catalogue.by_requester.messages import hostile_messages
from harness.adversaries.catalogue.by_requester.models import crafted_models
from harness.adversaries.catalogue.by_requester.more_classes import more_classes
from harness.adversaries.catalogue.by_requester.queries import chosen_queries
from harness.adversaries.catalogue.by_requester.retries import retries
from harness.adversaries.catalogue.by_requester.sums import subtractions
from harness.adversaries.catalogue.by_servers.altered_sums import altered_sums
from harness.adversaries.catalogue.by_servers.ckks_sums import forged_ciphertext_sums
from harness.adversaries.catalogue.by_servers.curious import curious_servers
from harness.adversaries.catalogue.by_servers.ends import second_ends
from harness.adversaries.catalogue.by_servers.falsified import falsified_measurements
from harness.adversaries.catalogue.by_servers.forks import forked_views
from harness.adversaries.catalogue.by_servers.frames import hostile_frames
from harness.adversaries.catalogue.by_servers.helped import helped_servers
from harness.adversaries.catalogue.by_servers.long_answers import long_answers
from harness.adversaries.catalogue.by_servers.stored import stored_by_servers
from harness.adversaries.catalogue.by_sites.ciphertexts import hostile_ciphertexts
from harness.adversaries.catalogue.by_sites.crowds import crowds
from harness.adversaries.catalogue.by_sites.exact_counts import exact_counts
from harness.adversaries.catalogue.by_sites.flooding import floods
from harness.adversaries.catalogue.by_sites.held_parts import held_parts, held_parts_of_ciphertexts
from harness.adversaries.catalogue.by_sites.long_updates import long_updates
from harness.adversaries.catalogue.by_sites.poisoning import poisonings
from harness.adversaries.catalogue.by_sites.shares import hostile_shares
from harness.adversaries.catalogue.by_sites.vectors import vector_attacks
from harness.adversaries.catalogue.by_sites.weights import own_weights
from harness.adversaries.catalogue.by_sites.words import words_of_others
from harness.adversaries.catalogue.tags import tagged_sums
from protocol.errors import ConfigurationError

_FAMILIES: Final = (
    vector_attacks,
    hostile_shares,
    held_parts,
    floods,
    long_updates,
    own_weights,
    crowds,
    words_of_others,
    hostile_ciphertexts,
    held_parts_of_ciphertexts,
    hostile_lists,
    declined_lists,
    hostile_messages,
    subtractions,
    more_classes,
    crafted_models,
    chosen_queries,
    more_measurements,
    sums_of_data,
    exact_counts,
    curious_servers,
    stored_by_servers,
    helped_servers,
    falsified_measurements,
    altered_sums,
    forged_ciphertext_sums,
    hostile_frames,
    long_answers,
    second_ends,
    forked_views,
    outside_attacks,
    hostile_requests,
    tagged_sums,
    retries,
    reading_proxies,
    made_up_answers,
    altered_requests,
    in_a_session,
    floods_at_the_edge,
    whole_studies,
    enrolments,
    poisonings,
)
_WITH_TENSEAL: Final = (hostile_ciphertexts, held_parts_of_ciphertexts, forged_ciphertext_sums)


def has_ckks() -> bool:
    """Whether attacks on ciphertexts can be tried here: TenSEAL comes with the extra ``he`` alone."""
    return find_spec("tenseal") is not None


@cache
def catalogue() -> dict[str, Attack]:
    """Name -> attack, the families one after the other. Raises: ConfigurationError, when two have one name"""
    found: dict[str, Attack] = {}
    families = [family for family in _FAMILIES if has_ckks() or family not in _WITH_TENSEAL]
    for attack in (attack for family in families for attack in family()):
        if attack.name in found:
            raise ConfigurationError(f"two attacks are called {attack.name!r}; name one of them otherwise")
        found[attack.name] = attack
    return found
