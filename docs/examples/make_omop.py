"""A small database of the form of the OMOP common data model (person, measurement, condition_occurrence), of nobody.

    python docs/examples/make_omop.py omop.sqlite --patients 400 --seed 1

Columns and concepts are those of OMOP CDM 5.4: 8507 male, 8532 female; 3004249 systolic blood pressure, 3004410 HbA1c,
3016723 creatinine; 8876 mmHg, 8554 per cent, 8840 mg/dl; 201826 type 2 diabetes, 316139 heart failure.
"""

from __future__ import annotations

import argparse
import math
import random
import sqlite3
from pathlib import Path
from typing import Final

_TABLES: Final = """
CREATE TABLE person (person_id INTEGER PRIMARY KEY, gender_concept_id INTEGER, year_of_birth INTEGER);
CREATE TABLE measurement (
  measurement_id INTEGER PRIMARY KEY, person_id INTEGER, measurement_concept_id INTEGER, measurement_date DATE,
  value_as_number REAL, unit_concept_id INTEGER);
CREATE TABLE condition_occurrence (
  condition_occurrence_id INTEGER PRIMARY KEY, person_id INTEGER, condition_concept_id INTEGER,
  condition_start_date DATE);
"""
_MEASURED: Final = ((3004249, 8876, 130.0, 18.0), (3004410, 8554, 5.8, 0.9), (3016723, 8840, 0.95, 0.25))
_MISSING_SHARE: Final = 0.15


def make(path: Path, patients: int, seed: int) -> None:
    """Write the database; the same seed gives the same rows."""
    draw = random.Random(seed)  # noqa: S311  made-up patients are no secret
    with sqlite3.connect(path) as database:
        database.executescript(_TABLES)
        for person in range(1, patients + 1):
            _add_patient(database, draw, person)
    database.close()


def _add_patient(database: sqlite3.Connection, draw: random.Random, person: int) -> None:
    born, gender = draw.randint(1930, 2000), draw.choice((8507, 8532))
    database.execute("INSERT INTO person VALUES (?, ?, ?)", (person, gender, born))
    risk = (1970 - born) / 15 - 1.0
    for concept, unit, mean, sd in _MEASURED:
        if draw.random() < _MISSING_SHARE:
            continue
        middle = draw.gauss(mean, sd)
        risk += (middle - mean) / sd / 2
        for _ in range(draw.randint(1, 3)):
            value = round(max(middle + draw.gauss(0, sd / 5), mean / 3), 2)
            row = (person, concept, f"{draw.randint(2018, 2020)}-{draw.randint(1, 12):02}-15", value, unit)
            database.execute("INSERT INTO measurement VALUES (NULL, ?, ?, ?, ?, ?)", row)
    if draw.random() < 0.15:
        risk += 0.8
        _add_condition(database, person, 201826, "2019-06-01")
    if draw.random() < 1 / (1 + math.exp(-risk)):
        _add_condition(database, person, 316139, "2021-09-01")


def _add_condition(database: sqlite3.Connection, person: int, concept: int, start: str) -> None:
    database.execute("INSERT INTO condition_occurrence VALUES (NULL, ?, ?, ?)", (person, concept, start))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--patients", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    make(given.path, given.patients, given.seed)
