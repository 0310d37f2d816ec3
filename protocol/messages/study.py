"""A study, fixed before its first round; its start and end, receipts for its deletion (docs/protocol.md 1, 2, 10)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from math import prod
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from protocol.channel.message import MOST_ROUNDS, Digest, Message, PartyName, StudyName, Version, omitted
from protocol.errors import Clause
from protocol.messages.model import CLASSES, Buffers, ModelSpec, TaskKind, TaskSpec, TrainingSpec
from protocol.messages.purpose import USUAL_PROTECTION, EndCause, Purpose, StudyProtection
from protocol.messages.specifications import (
    MOST_RANKING_ROUNDS,
    MOST_SUMMARY_ROUNDS,
    NO_SERVERS_NOISE,
    PrivacySpec,
    RankingSpec,
    RuleName,
    RuleSpec,
    SummarySpec,
    require_public_preparation,
)
from protocol.messages.table import TableSchema
from protocol.parameters import TAG_COORDINATES, WORD_BITS, Needs, StudyParameters
from protocol.ranking import LONGEST, ranking_parameters, vector_length
from protocol.rules.interface import MOST_MEASURE_TRIES
from protocol.summary.layout import Layout, summary_parameters

MOST_COUNTS_ROUNDS: Final = 8
"""The most tries to sum a study's class counts; those rounds do not count among its rounds."""


