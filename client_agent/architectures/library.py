"""Networks by name and arguments from a library that the site has installed itself.

A study says library, version, class and arguments; the site's setting ``architectures`` lists what it lets be made.
Arguments are plain values (protocol.messages.model), so nothing of the requester's runs here.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from typing import Final

from torch import nn

from client_agent.architectures.sources import ModelSources
from protocol.errors import ConfigurationError
from protocol.messages.model import ArchitectureSpec, Value
from protocol.text import printable

_MODULES: Final = {"monai": "monai.networks.nets"}


def installed_version(library: str) -> str:
    """Raises: ConfigurationError when it is not installed"""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigurationError(
            f"the study's network comes from {library}, which is not installed; install it with: "
            "pip install 'moiety[models]'"
        ) from None


def library_network(spec: ArchitectureSpec, sources: ModelSources) -> nn.Module:
    """The network with whatever values the library gives it.

    Raises: ConfigurationError when the site does not list it, has another version, or it takes no such arguments
    """
    if sources.architectures is not None and spec.listed_as not in sources.architectures:
        raise ConfigurationError(
            f"the study's network is {spec.listed_as}, which this site does not list: add it to key 'architectures' of "
            "the agent's settings to take part"
        )
    found = installed_version(spec.library)
    if found != spec.library_version:
        raise ConfigurationError(
            f"the study takes {spec.library} {spec.library_version}, installed is {found}: "
            f"pip install '{spec.library}=={spec.library_version}'"
        )
    made = getattr(importlib.import_module(_MODULES[spec.library]), spec.name, None)
    if not (inspect.isclass(made) and issubclass(made, nn.Module) and made.__module__.startswith(f"{spec.library}.")):
        raise ConfigurationError(f"{spec.library} has no network {spec.name!r} in {_MODULES[spec.library]}")
    signature = inspect.signature(made)
    arguments = {argument.name: _plain(argument.value) for argument in spec.arguments}
    fetching = {name: False for name, one in signature.parameters.items() if "pretrain" in name and one.default is True}
    try:
        signature.bind(**arguments)
        network: nn.Module = made(**arguments, **fetching)
    except Exception as error:  # whatever a library raises about values that it cannot take
        raise ConfigurationError(
            f"{spec.listed_as} cannot be made: {type(error).__name__}: {printable(str(error), 300)}; it takes "
            f"{signature}"
        ) from None
    return network


def _plain(value: Value) -> object:
    """With lists where the message has tuples, as people write them."""
    return [_plain(one) for one in value] if isinstance(value, tuple) else value
