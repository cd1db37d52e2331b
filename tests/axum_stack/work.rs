//! What the handlers under test do: they count how many run at once, and wait until the test lets them go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

#[derive(Clone)]
pub(crate) struct Work {
    shared: Arc<Shared>,
}

struct Shared {
    running: AtomicUsize,
    peak: AtomicUsize,
    started: AtomicUsize,
    gate: Semaphore,
}

/// One handler that runs.
pub(crate) struct Running(Arc<Shared>);

impl Work {
    /// Work that waits.
    pub(crate) fn held() -> Self {
        let gate = Semaphore::new(0);
        Self {
            shared: Arc::new(Shared {
                running: AtomicUsize::new(0),
                peak: AtomicUsize::new(0),
                started: AtomicUsize::new(0),
                gate,
            }),
        }
    }

    /// Lets so many go on, now or when they come.
    pub(crate) fn release(&self, n: usize) {
        self.shared.gate.add_permits(n);
    }

    /// Lets all go on from now on.
    pub(crate) fn open(&self) {
        self.shared.gate.close();
    }

    pub(crate) fn enter(&self) -> Running {
        let shared = &self.shared;
        shared.started.fetch_add(1, SeqCst);
        let running = shared.running.fetch_add(1, SeqCst) + 1;
        shared.peak.fetch_max(running, SeqCst);
        Running(shared.clone())
    }

    pub(crate) async fn pass(&self) {
        if let Ok(permit) = self.shared.gate.acquire().await {
            permit.forget();
        }
    }

    /// One handler's work.
    pub(crate) async fn run(&self) {
        let _running = self.enter();
        self.pass().await;
    }

    pub(crate) fn running(&self) -> usize {
        self.shared.running.load(SeqCst)
    }

    pub(crate) fn peak(&self) -> usize {
        self.shared.peak.load(SeqCst)
    }

    pub(crate) fn started(&self) -> usize {
        self.shared.started.load(SeqCst)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

/// Waits until it is so; real sockets give no other sign.
#[track_caller]
pub(crate) fn until(mut so: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let waited = timeout(Duration::from_secs(20), async {
            while !so() {
                sleep(Duration::from_millis(1)).await;
            }
        });
        assert!(waited.await.is_ok(), "never so: {caller}");
    }
}
