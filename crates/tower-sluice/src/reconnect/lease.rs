use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tokio::sync::Notify;

use super::machine::Event;
use super::shared::Owner;
use super::state::{Cause, CauseKind};
use crate::BoxError;

/// The use of one connection: that of one generation of the link.
///
/// It dereferences to the connection. The connection is shared with everybody else who has a lease of the generation;
/// what needs `&mut`, such as the sink of a websocket, lies in the connection behind a lock or a channel of its own.
///
/// A lease of a generation that was lost still works as far as its connection does. Ask the link for a new one.
pub struct Lease<C> {
    owner: Arc<Owner<C>>,
    connection: Arc<C>,
    generation: u64,
}

impl<C> Lease<C> {
    pub(super) fn new(owner: Arc<Owner<C>>, connection: Arc<C>, generation: u64) -> Self {
        Self { owner, connection, generation }
    }

    /// Which connection of the link this is: 1 for the first that was restored.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the link still holds this connection.
    pub fn is_current(&self) -> bool {
        self.owner.shared.is_current(self.generation)
    }

    /// Reports that the connection is of no use any more, and why.
    ///
    /// When this returns, nobody is given this connection again. A late report about a generation that is gone
    /// changes nothing.
    pub fn broken(&self, error: impl Into<BoxError>) {
        self.end(Cause::new(CauseKind::Broken, error.into()));
    }

    /// Marks the start of an exchange that must not be left half-way, such as a request whose answer has to be read
    /// before the next one: dropped before [`complete`](Exchange::complete), the connection is
    /// [`broken`](Self::broken).
    ///
    /// ```
    /// # use tower_sluice::reconnect::Lease;
    /// # struct Conn;
    /// # impl Conn { async fn send(&self, _: &str) -> std::io::Result<()> { Ok(()) }
    /// #             async fn receive(&self) -> std::io::Result<String> { Ok(String::new()) } }
    /// async fn ask(conn: &Lease<Conn>, question: &str) -> std::io::Result<String> {
    ///     let exchange = conn.exchange();
    ///     conn.send(question).await?;
    ///     let answer = conn.receive().await?; // cancelled here, the next caller would read our answer
    ///     exchange.complete();
    ///     Ok(answer)
    /// }
    /// ```
    pub fn exchange(&self) -> Exchange<'_, C> {
        Exchange { lease: Some(self) }
    }

    /// Waits until the link has let go of this connection.
    ///
    /// For what may hang on a peer that is gone without a word: `select!` between it and this.
    pub async fn lost(&self) {
        loop {
            // Made before the look, so that no loss falls between the two.
            let moved = self.moved().notified_owned();
            if !self.is_current() {
                return;
            }
            moved.await;
        }
    }

    /// Notified when this connection may have been lost.
    pub(super) fn moved(&self) -> Arc<Notify> {
        self.owner.shared.moved()
    }

    pub(super) fn end(&self, cause: Cause) {
        self.owner.shared.step(&Event::Lost { generation: self.generation, cause });
    }
}

impl<C> Deref for Lease<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.connection
    }
}

impl<C> Clone for Lease<C> {
    fn clone(&self) -> Self {
        Self {
            owner: Arc::clone(&self.owner),
            connection: Arc::clone(&self.connection),
            generation: self.generation,
        }
    }
}

impl<C> fmt::Debug for Lease<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// An exchange that is under way, made by [`Lease::exchange`].
#[must_use = "dropped at once, it reports the connection as broken"]
pub struct Exchange<'a, C> {
    lease: Option<&'a Lease<C>>,
}

impl<C> Exchange<'_, C> {
    /// The exchange came to its end, and the connection is ready for the next one.
    pub fn complete(mut self) {
        self.lease = None;
    }
}

impl<C> Drop for Exchange<'_, C> {
    fn drop(&mut self) {
        if let Some(lease) = self.lease {
            lease.broken("an exchange was left half-way");
        }
    }
}

impl<C> fmt::Debug for Exchange<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").finish_non_exhaustive()
    }
}
