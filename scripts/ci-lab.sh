#!/usr/bin/env bash
# The lab's experiments that are judged against bars and take seconds. An experiment that misses a bar exits with 1.
# `cargo run --release -p lab -- all` runs everything and rewrites docs/measurements.md.
set -euo pipefail
cd "$(dirname "$0")/.."

experiments=(
  overhead   # cost of one call, uncontended
  waiting    # cost of calls that wait
  spread     # retries of calls that failed in the same instant
  levels     # a ladder under a dependency that flaps, fails, declines or falls silent
  link       # links that lose one server in the same instant
)

cargo build --release -p lab
for experiment in "${experiments[@]}"; do
  echo "--- $experiment"
  "${CARGO_TARGET_DIR:-target}/release/lab" "$experiment" --json
done
