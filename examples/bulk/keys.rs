//! What a person, or the system, asks of a running job.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// How long the keyboard thread may outlive the job.
const POLL_EVERY: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Space.
    Toggle,
    /// Ctrl-C, or a signal that means the same.
    Stop,
}

/// Wishes as they come, until dropped. While it lives a terminal is in raw mode.
pub(crate) struct Wishes {
    wishes: UnboundedReceiver<Wish>,
    keyboard: Option<Keyboard>,
}

impl Wishes {
    /// Listens to signals and, with `keyboard`, to the keys, if standard input is a terminal.
    pub(crate) fn listen(keyboard: bool) -> Self {
        let (sender, wishes) = unbounded_channel();
        let keyboard = (keyboard && std::io::stdin().is_terminal())
            .then(|| Keyboard::open(sender.clone()).ok())
            .flatten();
        tokio::spawn(signals(sender));
        Self { wishes, keyboard }
    }

    pub(crate) async fn next(&mut self) -> Wish {
        match self.wishes.recv().await {
            Some(wish) => wish,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn has_keyboard(&self) -> bool {
        self.keyboard.is_some()
    }
}

#[cfg(unix)]
async fn signals(sender: UnboundedSender<Wish>) {
    use tokio::signal::unix::{SignalKind, signal};
    // Where a signal cannot be listened to, it keeps its usual effect.
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    loop {
        tokio::select! {
            Some(()) = interrupt.recv() => {}
            Some(()) = terminate.recv() => {}
            else => return,
        }
        if sender.send(Wish::Stop).is_err() {
            return;
        }
    }
}

#[cfg(not(unix))]
async fn signals(sender: UnboundedSender<Wish>) {
    while tokio::signal::ctrl_c().await.is_ok() && sender.send(Wish::Stop).is_ok() {}
}

/// Raw mode and the thread that reads; both end when this is dropped, on a panic too.
struct Keyboard {
    done: Arc<AtomicBool>,
}

impl Keyboard {
    fn open(sender: UnboundedSender<Wish>) -> std::io::Result<Self> {
        enable_raw_mode()?;
        let keyboard = Self { done: Arc::default() };
        let done = keyboard.done.clone();
        std::thread::Builder::new().name("keyboard".into()).spawn(move || {
            while !done.load(Relaxed) {
                let wish = match poll(POLL_EVERY) {
                    Ok(true) => read().map(wish),
                    Ok(false) => continue,
                    Err(e) => Err(e),
                };
                match wish {
                    Ok(Some(wish)) if sender.send(wish).is_err() => return,
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
        })?;
        Ok(keyboard)
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.done.store(true, Relaxed);
        let _ = disable_raw_mode();
    }
}

fn wish(event: Event) -> Option<Wish> {
    let Event::Key(key) = event else { return None };
    if key.kind != KeyEventKind::Press {
        return None;
    }
    match key.code {
        KeyCode::Char(' ') => Some(Wish::Toggle),
        // Raw mode makes it a key like any other.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Wish::Stop),
        _ => None,
    }
}
