//! A hand-written floor: one mutex and a queue of wakers, the least that code of this kind can cost.
//!
//! Not a design: a queued call that is dropped loses a slot, a waker that changes is not noticed, and there is neither
//! pause nor retry.

use pin_project_lite::pin_project;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use tower::Service;

struct Line {
    free: usize,
    /// Tickets below this number own a slot.
    granted: u64,
    next: u64,
    wakers: VecDeque<Waker>,
}

type Shared = Arc<Mutex<Line>>;

fn with<T>(line: &Shared, act: impl FnOnce(&mut Line) -> T) -> T {
    act(&mut line.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The floor as a service.
#[derive(Clone)]
pub struct Floor<S> {
    inner: S,
    line: Shared,
}

impl<S> Floor<S> {
    /// At most `limit` at once.
    pub fn new(inner: S, limit: usize) -> Self {
        let line = Line { free: limit, granted: 0, next: 0, wakers: VecDeque::new() };
        Self { inner, line: Arc::new(Mutex::new(line)) }
    }
}

pin_project! {
    /// A call: without a ticket it has not come yet, with one it is in the line.
    pub struct FloorFuture<S, F, Req> {
        line: Shared,
        ticket: Option<u64>,
        service: S,
        request: Option<Req>,
        #[pin]
        running: Option<F>,
    }
}

impl<S: Service<Req> + Clone, Req> Service<Req> for Floor<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = FloorFuture<S, S::Future, Req>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let service = self.inner.clone();
        FloorFuture {
            line: Arc::clone(&self.line),
            ticket: None,
            service,
            request: Some(request),
            running: None,
        }
    }
}

impl<S: Service<Req>, Req> Future for FloorFuture<S, S::Future, Req> {
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(request) = this.request.take() {
            let ticket = *this.ticket;
            let granted = with(this.line, |line| match ticket {
                Some(ticket) => ticket < line.granted,
                None if line.free > 0 => {
                    line.free -= 1;
                    true
                }
                None => {
                    *this.ticket = Some(line.next);
                    line.next += 1;
                    line.wakers.push_back(cx.waker().clone());
                    false
                }
            });
            if !granted {
                *this.request = Some(request);
                return Poll::Pending;
            }
            this.running.set(Some(this.service.call(request)));
        }
        let Some(running) = this.running.as_mut().as_pin_mut() else { return Poll::Pending };
        let answer = ready!(running.poll(cx));
        let next = with(this.line, |line| {
            let next = line.wakers.pop_front();
            if next.is_some() {
                line.granted += 1;
            } else {
                line.free += 1;
            }
            next
        });
        if let Some(waker) = next {
            waker.wake();
        }
        Poll::Ready(answer)
    }
}