class Study(Message):
    """Everything the parties agree on before round 1; its digest binds every later message.

    Signed by the requester and countersigned by both servers. ``seed`` fixes version 0 of the model, so that
    simulations compare; without it the study's digest does (protocol.shared_model). It fixes nothing else at a real
    site. ``pretrained_digest`` pins another version 0, for sites whose policy lets it. The weight list changes at most
    every ``list_every`` sums (section 13); the rule's own weights go on in full precision in between. With ``ranking``
    the sites are ranked once, before the first update. ``task`` says what is predicted: classes, unless it is given.
    With ``tags`` vectors that are summed end with two pairs of tags, one checked before anything is served (section
    15). ``data_schema`` says what table the examples are made from, ``summary`` which sums of it are opened first.
    A study of 0 ``rounds`` is a summary alone. With ``privacy`` every site adds noise to its updates (section 19).
    """

    KIND: ClassVar[str] = "study"
    version: Version = "moiety/2"
    name: StudyName
    roster_digest: Digest
    parameters: StudyParameters
    rule: RuleSpec
    model: ModelSpec
    training: TrainingSpec
    rounds: Annotated[int, Field(ge=0, le=MOST_ROUNDS)]
    list_every: Annotated[int, Field(ge=1, le=10**6)] = 1
    round_deadline_s: Annotated[float, Field(gt=0, le=7 * 86400)] = 600.0
    correlation_source: Literal["ot", "dealer"] = "ot"
    protection: StudyProtection = USUAL_PROTECTION
    ranking: RankingSpec | None = None
    seed: int | None = None
    pretrained_digest: Digest | None = None
    task: TaskSpec = omitted(CLASSES)
    data_schema: TableSchema | None = omitted()
    summary: SummarySpec | None = omitted()
    tags: bool = omitted(False)
    privacy: PrivacySpec | None = omitted()

    @property
    def least_weight(self) -> float:
        """The smallest weight that a site can have where nobody hands out others: one on the grid, or exactly 1."""
        return 1 / self.parameters.weight_grid if self.rule.name.self_weighted else 1.0

    @property
    def record_noise(self) -> PrivacySpec | None:
        """The noise that every site adds itself, None where it adds none (docs/protocol.md 19)."""
        return self.privacy if self.privacy is not None and self.privacy.unit == "record" else None

    @property
    def unsupported(self) -> str | None:
        """The reason why no party runs this study any more, with a remedy; None for one that can run.

        Older versions ran it, so its records stay readable once it has ended.
        """
        return NO_SERVERS_NOISE if self.privacy is not None and self.record_noise is None else None

    @property
    def model_dimension(self) -> int:
        """Number of shared parameters of the model: the dimension without the coordinate of a site's own weight."""
        return sum(prod(layer.shape) for layer in self.model.layers)

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        expected = self.model_dimension + self.rule.name.self_weighted
        if expected != self.parameters.dimension:
            own = " and one for each site's own weight" if self.rule.name.self_weighted else ""
            raise ValueError(
                f"the layers hold {self.model_dimension} parameters{own}, so parameters.dimension must be {expected}, "
                f"found {self.parameters.dimension}"
            )
        if self.rule.name.counts_classes and self.model.classes > self.parameters.dimension:
            raise ValueError(
                f"rule {self.rule.name.value!r} sums {self.model.classes} class counts in vectors of "
                f"{self.parameters.dimension} coordinates: take a model with more parameters"
            )
        self._require_task()
        if not self.protection.plan.opens:
            self._require_averaging()
        self._require_ring()
        if self.ranking is not None:
            self._require_rankable()
        if self.data_schema is not None:
            self._require_schema(self.data_schema)
        if self.model.buffers is Buffers.SHARED and "adaptivity" in self.rule.name.declared.options:
            raise ValueError(
                f"buffers = 'shared' are averaged, and rule {self.rule.name.value!r} takes another step than the "
                "average, by which a variance can fall below 0: take buffers = 'local', or a rule that averages"
            )
        if self.summary is not None:
            _ = self.summary_layout
        elif not self.rounds:
            raise ValueError("rounds is 0, and there is no [summary] either: a study does one or the other")
        if self.record_noise is not None:
            self._require_covered()
        if self.rule.erosion_applies == "same_round":
            raise ValueError(
                "erosion_applies='same_round' exists in plain simulation only: sites scale before they share"
            )
        return self

    def _require_ring(self) -> None:
        """Tags are of shares, in the ring of 64 bits; a ring of 48 is of shares, without tags."""
        if self.tags and self.protection.plan.keyed:
            raise ValueError(
                "protection 'ckks' has check values of its own in every ciphertext: leave tags out, or take 'shares'"
            )
        if self.parameters.ring_bits == WORD_BITS:
            return
        if self.tags:
            raise ValueError("tags are products in the ring of 64 bits: leave tags out, or take ring_bits = 64")
        if self.protection.plan.keyed:
            raise ValueError("protection 'ckks' shares no updates: leave ring_bits out, or take 'shares'")

    def _require_task(self) -> None:
        """The model has the outputs that the task takes, and nothing of classes is asked where there are none."""
        kind = self.task.kind
        self.task.require_outputs(self.model.classes)
        if kind is TaskKind.OWN and self.model.kind != "plugin":
            raise ValueError("task 'own' takes loss and metrics from a plug-in: set model.kind to 'plugin'")
        if kind is TaskKind.CLASSES:
            return
        for asked, what in (
            (self.rule.name.counts_classes, f"rule {self.rule.name.value!r} counts classes"),
            (self.ranking is not None, "ranking fits a model to classes"),
            (self.training.class_weights != "none", "class_weights weigh classes"),
        ):
            if asked:
                raise ValueError(f"{what}, and task {kind.value!r} has none: leave it out, or take task 'classes'")

    def _require_covered(self) -> None:
        """Nothing about a record is opened without noise, and nothing of one leaves a site but by noised gradients."""
        for what in self._uncovered():
            raise ValueError(f"privacy: {what}")
        if self.data_schema is not None:
            require_public_preparation(self.data_schema)

    def _uncovered(self) -> Iterator[str]:
        rule, model, training = self.rule.name, self.model, self.training
        if rule.declared.alone:
            yield f"rule {rule.value!r} shares nothing: leave privacy out"
        if self.ranking is not None:
            yield "a ranking opens a loss of each site's own model: leave ranking out"
        if self.summary is not None:
            yield "a summary opens sums without noise: leave summary out"
        if rule.counts_classes:
            yield f"rule {rule.value!r} opens class counts without noise: take another rule"
        if rule.declared.looks_at_examples:
            yield f"rule {rule.value!r} weighs by examples as they are: take another rule"
        if model.personal:
            yield "personal layers are trained without noise: leave them out"
        if model.buffers is not None:
            yield "batch norm mixes the records of a batch: take group norm"
        if model.kind == "plugin":
            yield "what a plug-in does with records is not known: take a built-in model"
        if self.task.kind is TaskKind.SURVIVAL:
            yield "Cox's loss compares records, and each is clipped alone"
        if training.class_weights != "none":
            yield "class_weights follow from all records: take 'none'"
        if training.batches == "cycled":
            yield "batches are drawn: take batches = 'shuffled'"

    def _require_averaging(self) -> None:
        allowed = ", ".join(repr(name.value) for name in RuleName if name.only_averages)
        if not self.rule.name.only_averages:
            raise ValueError(
                f"protection 'ckks' adds ciphertexts and opens nothing about single sites, so rule "
                f"{self.rule.name.value!r} cannot run under it: take one of {allowed}, or protection 'shares'"
            )
        if self.rule.needs is not Needs.NOTHING:
            raise ValueError(
                f"norm_bound opens {self.rule.needs.value} to the requester, which protection 'ckks' cannot: leave it "
                "out, or take protection 'shares'"
            )

    def _require_rankable(self) -> None:
        if not self.protection.plan.opens:
            raise ValueError("protection 'ckks' opens nothing about single sites: leave ranking out, or take 'shares'")
        if self.rule.name is RuleName.LOCAL:
            raise ValueError("rule 'local' has no contributor to rank: leave ranking out, or take another rule")
        if not self.model.inputs:
            raise ValueError("ranking needs the shape of one example: fill in model.inputs, or leave ranking out")
        if self.ranking_length > LONGEST:
            raise ValueError(
                f"ranking {prod(self.model.inputs)} features and {self.model.classes} classes takes vectors of "
                f"{self.ranking_length} coordinates, at most {LONGEST} can be opened exactly (about 500 features): "
                "leave ranking out, or take fewer features"
            )

    def _require_schema(self, schema: TableSchema) -> None:
        """The model takes the features that the schema makes, under its names."""
        made, model = schema.feature_names, self.model
        if model.inputs != (len(made),):
            raise ValueError(f"the schema makes {len(made)} features, so model.inputs must be [{len(made)}]")
        if model.feature_names not in ((), made):
            raise ValueError("model.feature_names are not what the schema makes: leave them out, they follow from it")
        if schema.class_names and model.class_names not in ((), schema.class_names):
            raise ValueError("model.class_names are not the target's: leave them out, they follow from the schema")
        kind = self.task.kind
        if kind is TaskKind.OWN:
            return
        if kind not in schema.tasks:
            fitting = " or ".join(repr(one.value) for one in schema.tasks)
            raise ValueError(f"the schema's targets are those of task {fitting}, the study's is {kind.value!r}")
        if model.classes != schema.outputs:
            raise ValueError(f"the schema's targets take a model of {schema.outputs} outputs, found {model.classes}")

    @property
    def summary_layout(self) -> Layout:
        """The layout of a summary's vectors. Raises: ValueError where the study has none, or an impossible one"""
        if self.summary is None or self.data_schema is None:
            raise ValueError("a summary is of the columns of a [schema]: give one, or leave [summary] out")
        return self.summary.layout(self.data_schema)

    @property
    def ranking_length(self) -> int:
        """Coordinates of a ranking's vectors: every feature and the constant 1, with one output per class."""
        return vector_length(prod(self.model.inputs) + 1, self.model.classes)

    def parameters_in(self, purpose: Purpose) -> StudyParameters:
        """The numbers of a round: a ranking's vectors have their own length and clip norm, and are not sketched; those
        of a summary are integers.
        """
        if purpose is Purpose.SUMMARY and self.summary is not None:
            return summary_parameters(
                self.summary_layout.length,
                least_contributors=self.parameters.least_contributors,
                assumed_colluders=self.parameters.assumed_colluders,
            )
        if purpose is not Purpose.RANKING or self.ranking is None:
            return self.parameters
        return ranking_parameters(
            self.ranking_length,
            self.ranking.clip_norm,
            least_contributors=self.parameters.least_contributors,
            assumed_colluders=self.parameters.assumed_colluders,
        )

    def tagged(self, purpose: Purpose) -> bool:
        """Return whether vectors of rounds of this purpose end with tags: those that are summed, where the study says
        so.
        """
        return self.tags and purpose.plan.summed

    def shared_length(self, purpose: Purpose) -> int:
        """Return the length of the vectors that sites share in rounds of this purpose, with their tags."""
        return self.parameters_in(purpose).dimension + (TAG_COORDINATES if self.tagged(purpose) else 0)

    def last_round(self, purpose: Purpose) -> int:
        """The largest number that a round of this purpose can have; 0: the study has none.

        Sites are ranked first, then summaries are summed, then class counts, then updates. A rule that measures
        updates has each sum followed by one measurement at most, and a few tries before the first.
        """
        rankings = 0 if self.ranking is None else MOST_RANKING_ROUNDS
        summaries = 0 if self.summary is None else MOST_SUMMARY_ROUNDS
        counts = MOST_COUNTS_ROUNDS if self.rule.name.counts_classes else 0
        measures = self.rounds > 0 and self.rule.name.declared.measures is not Needs.NOTHING
        updates = rankings + summaries + counts + self.rounds if self.rounds else 0
        if measures:
            updates += MOST_MEASURE_TRIES + self.rounds
        return {
            Purpose.RANKING: rankings,
            Purpose.SUMMARY: rankings + summaries if summaries else 0,
            Purpose.COUNTS: rankings + summaries + counts if counts else 0,
            Purpose.MEASURE: updates if measures else 0,
            Purpose.UPDATE: updates,
        }[purpose]


