#!/usr/bin/env bash
# What would be published, built from the packages themselves.
set -euo pipefail
cd "$(dirname "$0")/.."

dirty=()
[ -n "${CI:-}" ] || dirty=(--allow-dirty)
cargo package --workspace --exclude lab --exclude tower-sluice-stacks "${dirty[@]}"
