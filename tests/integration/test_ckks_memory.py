"""The CKKS path's memory does not grow with the model: from a hundred thousand to twenty million parameters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.bench.meter import peak_mb, reset_peak
from protocol.ckks.ciphertext import HEADER_BYTES, BodyHeader, CkksParameters, Kind, body_bytes, chunk_bytes
from protocol.messages.control import ShareKind
from servers.ckks.process import CkksProcess, ContributionCheck, summed_body
from servers.rounds.ciphertexts import stored_chunks
from servers.store.chunk_tags import ChunkTags, Tagger, layout_of
from tests.kit.present import present

PARAMETERS = CkksParameters()
FEW = 10**5
MOST_GROWTH_MB = 16
"""2.4 million parameters more are 24 MB of ciphertexts, 48 MB of sum, 19 MB of float64; twenty eight times that."""
SIZES = pytest.mark.parametrize(
    "most",
    [
        pytest.param(25 * 10**5, id="two and a half million"),
        pytest.param(20 * 10**6, id="twenty million", marks=pytest.mark.soak),
    ],
)

SITE = """
import os, sys
import numpy as np
from host.files import MemoryFile
from harness.bench.meter import peak_mb
from protocol.arithmetic.kernels import Scaling
from protocol.ckks.update import SiteChecks
from protocol.ckks.scheme import Encryptor
from protocol.ckks.ciphertext import BodyHeader, Kind
from protocol.ckks.ciphertext import CkksParameters
from protocol.ckks.scheme import Scheme
from protocol.ckks.update import body_header, contribution

dimension = int(sys.argv[1])
key = Scheme(CkksParameters()).secret_key(bytes(32), "00" * 32)
update = np.broadcast_to(np.float32(1e-4), dimension)
header = body_header(Kind.CONTRIBUTION, key, dimension)
checks = SiteChecks(key, "a0" * 32, "hospital-1")
sent = sum(map(len, contribution(Encryptor(key, MemoryFile()), header, update, Scaling(), 1.0, checks)))
print(sent, peak_mb(os.getpid()))
"""


def encrypting(dimension: int) -> tuple[int, float]:
    """Bytes sent and peak of memory of a process that encrypts; the update itself takes no memory."""
    done = subprocess.run(
        [sys.executable, "-c", SITE, str(dimension)], check=True, capture_output=True, text=True, timeout=800
    )
    sent, peak = done.stdout.split()
    return int(sent), float(peak)


@SIZES
@pytest.mark.timeout(900)
def test_encrypting_many_parameters_takes_the_memory_of_few(most: int) -> None:
    sent_few, peak_few = encrypting(FEW)
    sent_most, peak_most = encrypting(most)
    assert sent_few == body_bytes(PARAMETERS, Kind.CONTRIBUTION, FEW + 1)
    assert sent_most == body_bytes(PARAMETERS, Kind.CONTRIBUTION, most + 1)
    assert peak_most - peak_few < MOST_GROWTH_MB


@SIZES
@pytest.mark.timeout(900)
def test_checking_and_adding_many_parameters_takes_the_memory_of_few(tmp_path: Path, most: int) -> None:
    """A sparse file is a contribution of zeros. Peaks of this process and of the worker's."""
    with CkksProcess(PARAMETERS) as process:
        fingerprint, peaks, worker_peaks = process.fingerprint(), [], []
        for values in (FEW, most):
            reset_peak(os.getpid())
            header = BodyHeader(Kind.CONTRIBUTION, fingerprint, bytes(16), values)
            path = tmp_path / str(values)
            with path.open("wb") as file:
                file.write(header.to_bytes())
                file.truncate(body_bytes(PARAMETERS, Kind.CONTRIBUTION, values))
            check = ContributionCheck(process, header.key_id, header.values)
            layout = layout_of(ShareKind.CIPHERTEXT, PARAMETERS)
            tagger = Tagger(layout)
            with path.open("rb") as file:
                while piece := file.read(2**20):
                    check.write(piece)
                    tagger.write(piece)
            check.finish()
            tags = ChunkTags("site", path.stat().st_size, layout, tagger.finish())
            sources = [stored_chunks(path, tags, PARAMETERS, values)]
            pieces = summed_body(process, BodyHeader(Kind.SUM, fingerprint, bytes(16), values), sources)
            total = sum(map(len, pieces))
            assert total == body_bytes(PARAMETERS, Kind.SUM, values)
            assert total - HEADER_BYTES == -(-values // 1020) * chunk_bytes(PARAMETERS, Kind.SUM)
            peaks.append(peak_mb(os.getpid()))
            worker_peaks.append(peak_mb(present(process.pid)))
    assert peaks[1] - peaks[0] < MOST_GROWTH_MB
    assert worker_peaks[1] - worker_peaks[0] < MOST_GROWTH_MB
