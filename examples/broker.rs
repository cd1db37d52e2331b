//! A client of a message broker that survives what networks do: it publishes and subscribes over one link, while the
//! broker is killed, stalled, made to accept and close, and made to lose acknowledgements.
//!
//! `cargo run --release --example broker -- --json` sends 10 000 messages through 50 losses. Every message that was
//! acknowledged was received, in order; repeats are told by their numbers.
//!
//! The protocol is lines over TCP:
//!
//! | client | broker |
//! |---|---|
//! | `SUB position` | `SUBSCRIBED`, then `MSG position text` for all from there on |
//! | `PUB number text` | `ACK number` |
//! | `PING` | `PONG` |

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tower_sluice::BoxError;
use tower_sluice::backoff::Backoff;
use tower_sluice::facts::Source;
use tower_sluice::reconnect::{Link, LinkState, Unacked};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[derive(Parser)]
#[command(about = "Messages through a broker that fails on purpose")]
struct Args {
    /// Messages to send.
    #[arg(long, default_value_t = 10_000)]
    messages: u64,
    /// Times that the broker is made to fail.
    #[arg(long, default_value_t = 50)]
    losses: u64,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let args = Args::parse();
    let summary = run(args.messages, args.losses).await?;
    println!(
        "{} messages sent, {} acknowledged, {} received in order, {} lost, {} reordered, {} repeats recognised, \
         {} losses of the link, {} ms",
        summary.sent,
        summary.acknowledged,
        summary.received,
        summary.lost,
        summary.reordered,
        summary.repeats,
        summary.losses,
        summary.elapsed_ms,
    );
    if args.json {
        println!("{}", serde_json::to_string(&summary)?);
    }
    Ok(if summary.lost == 0 && summary.reordered == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
    /// In order, each once.
    pub(crate) received: u64,
    /// Acknowledged, and not received.
    pub(crate) lost: u64,
    /// Published or delivered ahead of one that should have come before.
    pub(crate) reordered: u64,
    /// Sent or delivered again, and recognised by their numbers.
    pub(crate) repeats: u64,
    /// Times that a link which was up was lost.
    pub(crate) losses: u64,
    pub(crate) elapsed_ms: u128,
}

pub(crate) async fn run(messages: u64, losses: u64) -> Result<Summary, BoxError> {
    let start = Instant::now();
    let broker = Broker::start().await?;
    let session = Session::new();
    let address = broker.address;

    let dial = session.clone();
    let restore = session.clone();
    let link = Link::connect(move || Conn::dial(address, dial.clone()))
        .restore(move |conn: Conn| {
            let session = restore.clone();
            async move {
                conn.subscribe(session.position()).await?;
                for (number, text) in session.unacked.iter() {
                    conn.publish(number, &text).await?;
                }
                Ok::<_, BoxError>(conn)
            }
        })
        .closed(Conn::closed)
        .heartbeat(ms(50), Conn::ping)
        .heartbeat_timeout(ms(100))
        // A tenth of what one would take in earnest, so that fifty losses fit into a few seconds.
        .restore_timeout(ms(500))
        .connect_timeout(ms(500))
        .backoff(Backoff::exponential(ms(10), ms(100)))
        .first_wait(ms(20))
        .min_uptime(ms(20))
        .name("broker")
        .spawn();

    let trouble = tokio::spawn(make_trouble(broker.clone(), link.clone(), session.clone(), messages, losses));
    for n in 1..=messages {
        let order = format!("order {n}");
        let number = session.unacked.push(order.clone()).await?;
        let conn = link.get().await?;
        tokio::select! {
            sent = conn.publish(number, &order) => if let Err(error) = sent {
                conn.broken(error); // `restore` sends it again
            },
            // A stalled broker reads nothing, and this would wait for it to read.
            () = conn.lost() => {}
        }
    }
    session.unacked.all_acked().await;
    trouble.await?;
    timeout(Duration::from_secs(10), session.received(messages)).await?;

    let inbox = session.inbox.lock().unwrap();
    let store = broker.store.lock().unwrap();
    let acknowledged = messages - session.unacked.len() as u64;
    Ok(Summary {
        sent: messages,
        acknowledged,
        received: inbox.received,
        lost: acknowledged.saturating_sub(inbox.received),
        reordered: inbox.gaps + store.gaps,
        repeats: inbox.repeats + store.repeats,
        losses: link.sample().links.map_or(0, |links| links.lost),
        elapsed_ms: start.elapsed().as_millis(),
    })
}

/// Spreads the losses evenly over the messages, every kind in turn.
async fn make_trouble(broker: Broker, link: Link<Conn>, session: Session, messages: u64, losses: u64) {
    let kinds = [Mode::Killed, Mode::Stalled, Mode::AcceptsAndCloses, Mode::LosesAcks];
    let mut state = link.state();
    for (n, kind) in (1..=losses).zip(kinds.into_iter().cycle()) {
        session.received(n * messages / (losses + 1)).await;
        let _ = state.wait_for(LinkState::is_connected).await;
        broker.set(kind);
        let _ = state.wait_for(|state| !state.is_connected()).await;
        sleep(ms(30)).await;
        broker.set(Mode::Serves);
    }
}

/// What the client keeps over all connections: what was not acknowledged, and how far it has read.
#[derive(Clone)]
struct Session {
    unacked: Unacked<String>,
    inbox: Arc<Mutex<Inbox>>,
    progress: Arc<Notify>,
}

#[derive(Default)]
struct Inbox {
    received: u64,
    repeats: u64,
    gaps: u64,
}

impl Session {
    fn new() -> Self {
        Self { unacked: Unacked::new(100), inbox: Arc::default(), progress: Arc::default() }
    }

