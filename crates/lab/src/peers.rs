//! The peers' stacks that ours are measured against, with the settings their documentation recommends.

use crate::service::Inner;
use crate::stats::unit;
use std::time::Duration;
use tokio::time::Sleep;
use tower::limit::ConcurrencyLimit;
use tower::load_shed::LoadShed;
use tower::retry::{Policy, Retry};
use tower::timeout::Timeout;
use tower::{Layer, Service};
use tower_resilience::bulkhead::BulkheadLayer;
use tower_resilience::circuitbreaker::CircuitBreakerLayer;
use tower_resilience::retry::RetryLayer;
use tower_resilience::timelimiter::TimeLimiterLayer;

/// The whole-call timeout of every stack that has one: never reached.
pub const TIMEOUT: Duration = Duration::from_secs(3600);

/// A tower retry policy, as its users write it: three attempts, full jitter from 100 ms to 2 s, requests cloned.
/// tower leaves the policy to its users, so this one costs what a small one costs.
#[derive(Clone, Debug, Default)]
pub struct FullJitter {
    attempt: u32,
}

impl<Req: Clone, Res, E> Policy<Req, Res, E> for FullJitter {
    type Future = Sleep;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Res, E>) -> Option<Sleep> {
        if result.is_ok() || self.attempt >= 2 {
            return None;
        }
        let longest = Duration::from_millis(100 << self.attempt);
        self.attempt += 1;
        Some(tokio::time::sleep(longest.mul_f64(unit(&[7, self.attempt.into()]))))
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

/// tower's limit.
pub fn limit<S>(inner: S, limit: usize) -> ConcurrencyLimit<S> {
    ConcurrencyLimit::new(inner, limit)
}

/// tower's limit with a retry around it: the order that leaves the permit while a retry sleeps.
pub fn retry_limit<S>(inner: S, limit: usize) -> Retry<FullJitter, ConcurrencyLimit<S>> {
    Retry::new(FullJitter::default(), ConcurrencyLimit::new(inner, limit))
}

/// The same with a timeout over the whole call.
pub fn timeout_retry_limit<S>(inner: S, limit: usize) -> Timeout<Retry<FullJitter, ConcurrencyLimit<S>>> {
    Timeout::new(retry_limit(inner, limit), TIMEOUT)
}

/// tower's way to turn calls away.
pub fn shed_limit<S>(inner: S, limit: usize) -> LoadShed<ConcurrencyLimit<S>> {
    LoadShed::new(ConcurrencyLimit::new(inner, limit))
}

/// tower-resilience's limit, which queues in `call`.
pub fn bulkhead(limit: usize) -> BulkheadLayer {
    BulkheadLayer::builder().max_concurrent_calls(limit).build().expect("a limit above zero")
}

/// tower-resilience's retry, three attempts.
pub fn resilient_retry<E>() -> RetryLayer<u64, u64, E> {
    RetryLayer::builder().max_attempts(3).exponential_backoff(Duration::from_millis(100)).build()
}

/// A service whose calls can be made from any task.
pub trait Stack:
    Service<u64, Response = u64, Error: std::fmt::Debug + Send + 'static, Future: Send + 'static>
    + Clone
    + Send
    + 'static
{
}

impl<S> Stack for S where
    S: Service<u64, Response = u64, Error: std::fmt::Debug + Send + 'static, Future: Send + 'static>
        + Clone
        + Send
        + 'static
{
}

/// tower-resilience's time limit over retry over bulkhead.
pub fn resilient_stack(inner: impl Inner, limit: usize) -> impl Stack {
    let service = resilient_retry().layer(bulkhead(limit).layer(inner));
    TimeLimiterLayer::builder().timeout_duration(TIMEOUT).build().layer(service)
}

/// The same with its circuit breaker, in the order of its own guide.
pub fn resilient_stack_with_breaker(inner: impl Inner, limit: usize) -> impl Stack {
    let service = bulkhead(limit).layer(inner);
    let service = CircuitBreakerLayer::builder().build().expect("the defaults are valid").layer(service);
    TimeLimiterLayer::builder().timeout_duration(TIMEOUT).build().layer(resilient_retry().layer(service))
}
