"""``python -m tests.fuzz.inputs --inputs 1000000 --json FILE``: altered inputs into every decoder, counted."""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from tests.fuzz.decoders import Decoder, decoders
from tests.kit.soak import Crash, DecoderCount, FuzzedInputs

SLOW_S: Final = 0.5
_SHOWN_BYTES: Final = 4000
_MOST_SHOWN: Final = 5


def fuzz(inputs: int, seed: int, chosen: Sequence[Decoder] | None = None) -> FuzzedInputs:
    """So many inputs in all, the same ones for the same seed."""
    every = decoders() if chosen is None else tuple(chosen)
    shares = sum(one.share for one in every)
    found: list[Crash] = []
    begun = time.process_time()
    _feed(every[0], Random(seed), 1, [])
    before = _peak_mb()
    counts = []
    for place, one in enumerate(every):
        number = max(1, round(inputs * one.share / shares))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            counts.append(_feed(one, Random(f"{seed} {place} {one.name}"), number, found))
    return FuzzedInputs(
        seed=seed,
        inputs=sum(one.inputs for one in counts),
        taken=sum(one.taken for one in counts),
        refused=sum(one.refused for one in counts),
        crashes=sum(one.crashes for one in counts),
        cpu_s=time.process_time() - begun,
        grown_mb=_peak_mb() - before,
        decoders=tuple(counts),
        found=tuple(found),
    )


def _feed(one: Decoder, random: Random, number: int, found: list[Crash]) -> DecoderCount:
    taken = refused = crashes = 0
    slowest_s = 0.0
    for _ in range(number):
        data = one.mutate(one.valid, random)
        begun = time.thread_time()
        wrong = ""
        try:
            one.decode(data)
            taken += 1
        except one.refuses:
            refused += 1
        except Exception as crash:
            wrong = f"{type(crash).__name__}: {crash}"[:400]
        used_s = time.thread_time() - begun
        slowest_s = max(slowest_s, used_s)
        if used_s > SLOW_S:
            wrong = wrong or f"took {used_s:.1f} s of CPU"
        if wrong:
            crashes += 1
            if crashes <= _MOST_SHOWN:
                found.append(Crash(decoder=one.name, what=wrong, data=data[:_SHOWN_BYTES].hex()))
    return DecoderCount(
        name=one.name, inputs=number, taken=taken, refused=refused, crashes=crashes, slowest_s=round(slowest_s, 4)
    )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main() -> int:
    """0 when nothing crashed."""
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz.inputs")
    asked.add_argument("--inputs", type=int, default=100_000)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--json", type=Path, default=None)
    given = asked.parse_args()
    done = fuzz(given.inputs, given.seed)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(done.model_dump_json(indent=1) + "\n", encoding="utf-8")
    print(f"{done.inputs:,} inputs, {done.taken:,} taken, {done.refused:,} refused, {done.crashes} crashes,")
    print(f"{done.cpu_s:.0f} s of CPU, memory grew by {done.grown_mb:.0f} MB")
    for crash in done.found:
        print(f"{crash.decoder}: {crash.what}: {crash.data[:200]}")
    return 1 if done.crashes else 0


if __name__ == "__main__":
    raise SystemExit(main())
