//! tower-sluice-http
