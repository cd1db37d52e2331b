#!/usr/bin/env bash
# The lab's experiments that run in virtual time: they are exact, so a missed bar is a fault and exits with 1.
# `overhead` and `waiting` time and count what calls cost: run them by hand on a quiet machine, for their table.
# `cargo run --release -p lab -- all` runs everything and rewrites docs/measurements.md.
set -euo pipefail
cd "$(dirname "$0")/.."

experiments=(
  spread     # retries of calls that failed in the same instant
  levels     # a ladder under a dependency that flaps, fails, declines or falls silent
  link       # links that lose one server in the same instant
)

cargo build --release -p lab
for experiment in "${experiments[@]}"; do
  echo "--- $experiment"
  "${CARGO_TARGET_DIR:-target}/release/lab" "$experiment" --json
done
