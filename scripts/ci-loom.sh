#!/usr/bin/env bash
# The queue's slot and waker protocol under loom: every interleaving with at most three preemptions (unbounded does
# not end). The cfg has a name of ours because `--cfg loom` also reaches tokio, which then lacks what hyper-util needs.
# Its own target directory: other flags would rebuild everything else.
set -euo pipefail
cd "$(dirname "$0")/.."

export RUSTFLAGS="--cfg sluice_loom"
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-3}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
# LTO buys the models nothing.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

# A filter that matches nothing passes, so the models are counted first.
models=$(cargo test -p tower-sluice --release --lib -- --list loom 2>/dev/null | grep -c ': test$' || true)
if [ "$models" -eq 0 ]; then
  echo "no loom model was found" >&2
  exit 1
fi
echo "$models models, at most $LOOM_MAX_PREEMPTIONS preemptions"
cargo test -p tower-sluice --release --lib -- loom