    /// The position to read from.
    fn position(&self) -> u64 {
        self.inbox.lock().unwrap().received + 1
    }

    fn deliver(&self, position: u64, text: &str) {
        {
            let mut inbox = self.inbox.lock().unwrap();
            match position.cmp(&(inbox.received + 1)) {
                std::cmp::Ordering::Less => inbox.repeats += 1,
                std::cmp::Ordering::Equal if text == format!("order {position}") => inbox.received += 1,
                std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => inbox.gaps += 1,
            }
        }
        self.progress.notify_waiters();
    }

    async fn received(&self, count: u64) {
        loop {
            let progress = self.progress.notified();
            if self.inbox.lock().unwrap().received >= count {
                return;
            }
            progress.await;
        }
    }
}

/// One connection to the broker. A task of its own owns the socket, since many share the connection, and a socket
/// has one reader and one writer.
struct Conn {
    out: mpsc::Sender<String>,
    /// Answers to `SUB` and `PING`, counted.
    answers: watch::Receiver<u64>,
    closed: watch::Receiver<Option<String>>,
    socket: JoinHandle<()>,
}

impl Conn {
    async fn dial(address: std::net::SocketAddr, session: Session) -> Result<Self, BoxError> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (out, outgoing) = mpsc::channel(64);
        let (answered, answers) = watch::channel(0);
        let (close, closed) = watch::channel(None);
        let socket = tokio::spawn(async move {
            let reason = match pump(stream, outgoing, answered, session).await {
                Ok(()) => "end of stream".to_owned(),
                Err(error) => error.to_string(),
            };
            close.send_replace(Some(reason));
        });
        Ok(Self { out, answers, closed, socket })
    }

    async fn subscribe(&self, position: u64) -> Result<(), BoxError> {
        self.ask(format!("SUB {position}\n")).await
    }

    async fn ping(&self) -> Result<(), BoxError> {
        self.ask("PING\n".to_owned()).await
    }

    async fn ask(&self, question: String) -> Result<(), BoxError> {
        let mut answers = self.answers.clone();
        answers.mark_unchanged();
        self.out.send(question).await?;
        answers.changed().await?;
        Ok(())
    }

    async fn publish(&self, number: u64, text: &str) -> Result<(), BoxError> {
        self.out.send(format!("PUB {number} {text}\n")).await?;
        Ok(())
    }

    async fn closed(&self) -> Result<(), BoxError> {
        let mut closed = self.closed.clone();
        let reason = closed.wait_for(Option::is_some).await?.clone();
        Err(reason.unwrap_or_default().into())
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.socket.abort();
    }
}

/// Moves lines both ways until the socket ends.
async fn pump(
    mut stream: TcpStream,
    mut outgoing: mpsc::Receiver<String>,
    answered: watch::Sender<u64>,
    session: Session,
) -> Result<(), BoxError> {
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read).lines();
    let reading = async {
        while let Some(line) = lines.next_line().await? {
            let mut words = line.splitn(3, ' ');
            match (words.next(), words.next().and_then(|number| number.parse().ok())) {
                (Some("ACK"), Some(number)) => drop(session.unacked.ack(number)),
                (Some("MSG"), Some(position)) => session.deliver(position, words.next().unwrap_or_default()),
                (Some("SUBSCRIBED" | "PONG"), _) => answered.send_modify(|answers| *answers += 1),
                _ => return Err(BoxError::from(format!("not understood: {line}"))),
            }
        }
        Ok(())
    };
    let writing = async {
        while let Some(line) = outgoing.recv().await {
            write.write_all(line.as_bytes()).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}

/// What the broker does, for good or ill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Serves,
    /// Nobody listens.
    Killed,
    /// Open, and silent.
    Stalled,
    /// Whoever connects is let in and thrown out.
    AcceptsAndCloses,
    /// Keeps what it is sent, says nothing about it, and closes soon.
    LosesAcks,
}

