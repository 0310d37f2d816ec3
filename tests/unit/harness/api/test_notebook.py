"""The notebook in docs/examples runs from its first cell to its last, and shows what its words say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[4] / "docs" / "examples" / "simulating.ipynb"


def test_the_notebook_runs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, text in enumerate(code):
        exec(compile(text, f"cell {number}", "exec"), names)
    runs = names["results"].runs()
    assert len(runs) == 12
    assert set(runs["end"]) == {"completed"}
    assert runs["test_accuracy"].min() > 0.8
    assert names["weights"].shape == (10, 4)
    assert (names["weights"].diff().iloc[1:] <= 0).all().all()
    mine = names["mine"].runs()
    assert set(mine["requester"]) == {"north", "south", "east", "west"}
    assert names["again"].runs()["test_accuracy"].tolist() == mine["test_accuracy"].tolist()
