#!/usr/bin/env bash
# Every example runs by itself and ends by itself with status 0. An example that hangs fails.
set -euo pipefail
cd "$(dirname "$0")/.."

# The same selection as the test command, so that nothing is built twice.
cargo build --workspace --all-features --examples

names() {
  for path in examples/*.rs examples/*/main.rs; do
    [ -e "$path" ] || continue
    name=${path#examples/}
    name=${name%/main.rs}
    echo "${name%.rs}"
  done
}

for name in $(names); do
  echo "--- $name"
  timeout 120 "${CARGO_TARGET_DIR:-target}/debug/examples/$name" --json </dev/null
done
