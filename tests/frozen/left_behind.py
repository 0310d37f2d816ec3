"""The files that a federation of processes leaves, without what no seed fixes.

Left out, each because two runs of the same code differ in it:

- times, and what hangs on them: how often a site asked for news or connected, the order of rows, socket bytes, which
  batch a correlation is of, and which contributors hear of a study that trains alone before it is over;
- a round's closing time, and so the digest of its announcement and everything bound to it: commitments, agreed sets,
  transcripts, release sets, every signature over one of them, receipts;
- HPKE's own randomness, and so every sealed body and its digest, and the names of the files that hold them; nonces;
- the coin toss, which is over the agreed set: where vectors are longer than a sketch, what is measured with it;
- SEAL's own noise, and so the last digits of models and norms under CKKS: compared ``WITHIN`` instead.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np

from client_agent.net.ledger import read_ledger
from client_agent.site.events import read_metrics
from client_agent.site.journal import StudyJournal
from client_agent.study.results import RANKING_FILE
from protocol.messages.control import RuleName

WITHIN: Final = 1e-5
"""Two sums of at most 1e-6 of noise, and what three steps of at most 1 make of them."""
SHOWN_PARAMETERS: Final = 1000
TIMED: Final = frozenset({"time_s", "seconds", "phases", "bytes_up", "bytes_down"})
SKETCHED: Final = frozenset({"distances", "alphas", "norms", "inner_products", "pairs"})
POLLED: Final = frozenset({"list studies", "view", "handshake", "connection"})
ONCE_A_STUDY: Final = frozenset({"read study", "ready"})
"""Also of studies that train alone, where a site hears of them, and too early at times: the largest is compared."""
COLUMNS: Final[dict[str, str]] = {
    "studies": 'digest, name, signed, state, reason, absent_in_a_row, "end"',
    "ready_sites": "study, site",
    "rounds": "study, round, attempt, state, own_nonce, mask_seed",
    "contributions": "study, round, attempt, site",
    "mail": "study, sender, recipient, topic",
    "answers": "study, round, attempt, kind",
    "correlations": "study, round, attempt, site",
    "boots": "boot",
}
"""Columns of each table that no time and no random draw decides."""


def left_behind(folder: Path) -> dict[str, Any]:
    """Party -> what it holds; ``folder`` is that of one federation."""
    found: dict[str, Any] = {}
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        database = place / "data" / "server.db"
        if database.exists():
            found[place.name] = _server(database)
        elif (place / "state").is_dir():
            found[place.name] = _site(place / "state")
    return found


def model_fact(model: np.ndarray) -> Any:
    """The numbers of a small model, so that noise can be told from a change; of a large one the hash."""
    if model.size <= SHOWN_PARAMETERS:
        return [float(value) for value in model]
    return hashlib.sha256(model.tobytes()).hexdigest()


def _server(database: Path) -> Any:
    with closing(sqlite3.connect(database)) as opened:
        studies = {
            digest: json.loads(signed) for digest, signed in opened.execute("select digest, signed from studies")
        }
        alone = {digest for digest, signed in studies.items() if _trains_alone(signed["message"])}
        return {
            table: sorted(
                [_text(value) for value in row]
                for row in opened.execute(f"select {columns} from {table}")
                if table != "ready_sites" or row[0] not in alone
            )
            for table, columns in COLUMNS.items()
        }


def _trains_alone(study: Any) -> bool:
    return bool(study["rule"]["name"] == RuleName.LOCAL.value)


def _text(value: Any) -> str:
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else str(value)


def _site(state: Path) -> Any:
    names = sorted(path.name for path in (state / "studies").iterdir() if (path / "site.json").exists())
    studies = {name: _study(state, name) for name in names}
    return {
        "ledger": _ledger(state / "ledger.jsonl"),
        "studies": {name: one for name, one in studies.items() if one["rounds"] or not _trains_alone(one["study"])},
        "sums": [json.loads(path.read_text(encoding="utf-8")) for path in sorted((state / "sums").rglob("*.json"))],
    }


def _ledger(path: Path) -> Any:
    """Server and purpose -> bodies' bytes sent and received of each exchange that had an answer, in ascending order."""
    found: dict[str, list[list[int]]] = defaultdict(list)
    for entry in read_ledger(path):
        if entry.purpose not in POLLED and entry.status is not None:
            found[f"{entry.server} {entry.purpose}"].append([entry.body_sent_bytes, entry.body_received_bytes])
    return {
        place: [max(sizes)] if place.split(" ", 1)[1] in ONCE_A_STUDY else sorted(sizes)
        for place, sizes in found.items()
    }


def _study(state: Path, name: str) -> Any:
    journal = StudyJournal(state, name)
    kept = journal.site_state()
    study = json.loads((journal.folder / "study.json").read_text(encoding="utf-8"))["message"]
    numbers = study["parameters"]
    left_out = TIMED if numbers["dimension"] <= numbers["sketch_length"] else TIMED | SKETCHED
    records = [record.model_dump(mode="json", exclude=set(left_out)) for record in read_metrics(_metrics(journal))]
    ranking = journal.folder / RANKING_FILE
    version = None if kept is None else kept.model_version
    return {
        "study": study,
        "state": None if kept is None else kept.model_dump(mode="json"),
        "rounds": records,
        "model": None if version is None else model_fact(journal.load_kept(version)),
        "ranking": json.loads(ranking.read_text(encoding="utf-8")) if ranking.exists() else None,
    }


def _metrics(journal: StudyJournal) -> Path:
    return journal.folder / "metrics.jsonl"