class ReadyNotice(Message):
    """A site says that it holds its data and model and can be listed from now on."""

    KIND: ClassVar[str] = "ready"
    study_digest: Digest
    site: PartyName


class StudyEndState(StrEnum):
    COMPLETED = "completed"
    LOCAL_ONLY = "local_only"
    CANCELLED = "cancelled"
    FAILED = "failed"


class StudyEnd(Message):
    """The requester ends the study, in a named state; ``reason`` is for people.

    ``clause`` is the demand that no further weight list meets, ``site`` the one that refuses the study.
    """

    KIND: ClassVar[str] = "study_end"
    study_digest: Digest
    state: StudyEndState
    cause: EndCause
    clause: Clause | None = None
    site: PartyName | None = None
    reason: Annotated[str, Field(max_length=500)]


class StudyState(StrEnum):
    OPEN = "open"
    PAUSED = "paused"
    COMPLETED = "completed"
    LOCAL_ONLY = "local_only"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self not in (StudyState.OPEN, StudyState.PAUSED)


MOST_FILES = 200_000


class DeletedFile(Message):
    """One file, by its path below the study's folder, its length and SHA-256 as they were."""

    KIND: ClassVar[str] = "deleted_file"
    path: Annotated[str, Field(min_length=1, max_length=300)]
    size_bytes: Annotated[int, Field(ge=0)]
    sha256: Digest


