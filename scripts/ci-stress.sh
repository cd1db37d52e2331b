#!/usr/bin/env bash
# The queue under real threads, in release: no attempt starts between the return of `pause` and `resume`, in so many
# calls (`SLUICE_STRESS_CALLS`, three million unless set). `SLUICE_SEED=random` draws other times to pause at.
set -euo pipefail
cd "$(dirname "$0")/.."

export SLUICE_STRESS_CALLS="${SLUICE_STRESS_CALLS:-3000000}"
# The profile of the lab's and the main job's release builds, so that nothing is built twice.
cargo test -p tower-sluice --release --test queue_stress -- --nocapture --test-threads 1
