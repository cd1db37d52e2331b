#!/usr/bin/env bash
# The parts that have neither sockets nor threads of a runtime, under miri, where a nightly toolchain with the
# component is installed. Where it is not, nothing is checked, and the step says so.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo +nightly miri --version >/dev/null 2>&1; then
  echo "miri is not installed here: nothing was checked" >&2
  echo "rustup component add --toolchain nightly miri rust-src" >&2
  exit 0
fi
# proptest reads the working directory for its regression files; the paused clock still asks for the real one.
export MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation"
export PROPTEST_CASES="${PROPTEST_CASES:-4}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri"
cargo +nightly miri test -p tower-sluice-backoff --lib
cargo +nightly miri test -p tower-sluice --all-features --lib
