//! reconnect
