use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep, sleep_until};

use super::caught::{Caught, catch};
use super::connect::{Connect, Restore};
use super::machine::Event;
use super::shared::{Shared, Task};
use super::state::{Cause, CauseKind};
use super::watch::{Watch, Watches};

pin_project! {
    /// Drives a link: runs the connector, restores, watches over the connection, waits.
    ///
    /// The only one of its link. It ends when the last handle, lease and service is gone; dropped before, it leaves
    /// the link disconnected for good.
    #[must_use = "a link whose driver is not polled does not connect"]
    pub struct Driver<M, R>
    where
        M: Connect,
        R: Restore<M::Connection>,
    {
        connector: M,
        restorer: R,
        watches: Watches<M::Connection>,
        // What was opened, from the end of the connector's run to the start of the restoring.
        opened: Option<M::Connection>,
        #[pin]
        work: Work<M::Future, R::Future>,
        // The transition that `work` was begun for.
        seen: Option<u64>,
        wheel: Wheel<M::Connection>,
    }
}

pin_project! {
    /// What is being done in the present state. Setting the next drops the last one, and with it its timer.
    #[project = WorkProj]
    enum Work<F, R> {
        Nothing,
        Connecting { #[pin] future: Caught<F>, #[pin] timeout: Sleep },
        Restoring { #[pin] future: Caught<R>, #[pin] timeout: Sleep },
        Watching { generation: u64, watch: Watch },
        Waiting { #[pin] timer: Sleep },
    }
}

/// The driver's hold on the link: on its drop, nobody is left to connect it.
struct Wheel<C> {
    shared: Arc<Shared<C>>,
}

impl<C> Drop for Wheel<C> {
    fn drop(&mut self) {
        self.shared.step(&Event::NotDriven);
    }
}

impl<M, R> Driver<M, R>
where
    M: Connect,
    R: Restore<M::Connection>,
{
    pub(super) fn new(
        shared: Arc<Shared<M::Connection>>,
        connector: M,
        restorer: R,
        watches: Watches<M::Connection>,
    ) -> Self {
        Self {
            connector,
            restorer,
            watches,
            opened: None,
            work: Work::Nothing,
            seen: None,
            wheel: Wheel { shared },
        }
    }
}

impl<M, R> Future for Driver<M, R>
where
    M: Connect,
    M::Connection: Send + Sync + 'static,
    R: Restore<M::Connection>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let shared = &this.wheel.shared;
        loop {
            // The state is looked at before the work: an operator's word comes before what the work has to say.
            let failed = match shared.drive(cx.waker(), this.seen) {
                Task::End => return Poll::Ready(()),
                Task::GoOn => None,
                Task::Nothing => {
                    this.work.set(Work::Nothing);
                    None
                }
                Task::Connect => {
                    this.work.set(Work::Nothing);
                    match catch(|| this.connector.connect()) {
                        Ok(future) => {
                            let timeout = sleep(shared.settings.connect_timeout);
                            this.work.set(Work::Connecting { future: Caught::new(future), timeout });
                            None
                        }
                        Err(panicked) => Some(panicked),
                    }
                }
                Task::Restore => {
                    this.work.set(Work::Nothing);
                    // There is one: only `Opened` below leads here.
                    let Some(opened) = this.opened.take() else { return Poll::Pending };
                    match catch(|| this.restorer.restore(opened)) {
                        Ok(future) => {
                            let timeout = sleep(shared.settings.restore_timeout);
                            this.work.set(Work::Restoring { future: Caught::new(future), timeout });
                            None
                        }
                        Err(panicked) => Some(panicked),
                    }
                }
                Task::Watch { generation, connection } => {
                    let watch = this.watches.start(&connection);
                    this.work.set(Work::Watching { generation, watch });
                    None
                }
                Task::Wait { until } => {
                    this.work.set(Work::Waiting { timer: sleep_until(until) });
                    None
                }
            };
            // Where an operator came between, what was opened is nobody's.
            *this.opened = None;
            if let Some(panicked) = failed {
                shared.step_as_driver(&Event::Failed(panicked.into()), None, *this.seen);
                continue;
            }

            match this.work.as_mut().project() {
                WorkProj::Nothing => return Poll::Pending,
                WorkProj::Connecting { future, timeout } => {
                    let event = match future.poll(cx) {
                        Poll::Ready(Ok(Ok(connection))) => {
                            *this.opened = Some(connection);
                            Event::Opened
                        }
                        Poll::Ready(Ok(Err(error))) => {
                            Event::Failed(Cause::new(CauseKind::ConnectFailed, error.into()))
                        }
                        Poll::Ready(Err(panicked)) => Event::Failed(panicked.into()),
                        Poll::Pending => {
                            ready!(timeout.poll(cx));
                            Event::Failed(CauseKind::ConnectTimeout.into())
                        }
                    };
                    // The try is over, also where an operator's word came first and the event means nothing.
                    this.work.set(Work::Nothing);
                    if !shared.step_as_driver(&event, None, *this.seen) {
                        *this.opened = None;
                    }
                }
                WorkProj::Restoring { future, timeout } => {
                    let (event, restored) = match future.poll(cx) {
                        Poll::Ready(Ok(Ok(connection))) => (Event::Restored, Some(Arc::new(connection))),
                        Poll::Ready(Ok(Err(error))) => {
                            (Event::Failed(Cause::new(CauseKind::RestoreFailed, error.into())), None)
                        }
                        Poll::Ready(Err(panicked)) => (Event::Failed(panicked.into()), None),
                        Poll::Pending => {
                            ready!(timeout.poll(cx));
                            (Event::Failed(CauseKind::RestoreTimeout.into()), None)
                        }
                    };
                    this.work.set(Work::Nothing);
                    shared.step_as_driver(&event, restored, *this.seen);
                }
                WorkProj::Watching { generation, watch } => {
                    let cause = ready!(Pin::new(watch).poll(cx));
                    let generation = *generation;
                    this.work.set(Work::Nothing);
                    shared.step_as_driver(&Event::Lost { generation, cause }, None, *this.seen);
                }
                WorkProj::Waiting { timer } => {
                    ready!(timer.poll(cx));
                    this.work.set(Work::Nothing);
                    shared.step_as_driver(&Event::Due, None, *this.seen);
                }
            }
        }
    }
}

impl<M, R> fmt::Debug for Driver<M, R>
where
    M: Connect,
    R: Restore<M::Connection>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("shared", &self.wheel.shared).finish_non_exhaustive()
    }
}
