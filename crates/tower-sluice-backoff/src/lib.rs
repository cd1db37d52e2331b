//! tower-sluice-backoff
