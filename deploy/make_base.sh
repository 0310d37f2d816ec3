#!/bin/sh
# A base image made of the distribution's own packages, where no image registry can be reached.
# Prints the image's id, and SHA-256 over the names and versions of its packages, to be kept with a release: debootstrap
# checks Debian's signatures, and two bases with the same list are of the same packages.
# Usage: deploy/make_base.sh [NAME [PACKAGE,...]]   needs root, debootstrap and a running engine; DEBIAN_MIRROR names a
# mirror. PACKAGE: in place of Python, as postgresql,caddy for deploy/several/Dockerfile.
set -eu
name=${1:-moiety-base:local}
include=${2:-python3,python3-venv}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
# shellcheck disable=SC2086 # an empty mirror must vanish
debootstrap --variant=minbase --include="$include",ca-certificates bookworm "$root" ${DEBIAN_MIRROR:-} >&2
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
packages=$(chroot "$root" dpkg-query --show | LC_ALL=C sort | sha256sum | cut -d' ' -f1)
tar -C "$root" -c . | docker import --change "LABEL moiety.base.packages=$packages" - "$name"
echo "packages $packages"