#[derive(Clone)]
struct Broker {
    address: std::net::SocketAddr,
    mode: Arc<watch::Sender<Mode>>,
    store: Arc<Mutex<Store>>,
    stored: Arc<Notify>,
}

/// What survives a restart: the broker's disk.
#[derive(Default)]
struct Store {
    log: Vec<String>,
    repeats: u64,
    gaps: u64,
}

impl Broker {
    async fn start() -> Result<Self, BoxError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let broker = Self {
            address: listener.local_addr()?,
            mode: Arc::new(watch::Sender::new(Mode::Serves)),
            store: Arc::default(),
            stored: Arc::default(),
        };
        tokio::spawn(broker.clone().listen(listener));
        Ok(broker)
    }

    fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    async fn listen(self, mut listener: TcpListener) -> Result<(), BoxError> {
        let mut mode = self.mode.subscribe();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let (stream, _) = accepted?;
                    tokio::spawn(self.clone().serve(stream));
                }
                changed = mode.changed() => {
                    changed?;
                    if *mode.borrow_and_update() != Mode::Killed {
                        continue;
                    }
                    drop(listener);
                    mode.wait_for(|mode| *mode != Mode::Killed).await?;
                    listener = TcpListener::bind(self.address).await?;
                }
            }
        }
    }

    async fn serve(self, mut stream: TcpStream) -> Result<(), BoxError> {
        let mut mode = self.mode.subscribe();
        let began_as = *mode.borrow_and_update();
        match began_as {
            Mode::Killed | Mode::AcceptsAndCloses => return Ok(()),
            Mode::Stalled => {
                mode.changed().await?;
                return Ok(());
            }
            Mode::Serves | Mode::LosesAcks => {}
        }
        let (read, mut write) = stream.split();
        let mut lines = BufReader::new(read).lines();
        let mut acks = true;
        let mut subscribed: Option<usize> = None;
        let silence = sleep(Duration::MAX);
        tokio::pin!(silence);
        loop {
            let stored = self.stored.notified();
            let mut out = String::new();
            if let Some(position) = &mut subscribed {
                let store = self.store.lock().unwrap();
                while let Some(text) = store.log.get(*position - 1) {
                    out += &format!("MSG {position} {text}\n");
                    *position += 1;
                }
            }
            write.write_all(out.as_bytes()).await?;
            tokio::select! {
                line = lines.next_line() => {
                    let Some(line) = line? else { return Ok(()) };
                    let mut words = line.splitn(3, ' ');
                    let answer = match (words.next(), words.next().and_then(|n| n.parse::<usize>().ok())) {
                        (Some("SUB"), Some(position)) => {
                            subscribed = Some(position.max(1));
                            "SUBSCRIBED\n".to_owned()
                        }
                        (Some("PUB"), Some(number)) => {
                            self.keep(number, words.next().unwrap_or_default());
                            if acks { format!("ACK {number}\n") } else { String::new() }
                        }
                        (Some("PING"), _) => "PONG\n".to_owned(),
                        _ => return Err(format!("not understood: {line}").into()),
                    };
                    write.write_all(answer.as_bytes()).await?;
                }
                () = stored => {}
                changed = mode.changed() => {
                    changed?;
                    let now = *mode.borrow_and_update();
                    match now {
                        Mode::Killed | Mode::AcceptsAndCloses => return Ok(()),
                        Mode::Stalled => {
                            mode.changed().await?;
                            return Ok(());
                        }
                        Mode::LosesAcks => {
                            acks = false;
                            silence.as_mut().reset(Instant::now() + ms(10));
                        }
                        Mode::Serves => {}
                    }
                }
                () = &mut silence => return Ok(()),
            }
        }
    }

    fn keep(&self, number: usize, text: &str) {
        {
            let mut store = self.store.lock().unwrap();
            match number.cmp(&(store.log.len() + 1)) {
                std::cmp::Ordering::Less => store.repeats += 1,
                std::cmp::Ordering::Equal => store.log.push(text.to_owned()),
                std::cmp::Ordering::Greater => store.gaps += 1,
            }
        }
        self.stored.notify_waiters();
    }
}
