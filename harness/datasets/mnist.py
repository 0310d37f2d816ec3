"""MNIST over 10 to 100 sites with the seven label distributions of the Weight Erosion project's MNIST study.

Site 0, the requester, holds ``SHARES[name][d] * 10 / n`` of digit d's training images; each next site has the shares
shifted left by one: site k holds ``SHARES[name][(d + k) mod 10] * 10 / n`` of digit d. So the sites are disjoint and
hold all 60,000 images together, and sites k and k + 10 are alike. The requester is tested on its own distribution of
labels: the largest random part of the 10,000 test images that has it (1,538 of them for B).

The project's own code tests on fewer, and always on the same: the first ``SHARES[name][d]`` of each digit's test images
in the file's order (922 for B). The file's first half is harder than its second, so its accuracies are lower than on a
random part. ``B_first_images`` is distribution B with these test images, for a comparison to the letter.

Source: Gengler, Beaussart, Yuan, "Weight Erosion: an update aggregation scheme, on MNIST" (EPFL machine learning
        project; github.com/dgengler6/Weight-Erosion-Project). Pixels are normalised by 0.1307 and 0.3081, as there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_agent.learning.data import Examples
from harness.datasets.public_data import PublicFile, content
from harness.datasets.site_data import Federation, Rows, SiteData, split_random, stratified_parts
from protocol.errors import ConfigurationError

_ORIGIN: Final = "MNIST (LeCun, Cortes, Burges)"
_MIRROR: Final = "https://ossci-datasets.s3.amazonaws.com/mnist/"


def _file(name: str, sha256: str) -> PublicFile:
    return PublicFile(f"mnist/{name}", sha256, _ORIGIN, _MIRROR + name)


TRAIN_IMAGES: Final = _file(
    "train-images-idx3-ubyte.gz", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
)
TRAIN_LABELS: Final = _file(
    "train-labels-idx1-ubyte.gz", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
)
TEST_IMAGES: Final = _file(
    "t10k-images-idx3-ubyte.gz", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
)
TEST_LABELS: Final = _file(
    "t10k-labels-idx1-ubyte.gz", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
)
FILES: Final = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)

# Site 0's share of each digit, 0 to 9.
SHARES: Final = {
    "A": (0.1,) * 10,
    "B": (0, 0, 0, 0, 0.2, 0.6, 0.2, 0, 0, 0),
    "C": (0.25, 0.25, 0.25, 0.25, 0, 0, 0, 0, 0, 0),
    "D": (0, 0, 0, 0.4, 0.1, 0, 0.1, 0.4, 0, 0),
    "E": (0, 0, 0, 0.1, 0.2, 0.4, 0.2, 0.1, 0, 0),
    "F": (0, 0, 0.1, 0.1, 0.2, 0.2, 0.2, 0.1, 0.1, 0),
    "G": (0.91, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01),
}
FIRST_IMAGES: Final = "_first_images"
DIGITS: Final = 10
MEAN, DEVIATION = 0.1307, 0.3081
_IMAGE_HEADER_BYTES: Final = 16
_LABEL_HEADER_BYTES: Final = 8


def mnist(folder: Path, distribution: str, sites: int, seed: int, validation_share: float = 0.0) -> Federation:
    """The federation; ``seed`` decides who gets which image, and the test images.

    ``distribution`` is a letter, or a letter and ``FIRST_IMAGES``; ``sites`` is a multiple of ten; the part
    ``validation_share`` of the requester's images is kept to choose settings on.
    Contributors have no test images, since only the requester is tested.

    Raises: ConfigurationError for another distribution or number of sites, a missing or wrong file
    """
    letter = distribution.removesuffix(FIRST_IMAGES)
    if letter not in SHARES:
        raise ConfigurationError(
            f"MNIST: distribution {distribution!r} is none of {', '.join(SHARES)}, with or without {FIRST_IMAGES!r}"
        )
    if sites < DIGITS or sites % DIGITS:
        raise ConfigurationError(f"MNIST: {sites} sites; give a multiple of {DIGITS}: every digit's turn is a site's")
    random = split_random(f"mnist {letter} {sites}", seed)
    X, y = _images(TRAIN_IMAGES, TRAIN_LABELS, folder)
    owner = owners(y, SHARES[letter], sites, random)
    own = np.flatnonzero(owner == 0)
    train, validation = stratified_parts(y[own], (1 - validation_share, validation_share), random)
    test_X, test_y = _images(TEST_IMAGES, TEST_LABELS, folder)
    test = (first_images if letter != distribution else alike)(test_y, SHARES[letter], random)
    nothing = _examples(X, y, np.zeros(0, np.int64))
    requester = SiteData(
        "site-0", _examples(X, y, own[train]), _examples(X, y, own[validation]), _examples(test_X, test_y, test)
    )
    others = (
        SiteData(f"site-{k}", _examples(X, y, np.flatnonzero(owner == k)), nothing, nothing) for k in range(1, sites)
    )
    return Federation(
        f"MNIST, distribution {distribution}, {sites} sites",
        (1, 28, 28),
        tuple(str(digit) for digit in range(DIGITS)),
        (requester, *others),
    )


def owners(y: NDArray[np.int64], shares: tuple[float, ...], sites: int, random: np.random.Generator) -> Rows:
    """Number of the site that holds each image: each digit is shuffled and cut by its column of shares."""
    owner = np.zeros(len(y), np.int64)
    for digit in range(DIGITS):
        rows = random.permutation(np.flatnonzero(y == digit))
        of_site = np.array([shares[(digit + site) % DIGITS] for site in range(sites)])
        ends = np.rint(np.cumsum(of_site) / of_site.sum() * len(rows)).astype(np.int64)[:-1]
        for site, piece in enumerate(np.split(rows, ends)):
            owner[piece] = site
    return owner


def alike(y: NDArray[np.int64], shares: tuple[float, ...], random: np.random.Generator) -> Rows:
    """The largest random part in which each digit keeps its share relative to the others."""
    largest = max(shares)
    parts = []
    for digit in range(DIGITS):
        rows = random.permutation(np.flatnonzero(y == digit))
        parts.append(rows[: round(shares[digit] / largest * len(rows))])
    return np.sort(np.concatenate(parts))


def first_images(y: NDArray[np.int64], shares: tuple[float, ...], random: np.random.Generator) -> Rows:
    """The first images of each digit, its share of them; nothing is drawn."""
    of_digit = [np.flatnonzero(y == digit) for digit in range(DIGITS)]
    return np.sort(
        np.concatenate([rows[: int(share * len(rows))] for rows, share in zip(of_digit, shares, strict=True)])
    )


def _images(images: PublicFile, labels: PublicFile, folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    pixels = np.frombuffer(content(images, folder), np.uint8, offset=_IMAGE_HEADER_BYTES)
    digits = np.frombuffer(content(labels, folder), np.uint8, offset=_LABEL_HEADER_BYTES)
    return pixels.reshape(-1, 1, 28, 28), digits.astype(np.int64)


def _examples(X: NDArray[np.uint8], y: NDArray[np.int64], rows: Rows) -> Examples:
    scaled = (X[rows].astype(np.float32) / np.float32(255) - np.float32(MEAN)) / np.float32(DEVIATION)
    return Examples(scaled, y[rows])