class DeletionReceipt(Message):
    """``site`` deleted ``files`` of a study at ``at_s`` (Unix seconds) because ``person`` said so, for ``reason``.

    It says what was deleted in that folder; of backups and of exported models it says nothing.
    """

    KIND: ClassVar[str] = "deletion_receipt"
    study: StudyName
    study_digest: Digest
    site: PartyName
    person: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(max_length=2000)]
    at_s: Annotated[int, Field(ge=0)]
    files: Annotated[tuple[DeletedFile, ...], Field(max_length=MOST_FILES)]


class ServerDeletionReceipt(Message):
    """``operator``'s server deleted ``files`` of a study at ``at_s`` (Unix seconds) because ``person`` said so.

    ``letters`` and ``answers`` are rows of its database that went with them; ``rounds`` counts the attempts whose seeds
    and nonces were taken out. What every party signed stays there: receipts for what sites sent are what a site's
    memory of its sums is compared with.
    """

    KIND: ClassVar[str] = "server_deletion_receipt"
    study: StudyName
    study_digest: Digest
    operator: PartyName
    person: Annotated[str, Field(min_length=1, max_length=200)]
    reason: Annotated[str, Field(max_length=2000)]
    at_s: Annotated[int, Field(ge=0)]
    files: Annotated[tuple[DeletedFile, ...], Field(max_length=MOST_FILES)]
    letters: Annotated[int, Field(ge=0)]
    answers: Annotated[int, Field(ge=0)]
    rounds: Annotated[int, Field(ge=0)]
