#!/usr/bin/env bash
# The main job at the size its figures are promised for. From the debug build of the tests: a release build of all
# that the examples use takes minutes, and the promises are about order and number, not speed.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --workspace --all-features --examples
result=$("${CARGO_TARGET_DIR:-target}/debug/examples/bulk" --calls 2000 --concurrency 16 --max-attempts 12 \
  --base 100ms --max-delay 2s --fail-rate 0.3 --seed 7 --json | tail -n 1)
echo "$result"

for expected in '"succeeded":2000' '"failed":0' '"peak_running":16' '"peak_seen_by_upstream":16' '"early_returns":0'; do
  if ! grep -qF "$expected" <<<"$result"; then
    echo "expected $expected" >&2
    exit 1
  fi
done
max_deferred=$(sed 's/.*"max_deferred":\([0-9]*\).*/\1/' <<<"$result")
if [ "$max_deferred" -le 16 ]; then
  echo "expected more than 16 calls out of slot at once, saw $max_deferred" >&2
  exit 1
fi
