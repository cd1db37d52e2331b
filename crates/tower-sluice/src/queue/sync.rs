//! The sync types of the part that is model-checked: std's, or loom's under `--cfg sluice_loom`.
//!
//! A cfg name of our own, since `--cfg loom` would also reach tokio and break hyper-util.

#[cfg(not(sluice_loom))]
pub(super) use std::{
    sync::Mutex,
    sync::MutexGuard,
    sync::atomic::{AtomicU64, Ordering},
    thread::yield_now,
};

#[cfg(sluice_loom)]
pub(super) use loom::{
    sync::Mutex,
    sync::MutexGuard,
    sync::atomic::{AtomicU64, Ordering},
    thread::yield_now,
};

/// Locks, whatever a panic elsewhere left behind: nothing of a user's runs under our locks, so that what they
/// guard is whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
