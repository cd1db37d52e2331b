use std::sync::Arc;
use std::time::Duration;

use tower_sluice_backoff::{Backoff, random_seed};

use super::machine::Plan;
use crate::error::ConfigError;

/// What a link can be told, whichever way it is built.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) backoff: Backoff,
    pub(super) first_wait: Duration,
    pub(super) max_attempts: Option<u32>,
    pub(super) min_uptime: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) restore_timeout: Duration,
    pub(super) max_wait: Duration,
    pub(super) max_waiting: usize,
    pub(super) lazy: bool,
    pub(super) name: Option<Arc<str>>,
    pub(super) seed: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backoff: Backoff::connection(),
            first_wait: Duration::from_secs(2),
            max_attempts: None,
            min_uptime: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(20),
            restore_timeout: Duration::from_secs(10),
            max_wait: Duration::from_secs(30),
            max_waiting: 1_024,
            lazy: false,
            name: None,
            seed: None,
        }
    }
}

impl Settings {
    pub(super) fn plan(&self) -> Plan {
        Plan {
            backoff: self.backoff,
            first_wait: self.first_wait,
            max_attempts: self.max_attempts,
            min_uptime: self.min_uptime,
            seed: self.seed.unwrap_or_else(random_seed),
        }
    }

    pub(super) fn try_max_attempts(&mut self, attempts: u32) -> Result<(), ConfigError> {
        if attempts == 0 {
            return Err(ConfigError::new("max_attempts", attempts, "at least 1, the first try included"));
        }
        self.max_attempts = Some(attempts);
        Ok(())
    }
}

/// The setters of [`Settings`], for each builder that has a field `settings`.
macro_rules! setters {
    () => {
        /// How the waits between tries grow and are spread. Default:
        /// [`Backoff::connection`](tower_sluice_backoff::Backoff::connection), 500 ms to 30 s.
        ///
        /// Tries count from 0, and the wait before try `k` is drawn on the backoff's value of step `k`: with the default
        /// between 500 ms and 1 s before the second try, between 4 and 8 s before the fifth. The wait before
        /// try 0 is none at the start, and [`first_wait`](Self::first_wait) after a loss.
        pub fn backoff(mut self, backoff: tower_sluice_backoff::Backoff) -> Self {
            self.settings.backoff = backoff;
            self
        }

        /// The longest first wait after a stable link was lost: it is drawn uniformly from above zero up to this.
        /// Default: 2 s. Zero: none.
        ///
        /// A server that restarts loses all its clients in one instant, and whoever returns at once returns with all
        /// the others.
        pub fn first_wait(mut self, longest: std::time::Duration) -> Self {
            self.settings.first_wait = longest;
            self
        }

        /// Tries before the link gives up by itself, the first included. Default: no limit, since a service has to
        /// come back at three in the morning; a person who waits for a window to open may prefer 8.
        ///
        /// # Panics
        /// If `attempts` is 0. [`try_max_attempts`](Self::try_max_attempts) returns the error instead.
        #[track_caller]
        pub fn max_attempts(self, attempts: u32) -> Self {
            match self.try_max_attempts(attempts) {
                Ok(this) => this,
                Err(error) => panic!("{error}"),
            }
        }

        /// As [`max_attempts`](Self::max_attempts), for a number that comes from configuration.
        ///
        /// # Errors
        /// If `attempts` is 0.
        pub fn try_max_attempts(mut self, attempts: u32) -> Result<Self, crate::error::ConfigError> {
            self.settings.try_max_attempts(attempts)?;
            Ok(self)
        }

        /// How long a restored link has to live to count as stable. Default: 10 s.
        ///
        /// One that is lost sooner counts as a failed try, so that a peer that accepts and closes is not called
        /// more often than one that refuses.
        pub fn min_uptime(mut self, uptime: std::time::Duration) -> Self {
            self.settings.min_uptime = uptime;
            self
        }

        /// The longest that one run of the connector may take; then the try has failed. Default: 20 s, as gRPC's
        /// minimum connect timeout. `Duration::MAX`: no limit.
        pub fn connect_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.settings.connect_timeout = timeout;
            self
        }

        /// The longest that a caller waits while the link is down, before it is turned away with
        /// [`Rejection::Disconnected`](crate::reject::Rejection::Disconnected). Default: 30 s.
        /// `Duration::MAX`: no limit. Zero: as [`turn_away`](Self::turn_away).
        pub fn max_wait(mut self, wait: std::time::Duration) -> Self {
            self.settings.max_wait = wait;
            self
        }

        /// The most callers that wait at once while the link is down; more are turned away at once.
        /// Default: 1 024.
        pub fn max_waiting(mut self, callers: usize) -> Self {
            self.settings.max_waiting = callers;
            self
        }

        /// Turns callers away at once while the link is down, and tells them when the next try is.
        ///
        /// The first caller of a lazy link starts it, and is turned away as well.
        pub fn turn_away(self) -> Self {
            self.max_wait(std::time::Duration::ZERO)
        }

        /// The name of the link in events. Default: none.
        pub fn name(mut self, name: impl Into<std::sync::Arc<str>>) -> Self {
            self.settings.name = Some(name.into());
            self
        }

        /// The seed of the waits: the same seed gives the same waits. Default: the process's entropy. Two links of
        /// one seed return at the same instants, so this is for tests.
        pub fn seed(mut self, seed: u64) -> Self {
            self.settings.seed = Some(seed);
            self
        }
    };
}
pub(super) use setters;
