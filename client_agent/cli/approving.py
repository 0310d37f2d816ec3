"""``moiety agent studies``, ``show``, ``approve``, ``decline`` and ``delete``."""

from __future__ import annotations

import sys
from typing import Final

import typer
from rich.text import Text

from client_agent.cli.lines import json_line
from client_agent.cli.tables import add_row, console, plain, table
from client_agent.settings import AgentSettings
from client_agent.site.identity import load_identity
from client_agent.study.asked.at_hand import Word, keep_word, known_studies, known_study
from client_agent.study.asked.deleting import RECEIPT, delete_study
from client_agent.study.asked.foreseen_epsilon import own_examples
from client_agent.study.asked.plain_words import in_plain_words
from protocol.errors import ConfigurationError
from protocol.messages.control import Study
from protocol.text import printable, printable_lines


def list_studies(settings: AgentSettings, *, json_output: bool) -> None:
    """Every study that this site knows, and what it waits for."""
    roster, _ = load_identity(settings)
    shown = table("study", "state at this site", "digest")
    studies = known_studies(settings, roster)
    if not studies and not json_output:
        console().print("no study is here yet; an agent that runs hears of one within half a minute of its creation")
        return
    for known in studies:
        name, digest = known.study.name, known.study.digest()
        if json_output:
            json_line({"study": name, "state": known.state, "digest": digest})
        else:
            add_row(shown, name, known.state, digest[:16])
    if not json_output:
        console().print(shown)


def show_study(settings: AgentSettings, name: str, *, json_output: bool) -> Study:
    """Everything that a study would open and to whom, in plain words."""
    roster, _ = load_identity(settings)
    study = known_study(settings, roster, name).study
    statements = in_plain_words(study, roster, settings.policy, own_examples(settings.data))
    if json_output:
        said = [one.model_dump() for one in statements]
        json_line({"study": name, "digest": study.digest(), "statements": said})
        return study
    shown = table("", f"study {name}, digest {study.digest()}")
    shown.columns[1].overflow = "fold"  # a long word is no reason to cut what a person approves
    for one in statements:
        shown.add_row(plain(one.about), Text(printable_lines(one.words)))
    console().print(shown)
    return study


def say(settings: AgentSettings, name: str, word: Word, *, sure: bool) -> None:
    """Show the study, ask once more, and keep the word. Raises: ConfigurationError"""
    roster, _ = load_identity(settings)
    if settings.site == roster.requester:
        raise ConfigurationError(f"this site asked for study {name!r}; 'moiety study create' was its word")
    study = show_study(settings, name, json_output=False)
    yes = "approve" if word.approved else "decline"
    if not sure:
        typer.confirm(f"{printable(word.person)}: {yes} study {name} for {settings.site}?", abort=True)
    keep_word(settings, name, word, study.digest())
    sys.stdout.write(f"study {name}: {yes}d by {printable(word.person)}; the agent goes by it within seconds\n")


_STAYS: Final = (
    "What stays: the signed study, people's words on it, the audit log, the ledger, and the memory of sums, cohorts "
    "and budget, which protects this site's patients in later studies. Backups and exported models you delete yourself."
)


def delete(settings: AgentSettings, name: str, person: str, reason: str, *, json_output: bool) -> None:
    """Delete, and say where the receipt lies. Raises: ConfigurationError"""
    said: list[str] = []
    signed = delete_study(settings, name, person, reason, say=said.append)
    if json_output:
        json_line(signed.model_dump(mode="json"))
        return
    count, size_bytes = len(signed.message.files), sum(one.size_bytes for one in signed.message.files)
    where = settings.state_dir / "studies" / name / RECEIPT
    sys.stdout.writelines(f"{text}\n" for text in said)
    sys.stdout.write(
        f"study {name}: {count} files of {size_bytes:,} bytes are deleted; the signed receipt is {where}\n{_STAYS}\n"
    )
