use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::connect::{Connect, NoRestore, Restore};
use super::driver::Driver;
use super::link::Link;
use super::machine::Event;
use super::settings::{Settings, setters};
use super::shared::{Owner, Shared};
use super::state::Cause;
use super::watch::{ClosedReason, ConnectionFn, Watches};
use crate::error::ConfigError;

/// Describes a link; made by [`Link::connect`].
///
/// Nothing runs before [`spawn`](Self::spawn), or before the driver of [`build`](Self::build) is polled.
#[must_use = "a link is made by `spawn` or `build`"]
pub struct LinkBuilder<M: Connect, R = NoRestore> {
    connector: M,
    restorer: R,
    watches: Watches<M::Connection>,
    pub(super) settings: Settings,
}

impl<M: Connect> LinkBuilder<M> {
    pub(super) fn new(connector: M) -> Self {
        Self { connector, restorer: NoRestore, watches: Watches::default(), settings: Settings::default() }
    }

    pub(super) fn with_settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }
}

impl<M: Connect, R> LinkBuilder<M, R> {
    setters!();

    /// Starts the link with its first caller, not before. Default: in the background, at once.
    ///
    /// To have the first try succeed or fail before anything else, use [`spawn_connected`](Self::spawn_connected).
    pub fn lazy(mut self) -> Self {
        self.settings.lazy = true;
        self
    }

    /// Restores the context of each connection that was opened, before anybody is given it: takes the connection and
    /// returns it. Default: [`NoRestore`].
    ///
    /// A failure, or taking longer than [`restore_timeout`](Self::restore_timeout), is a failed try, and the
    /// connection is dropped.
    pub fn restore<R2>(self, restore: R2) -> LinkBuilder<M, R2>
    where
        R2: Restore<M::Connection>,
    {
        LinkBuilder {
            connector: self.connector,
            restorer: restore,
            watches: self.watches,
            settings: self.settings,
        }
    }

    /// The longest that restoring may take; then the try has failed. Default: 10 s. `Duration::MAX`: no limit.
    pub fn restore_timeout(mut self, timeout: Duration) -> Self {
        self.settings.restore_timeout = timeout;
        self
    }

    /// A sign of loss: the connection's own future that ends when it is closed, such as `Conn::closed`.
    ///
    /// It runs over each generation in turn. Without it, a link that nobody uses does not notice that it was lost.
    pub fn closed<F, T>(mut self, closed: F) -> Self
    where
        F: for<'a> ConnectionFn<'a, M::Connection, Output = T> + Send + Sync + 'static,
        T: ClosedReason,
        M::Connection: Send + Sync + 'static,
    {
        self.watches.closed(closed);
        self
    }

    /// A sign of loss: `beat` runs `every` so often, and fails, or takes longer than
    /// [`heartbeat_timeout`](Self::heartbeat_timeout).
    ///
    /// It finds what no other sign does: a peer that is gone without a word.
    ///
    /// # Panics
    /// If `every` is zero. [`try_heartbeat`](Self::try_heartbeat) returns the error instead.
    #[track_caller]
    pub fn heartbeat<F, T, E>(self, every: Duration, beat: F) -> Self
    where
        F: for<'a> ConnectionFn<'a, M::Connection, Output = Result<T, E>> + Send + Sync + 'static,
        E: Into<crate::BoxError>,
        M::Connection: Send + Sync + 'static,
    {
        match self.try_heartbeat(every, beat) {
            Ok(this) => this,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`heartbeat`](Self::heartbeat), for a period that comes from configuration.
    ///
    /// # Errors
    /// If `every` is zero.
    pub fn try_heartbeat<F, T, E>(mut self, every: Duration, beat: F) -> Result<Self, ConfigError>
    where
        F: for<'a> ConnectionFn<'a, M::Connection, Output = Result<T, E>> + Send + Sync + 'static,
        E: Into<crate::BoxError>,
        M::Connection: Send + Sync + 'static,
    {
        if every.is_zero() {
            return Err(ConfigError::new("heartbeat", "0s", "above zero"));
        }
        self.watches.heartbeat(every, beat);
        Ok(self)
    }

    /// The longest that one beat may take. Default: the heartbeat's own period.
    pub fn heartbeat_timeout(mut self, timeout: Duration) -> Self {
        self.watches.heartbeat_timeout(timeout);
        self
    }
}

impl<M, R> LinkBuilder<M, R>
where
    M: Connect,
    M::Connection: Send + Sync + 'static,
    R: Restore<M::Connection>,
{
    /// Makes the link, and the driver that has to be polled for anything to happen.
    pub fn build(self) -> (Link<M::Connection>, Driver<M, R>) {
        let lazy = self.settings.lazy;
        let shared = Arc::new(Shared::new(self.settings));
        let driver = Driver::new(Arc::clone(&shared), self.connector, self.restorer, self.watches);
        if !lazy {
            shared.step(&Event::Wanted);
        }
        (Link::new(Arc::new(Owner::new(shared))), driver)
    }

    /// Makes the link, and spawns its driver on the current runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn spawn(self) -> Link<M::Connection>
    where
        Driver<M, R>: Future<Output = ()> + Send + 'static,
    {
        let (link, driver) = self.build();
        tokio::spawn(driver);
        link
    }

    /// As [`spawn`](Self::spawn), and waits for the first try.
    ///
    /// # Errors
    /// Why the first try failed; there is no second one then.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn spawn_connected(mut self) -> Result<Link<M::Connection>, Cause>
    where
        Driver<M, R>: Future<Output = ()> + Send + 'static,
    {
        self.settings.lazy = false;
        let (link, driver) = self.build();
        let mut state = link.state();
        tokio::spawn(driver);
        loop {
            // A reader may miss a state, but never that of a try that failed: the cause stays until the next.
            if let Some(cause) = link.last_cause() {
                return Err(cause);
            }
            if state.borrow_and_update().is_connected() {
                return Ok(link);
            }
            // The link, which we hold, keeps the sender.
            let _ = state.changed().await;
        }
    }

    /// Makes the link outside a runtime: its driver is spawned, and its first try made, with the first caller.
    pub(super) fn spawn_with_first_caller(mut self) -> Link<M::Connection>
    where
        Driver<M, R>: Future<Output = ()> + Send + 'static,
    {
        self.settings.lazy = true;
        let (link, driver) = self.build();
        link.owner().keep_driver(Box::pin(driver));
        link
    }
}

impl<M: Connect, R> fmt::Debug for LinkBuilder<M, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkBuilder")
            .field("settings", &self.settings)
            .field("watches", &self.watches)
            .finish_non_exhaustive()
    }
}
