#!/usr/bin/env bash
# The README's command, as it stands there.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo test --workspace --all-features
