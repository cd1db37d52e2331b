//! A pool of workers in virtual time: what a server is made of once its layers are taken off. It takes calls in order
//! of arrival and knows neither limits nor deadlines; a call that has come is worked off, whoever still waits for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// See the module; clones are the same pool.
#[derive(Clone)]
pub struct Workers {
    pool: Arc<Mutex<Pool>>,
}

struct Pool {
    workers: usize,
    busy: usize,
    line: VecDeque<oneshot::Sender<()>>,
}

impl Workers {
    /// A pool of so many.
    pub fn new(workers: usize) -> Self {
        Self { pool: Arc::new(Mutex::new(Pool { workers, busy: 0, line: VecDeque::new() })) }
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on there are so many; those at work finish.
    pub fn set(&self, workers: usize) {
        let mut pool = self.pool();
        pool.workers = workers;
        pool.hand_on();
    }

    /// Waits for a worker, then keeps it for so long.
    pub async fn work(&self, time: Duration) {
        let turn = {
            let mut pool = self.pool();
            let (sender, turn) = oneshot::channel();
            pool.line.push_back(sender);
            pool.hand_on();
            turn
        };
        // The pool outlives the wait: it keeps the sender.
        let _ = turn.await;
        let _working = Working(self);
        tokio::time::sleep(time).await;
    }
}

impl Pool {
    fn hand_on(&mut self) {
        while self.busy < self.workers {
            let Some(next) = self.line.pop_front() else { return };
            if next.send(()).is_ok() {
                self.busy += 1;
            }
        }
    }
}

/// Gives the worker back.
struct Working<'a>(&'a Workers);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut pool = self.0.pool();
        pool.busy -= 1;
        pool.hand_on();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn calls_are_worked_off_in_order_by_as_many_as_there_are() {
        let workers = Workers::new(2);
        let begun = Instant::now();
        let ends: Vec<_> = (0..4)
            .map(|_| {
                let workers = workers.clone();
                tokio::spawn(async move {
                    workers.work(Duration::from_millis(10)).await;
                    begun.elapsed().as_millis()
                })
            })
            .collect();
        let mut at = Vec::new();
        for end in ends {
            at.push(end.await.unwrap());
        }
        assert_eq!(at, [10, 10, 20, 20]);
    }

    #[tokio::test(start_paused = true)]
    async fn fewer_workers_finish_what_they_have_and_take_less() {
        let workers = Workers::new(2);
        let first = tokio::spawn({
            let workers = workers.clone();
            async move { workers.work(Duration::from_millis(10)).await }
        });
        tokio::task::yield_now().await;
        workers.set(0);
        let second = tokio::spawn({
            let workers = workers.clone();
            async move { workers.work(Duration::from_millis(10)).await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(first.is_finished());
        assert!(!second.is_finished());
        workers.set(1);
        second.await.unwrap();
    }
}
