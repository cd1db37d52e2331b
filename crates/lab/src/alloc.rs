//! A global allocator that counts, when told to.
//!
//! It is installed in the one binary, so that the code whose bytes are counted is the code that is timed. While
//! counting is off it adds a load and an untaken branch to each allocation: nothing to a path that does not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static ON: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static TAKEN: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);

/// Forwards to the system's allocator.
pub struct Counting;

fn took(bytes: usize) {
    if ON.load(Relaxed) {
        CALLS.fetch_add(1, Relaxed);
        TAKEN.fetch_add(bytes as u64, Relaxed);
    }
}

fn freed(bytes: usize) {
    if ON.load(Relaxed) {
        FREED.fetch_add(bytes as u64, Relaxed);
    }
}

// SAFETY: every method forwards its arguments to `System` unchanged; the counters do not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        freed(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        freed(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// How often memory was handed out, a growing block counted each time.
    pub calls: u64,
    /// Bytes handed out.
    pub bytes: u64,
    /// Bytes handed out and not given back.
    pub live: i64,
}

/// The counters now. They stand still outside [`counting`].
pub fn snapshot() -> Snapshot {
    let bytes = TAKEN.load(Relaxed);
    Snapshot { calls: CALLS.load(Relaxed), bytes, live: bytes as i64 - FREED.load(Relaxed) as i64 }
}

/// Counts while `run` runs, on every thread.
pub fn counting<T>(run: impl FnOnce() -> T) -> T {
    ON.store(true, Relaxed);
    let out = run();
    ON.store(false, Relaxed);
    out
}

/// The resident size of this process in bytes; `None` where the system does not say (it is read from Linux's `/proc`).
pub fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    // SAFETY: `sysconf` has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * u64::try_from(page).ok()?)
}
