"""Everything that a site's agent needs, looked at before it runs: each failure with the next step.

Sends to each server what a stranger could ask, and one signed request, the list of studies.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from cryptography import x509

from client_agent.learning.foreign_trainer import PROGRAMS, handed_on
from client_agent.learning.settings import TrainerSettings
from client_agent.settings import AgentSettings, load_settings
from client_agent.site.connections import Site
from client_agent.site.identity import load_identity
from client_agent.site.notifications import described
from client_agent.study.approval import known_studies
from client_agent.study.contribution import transfer_remarks
from host.doctor import Finding, Report, Way, failed, look_at_disk, look_at_memory, look_at_way, looked, ok, warning
from host.files import why_unreadable
from host.network import require_apart
from protocol.errors import ConfigurationError, MoietyError
from protocol.messages.control import Roster
from protocol.sharing import Side

_GIB: Final = 2**30
_LEAST_DISK_BYTES: Final = 2**26
_SOON_DAYS: Final = 30


def examine_site(config: Path) -> Report:
    """All findings about the agent with these settings."""
    try:
        settings = load_settings(config)
        proxy = settings.web_proxy
    except MoietyError as error:
        return Report(of=str(config), findings=(failed("settings", error.detail),))
    findings = [ok("settings", f"{config}: site {settings.site!r}")]
    if proxy is not None:
        password = "" if proxy.credentials is None else ", with a password"
        findings.append(ok("proxy", f"{proxy.host}:{proxy.port}{password}"))
    findings += [_versions(), looked("CA file", lambda: _of_ca(settings.ca)), *_own(settings)]
    findings.append(looked("notices", lambda: described(settings)))
    try:
        roster, _ = load_identity(settings)
    except MoietyError as error:
        return Report(of=settings.site, findings=(*findings, failed("roster and keys", error.detail)))
    findings += [*_of_roster(settings, roster), *_transfers(settings, roster)]
    return Report(of=settings.site, findings=(*findings, *_servers(settings, roster)))


def _versions() -> Finding:
    found = ", ".join(f"{name} {version(name)}" for name in ("moiety", "torch", "numpy"))
    return ok("versions", f"{found}, Python {platform.python_version()}, {ssl.OPENSSL_VERSION}")


def _of_ca(path: Path) -> str:
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"key 'ca': {path} cannot be read: {why_unreadable(path, error)}") from None
    except ValueError as error:
        raise ConfigurationError(f"{path} holds no certificates in PEM ({error}): ask the operators for it") from None
    ends = min(one.not_valid_after_utc for one in found)
    if ends < datetime.now(UTC):
        raise ConfigurationError(f"a CA in {path} ended on {ends:%Y-%m-%d}: ask the operators for the new file")
    return f"{path}: {len(found)} CA, until {ends:%Y-%m-%d} at the earliest"


def _own(settings: AgentSettings) -> Iterator[Finding]:
    yield look_at_disk("state folder", settings.state_dir, _LEAST_DISK_BYTES, 5 * _GIB)
    yield look_at_memory(2 * _GIB)
    yield looked("device", lambda: _device(settings))
    yield _data(settings)
    if settings.trainer.kind is not None:
        yield look_at_trainer(settings.trainer)


def _device(settings: AgentSettings) -> str:
    from client_agent.learning.flat_vector import pick_device

    return f"{settings.device} is {pick_device(settings.device)}"


def _data(settings: AgentSettings) -> Finding:
    """The files are there and hold what they should; whether they fit a study is seen when one is there."""
    from client_agent.learning.data import folder_names

    path = settings.data
    if not path.exists():
        return failed("data", f"key 'data': {path} does not exist", "make it with 'moiety data prepare'")
    if settings.plugin is not None:
        return ok("data", f"{path} is read by {settings.plugin.name}; tried when a study is there")
    missing = [name for name in ("train.npz", "test.npz") if not (path / name).is_file()]
    if missing:
        return failed("data", f"{path} has no {' and no '.join(missing)}", "make it with 'moiety data prepare'")
    try:
        names = folder_names(path)
    except MoietyError as error:
        return failed("data", error.detail)
    named = f"{len(names.features)} columns and {len(names.classes)} classes named"
    return ok("data", f"{path}: {named}; whether it fits a study is seen when one is there")


def _of_roster(settings: AgentSettings, roster: Roster) -> Iterator[Finding]:
    role = "the requester" if settings.site == roster.requester else "a contributor"
    contributors = len(roster.contributors)
    yield ok("roster and keys", f"{role} of federation {roster.federation!r} with {contributors} contributors")
    urls = (roster.operator_a.url or "", roster.operator_b.url or "")
    yield looked("two operators", lambda: require_apart(urls))
    policy = settings.policy
    left = contributors - policy.assumed_colluders
    found = f"{contributors} contributors less {policy.assumed_colluders} assumed to collude leave {left}"
    if left < policy.least_contributors:
        yield failed(
            "policy",
            f"{found}, {policy.least_contributors} are demanded: this site declines every round (NOT FEDERATED)",
            "lower assumed_colluders or least_contributors where that may be, or wait for more sites",
        )
    elif left == policy.least_contributors:
        yield warning("policy", f"{found}, as many as are demanded", "every contributor must be in every sum")
    else:
        yield ok("policy", f"{found}, at least {policy.least_contributors} are demanded")


def _transfers(settings: AgentSettings, roster: Roster) -> Iterator[Finding]:
    """Foresee what the cap and quiet hours will do to studies that are not over here."""
    now_s = time.time()
    if settings.quiet_hours:
        wait_s = settings.quiet.remaining_s(now_s)
        now = (
            "large transfers are sent now"
            if not wait_s
            else f"large transfers wait until {settings.quiet.said(now_s + wait_s)}"
        )
        yield ok(
            "quiet hours",
            f"{', '.join(settings.quiet_hours)}; by this machine's clock {settings.quiet.said(now_s)}; {now}",
        )
    for known in known_studies(settings, roster):
        for remark in () if known.over else transfer_remarks(known.study, settings, now_s):
            yield warning(
                "transfers", remark, "change the cap or the hours here, or ask the requester for longer rounds"
            )


def _servers(settings: AgentSettings, roster: Roster) -> Iterator[Finding]:
    for side in Side:
        operator = roster.operator(side)
        way = Way(f"server {side} ({operator.name})", operator.url or "", settings.ca, settings.web_proxy)
        found = tuple(look_at_way(way))
        yield from found
        if any(one.check.endswith("answer") and not one.fix for one in found):
            yield looked(f"{way.name}: this site's key", partial(_signed, settings, side))


def _signed(settings: AgentSettings, side: Side) -> str:
    with Site(settings) as site:
        studies = site.clients[side].studies().studies
    return f"taken; {len(studies)} studies are there"


_CHECK: Final = "trainer"
_LOADS_WITHIN_S: Final = 60.0
_INSTALLED_BY: Final = {"flower": "flwr", "nvflare": "nvflare", "python": "numpy"}


def look_at_trainer(settings: TrainerSettings) -> Finding:
    """Look whether a round could be begun; that the code trains the study's model is tried when a study is there."""
    for key, path in (("python", settings.python), ("program", settings.program)):
        if path is None or not path.is_file():
            return failed(_CHECK, f"key 'trainer.{key}': {path} is no file", "correct the path, or install it there")
    try:
        said = _asked(settings)
    except OSError as error:
        return failed(
            _CHECK, f"key 'trainer.python': {settings.python}: {error.strerror}", "name an interpreter of Python"
        )
    except subprocess.TimeoutExpired:
        return failed(
            _CHECK,
            f"{settings.program} was not loaded within {_LOADS_WITHIN_S:g} s",
            "train in the function, not at import",
        )
    if "found" not in said:
        install = f"{settings.python} -m pip install {_INSTALLED_BY[settings.kind or 'python']}"
        fix = install if said["wrong"].startswith("ModuleNotFoundError") else "mend it; it is this site's own code"
        return failed(_CHECK, f"{settings.program} ({settings.kind}): {said['wrong']}", fix)
    when = "whether it trains a study's model is tried when one is there"
    return ok(_CHECK, f"{settings.program} ({settings.kind}): {said['found']}; {when}")


def _asked(settings: TrainerSettings) -> dict[str, str]:
    """Ask the trainer's interpreter. Raises: OSError, subprocess.TimeoutExpired"""
    words = (str(settings.kind), os.path.realpath(Path(settings.program or "")))
    process = subprocess.Popen(  # noqa: S603 - the site's own program
        (str(settings.python), str(PROGRAMS / "look.py"), *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=handed_on(),
        start_new_session=True,
        text=True,
    )
    try:
        printed = process.communicate(timeout=_LOADS_WITHIN_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    try:
        found: dict[str, str] = json.loads(printed.splitlines()[-1])
        return found if found.keys() & {"found", "wrong"} else {"wrong": f"ended with exit code {process.returncode}"}
    except (ValueError, IndexError, AttributeError):
        return {"wrong": f"ended with exit code {process.returncode} before it said anything"}
