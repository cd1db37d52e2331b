use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::builder::LinkBuilder;
use super::connect::Connect;
use super::get::Get;
use super::lease::Lease;
use super::machine::Event;
use super::shared::{Look, Owner};
use super::state::{Cause, LinkState};
use crate::facts::{Facts, Source};
use crate::reject::Rejection;

/// A connection that comes back: the handle to it.
///
/// Cheap to clone; all clones are one link. The [module](super) has an example. When the last handle,
/// [`Lease`] and service is gone, the connection is dropped and its driver ends: a connector, a restoring or a watch
/// that owns a `Link` of its own keeps itself alive.
pub struct Link<C> {
    owner: Arc<Owner<C>>,
}

impl Link<()> {
    /// Starts to describe a link whose connections `connector` opens.
    ///
    /// It is called anew for every try, so that addresses are looked up anew.
    pub fn connect<M: Connect>(connector: M) -> LinkBuilder<M> {
        LinkBuilder::new(connector)
    }
}

impl<C> Link<C> {
    pub(super) fn new(owner: Arc<Owner<C>>) -> Self {
        Self { owner }
    }

    pub(super) fn owner(&self) -> &Arc<Owner<C>> {
        &self.owner
    }

    /// The connection of the present generation; waits while the link is down, for as long as
    /// [`max_wait`](LinkBuilder::max_wait) allows.
    ///
    /// # Errors
    /// [`Rejection::Disconnected`], which says when the next try is and why the link is down: if the wait was too
    /// long, if more callers wait than [`max_waiting`](LinkBuilder::max_waiting), and at once if no try is planned or
    /// callers are to be [turned away](LinkBuilder::turn_away).
    ///
    /// # Panics
    /// On a runtime whose time driver is not enabled, if it has to wait.
    pub fn get(&self) -> Get<C> {
        self.get_within(self.owner.shared.settings.max_wait)
    }

    /// As [`get`](Self::get), with a longest wait of its own. Zero: never waits. `Duration::MAX`: no limit.
    pub fn get_within(&self, max_wait: Duration) -> Get<C> {
        Get::new(Arc::clone(&self.owner), max_wait)
    }

    /// The connection of the present generation, if there is one at this moment.
    ///
    /// It does not start a lazy link.
    ///
    /// # Errors
    /// [`Rejection::Disconnected`] while the link is down.
    pub fn try_get(&self) -> Result<Lease<C>, Rejection> {
        self.connected().ok_or_else(|| self.rejection())
    }

    pub(super) fn rejection(&self) -> Rejection {
        self.owner.shared.rejection()
    }

    pub(super) fn connected(&self) -> Option<Lease<C>> {
        match self.owner.shared.look() {
            Look::Connected(connection, generation) => {
                Some(Lease::new(Arc::clone(&self.owner), connection, generation))
            }
            Look::NotStarted | Look::Down | Look::Disconnected => None,
        }
    }

    /// The state, to be read at any time and awaited on change. Ends when the link does.
    ///
    /// A receiver keeps no link alive.
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.owner.shared.subscribe()
    }

    /// What last brought the link down, if anything has: also while it connects again.
    pub fn last_cause(&self) -> Option<Cause> {
        self.owner.shared.last_cause()
    }

    /// How many callers wait for a connection.
    pub fn waiting(&self) -> usize {
        self.owner.shared.waiting()
    }

    /// Tries now: ends a wait, starts a lazy link, and starts afresh, with all its attempts, a link that is
    /// disconnected. Returns whether that made a difference: a link that is connected or trying is left alone.
    ///
    /// The attempts that failed still count, so that a person who presses the button often does not undo the
    /// backoff for later.
    pub fn retry_now(&self) -> bool {
        self.owner.retry_now()
    }

    /// Drops the connection, or stops trying for one, until [`retry_now`](Self::retry_now). Callers that wait are
    /// turned away. Returns whether that made a difference.
    ///
    /// When this returns, no try starts any more; one that is under way is dropped.
    pub fn give_up(&self) -> bool {
        self.owner.shared.step(&Event::GiveUp)
    }
}

/// A link tells whether it is up, and how often it was lost. As a source it is a handle: it keeps the link alive.
impl<C: Send + Sync> Source for Link<C> {
    fn sample(&self) -> Facts {
        self.owner.shared.facts().into()
    }
}

impl<C> Clone for Link<C> {
    fn clone(&self) -> Self {
        Self { owner: Arc::clone(&self.owner) }
    }
}

impl<C> fmt::Debug for Link<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("shared", &self.owner).finish()
    }
}
