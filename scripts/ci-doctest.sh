#!/usr/bin/env bash
# Documentation examples alone; the code blocks of README.md are among those of tower-sluice-http.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo test --workspace --all-features --doc
