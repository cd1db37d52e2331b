//! An inner service behind a gate: while it is shut, calls that were let in stay in, so that a line grows behind them.
//!
//! One gate for the whole program: experiments run one after another, and the future stays small.

use crate::service::{Fail, Inner};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tower::service_fn;

static OPEN: AtomicBool = AtomicBool::new(true);
static HELD: Mutex<Vec<Waker>> = Mutex::new(Vec::new());

fn waiting() -> MutexGuard<'static, Vec<Waker>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps from now on whoever comes in.
pub fn shut() {
    waiting().clear();
    OPEN.store(false, SeqCst);
}

/// Lets everybody go on.
pub fn open() {
    let held = {
        let mut held = waiting();
        OPEN.store(true, SeqCst);
        std::mem::take(&mut *held)
    };
    held.into_iter().for_each(Waker::wake);
}

/// Waits for the gate, yields once, answers.
pub fn gated() -> impl Inner<Future = Gated> {
    service_fn(|value: u64| Gated { value, yielded: false })
}

/// See [`gated`].
#[derive(Debug)]
pub struct Gated {
    value: u64,
    yielded: bool,
}

impl Future for Gated {
    type Output = Result<u64, Fail>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.yielded {
            return Poll::Ready(Ok(self.value));
        }
        if !OPEN.load(SeqCst) {
            let mut held = waiting();
            if !OPEN.load(SeqCst) {
                held.push(cx.waker().clone());
                return Poll::Pending;
            }
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
