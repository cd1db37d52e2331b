//! The sync types of the part that is model-checked: std's, or loom's under `--cfg sluice_loom`.
//!
//! A cfg name of our own, since `--cfg loom` would also reach tokio and break hyper-util.

#[cfg(not(sluice_loom))]
pub(super) use std::{
    sync::atomic::{AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
};

#[cfg(sluice_loom)]
pub(super) use loom::{
    sync::atomic::{AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
};

/// Waits until notified, and locks again.
pub(super) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Locks, whatever a panic elsewhere left behind: nothing of a user's runs under our locks, so that what they
/// guard is whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
