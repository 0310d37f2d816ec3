"""What liars gained in one study, as a line of JSON."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

from harness.adversaries.gaining.lies import Lie

FORMAT: Final = "moiety-lies/1"


class LyingLine(BaseModel):
    """One study with liars, beside the same study, seed and liars without a lie.

    ``lie`` None is that study itself. ``weight`` is the liars' share of a sum, the mean over released rounds;
    ``moved`` how far the requester's last model is from the honest study's, ``path`` how far that one went from the
    first model. ``log_loss`` is on the requester's test part, ``honest_log_loss`` of the honest study.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: str = FORMAT
    study: str
    variant: str
    setting: str
    requester: str
    seed: int
    sites: int
    liars: tuple[str, ...]
    lie: Lie | None
    rule: str
    end: str
    released: int
    clip_norm: float
    weight: float
    moved: float
    path: float
    log_loss: float
    honest_log_loss: float
    seconds: float
    versions: dict[str, str]

    @property
    def harm(self) -> float:
        """How much log-loss the lie cost the requester."""
        return self.log_loss - self.honest_log_loss
