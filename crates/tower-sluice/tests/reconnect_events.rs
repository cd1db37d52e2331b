//! The events of a link. A test of its own: what is enabled is remembered for the whole process.
#![cfg(feature = "reconnect")]

use std::future::ready;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tower_sluice::reconnect::Link;

/// What a subscriber was told, one line an event.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<u8>>>);

impl Write for Told {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn e1_each_state_and_act_is_one_event() {
    let told = Told::default();
    let writer = told.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);

    let mut answers = [Err("refused"), Ok(())].into_iter();
    let link = Link::connect(move || ready(answers.next().unwrap_or(Err("gone")))).name("db").seed(7).spawn();
    link.get().await.unwrap();
    link.give_up();
    link.retry_now();

    let told = String::from_utf8(told.0.lock().unwrap().clone()).unwrap();
    let told: Vec<_> = told.lines().map(str::trim).collect();
    assert_eq!(told.len(), 7, "{told:#?}");
    assert_eq!(told[0], r#"INFO link="db" state="connecting" attempt=0"#);
    assert!(told[1].starts_with(r#"INFO link="db" state="waiting" attempt=1 delay="#), "{}", told[1]);
    assert!(told[1].ends_with(r#"kind="connect_failed" cause=could not connect: refused"#), "{}", told[1]);
    assert_eq!(told[2], r#"INFO link="db" state="connecting" attempt=1"#);
    assert_eq!(told[3], r#"INFO link="db" state="restoring" attempt=1"#);
    assert_eq!(told[4], r#"INFO link="db" state="connected" generation=1"#);
    assert_eq!(told[5], r#"INFO link="db" state="disconnected" kind="gave_up" cause=given up act="give_up""#);
    assert_eq!(told[6], r#"INFO link="db" state="connecting" attempt=0 act="retry_now""#);
}
