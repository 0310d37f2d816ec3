"""Networks that a study names instead of describing, and layers that it does not train (docs/protocol.md 1)."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, model_validator

from protocol.wire.message import Digest, Message

_LARGEST: Final = 2**20
MOST_ENTRIES: Final = 64
_FETCHES: Final = re.compile(r"pretrain|weights|checkpoint|url|hub|cache|file|(?<!drop_)path$|dir$")
"""Arguments with which libraries fetch or read something."""

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_+-]{0,64}$")]
Whole: TypeAlias = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
Real: TypeAlias = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]
Scalar: TypeAlias = bool | Whole | Real | Word
Entries: TypeAlias = Annotated[tuple[Scalar, ...], Field(max_length=MOST_ENTRIES)]
Value: TypeAlias = Scalar | Annotated[tuple[Scalar | Entries, ...], Field(max_length=MOST_ENTRIES)]


class Argument(Message):
    """One argument by name: a number, a word, a switch, or a list of those, at most two deep."""

    KIND: ClassVar[str] = "argument"
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    value: Value

    @model_validator(mode="after")
    def _only_sizes(self) -> Argument:
        if _FETCHES.search(self.name):
            raise ValueError(f"argument {self.name!r} has a library read or fetch something: leave it out")
        return self


class ArchitectureSpec(Message):
    """A network of a library by its class's name and arguments, in one version of that library.

    No code of the requester is in it: every site makes the network with its own copy of the library, if its settings
    list the architecture.
    """

    KIND: ClassVar[str] = "architecture"
    library: Literal["monai"]
    library_version: Annotated[str, Field(pattern=r"^[0-9][0-9A-Za-z.+-]{0,31}$")]
    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
    arguments: Annotated[tuple[Argument, ...], Field(max_length=MOST_ENTRIES)] = ()

    @property
    def listed_as(self) -> str:
        """As a site's settings list it."""
        return f"{self.library}.{self.name}"

    @model_validator(mode="after")
    def _each_once(self) -> ArchitectureSpec:
        names = [argument.name for argument in self.arguments]
        if len(set(names)) != len(names):
            raise ValueError("architecture: every argument stands once")
        return self


class FrozenSpec(Message):
    """Layers that no round trains: every site has them itself, and ``values_digest`` says that all have the same.

    ``trainable`` are the beginnings of the names of the layers that are trained, ``weights`` the file with the values
    of all others; a plug-in says both itself, and then neither is here.
    """

    KIND: ClassVar[str] = "frozen"
    values_digest: Digest
    trainable: Annotated[tuple[str, ...], Field(max_length=MOST_ENTRIES)] = ()
    weights: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.safetensors$")] | None = None
