"""Foresee whether a study's contributions fit through this site's own cap and between its quiet hours."""

from __future__ import annotations

from client_agent.quiet_hours import LARGE_TRANSFER_BYTES
from client_agent.settings import AgentSettings
from protocol.messages.contribution import content_bytes
from protocol.messages.control import Purpose, ShareKind, Study


def contribution_bytes(study: Study) -> int:
    """The content of the larger part of one contribution to a round of updates; its head adds a few kilobytes."""
    if study.protection.plan.keyed:
        return content_bytes(ShareKind.CIPHERTEXT, 1 + study.model_dimension)
    kind = ShareKind.vector_of(study.parameters.ring_bits)
    return content_bytes(kind, study.shared_length(Purpose.UPDATE))


def transfer_remarks(study: Study, settings: AgentSettings, now_s: float) -> tuple[str, ...]:
    """Describe what this site's cap and quiet hours will do to the study's rounds; nothing where they fit."""
    length, deadline_s, cap = contribution_bytes(study), study.round_deadline_s, settings.bandwidth_up_bytes_per_s
    upload_s = 0.0 if cap is None else length / cap
    size = f"a contribution to study {study.name!r} has {length / 1e6:.1f} MB"
    if not study.rounds or (cap is None and not settings.quiet_hours):
        return ()
    if upload_s > deadline_s:
        return (
            f"{size}: at bandwidth_up_bytes_per_s = {cap} it takes {upload_s:.0f} s, and a round ends after "
            f"{deadline_s:.0f} s, so this site will be in no sum: raise the cap, or ask for a longer round_deadline_s",
        )
    if not settings.quiet_hours or length <= LARGE_TRANSFER_BYTES:
        return ()
    quiet_s, free_s = settings.quiet.longest_s(now_s)
    if upload_s > free_s or free_s <= 0:
        return (f"{size}: no time between quiet hours is long enough to send it, so this site will be in no sum",)
    if quiet_s > deadline_s:
        return (
            f"{size} and waits in quiet hours, of up to {quiet_s / 3600:.1f} h; a round ends after "
            f"{deadline_s / 3600:.1f} h: in quiet hours this site is in no sum",
        )
    return ()
