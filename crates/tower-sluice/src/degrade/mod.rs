//! degrade
