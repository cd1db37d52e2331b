//! tower-sluice-test
