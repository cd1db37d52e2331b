#!/usr/bin/env bash
# Each published crate with no feature and with each of its features alone: the features mirror which module may
# import which, so that an import across that line does not compile here. (clippy, because it denies warnings for
# these crates alone; RUSTFLAGS would rebuild every dependency.)
set -euo pipefail
cd "$(dirname "$0")/.."

# "crate feature" for each pair, from the manifests themselves, so that a new feature is not forgotten.
pairs() {
  for crate in crates/tower-sluice*/; do
    sed -n '/^\[features\]/,/^\[[^f]/s/^\([a-z][a-z0-9_-]*\) *=.*/\1/p' "$crate/Cargo.toml" |
      while read -r feature; do printf '%s %s\n' "$(basename "$crate")" "$feature"; done
  done
}

for crate in crates/tower-sluice*/; do
  crate=$(basename "$crate")
  echo "--- $crate, no feature"
  cargo clippy --quiet -p "$crate" --no-default-features -- -D warnings
done
pairs | while read -r crate feature; do
  echo "--- $crate, feature $feature"
  cargo clippy --quiet -p "$crate" --no-default-features --features "$feature" -- -D warnings </dev/null
done
