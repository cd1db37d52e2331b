//! A websocket whose subscriptions come back: an axum server is taken away and returned, and a person sees how long it
//! is until the next try.
//!
//! `cargo run --example websocket` runs server and client on the loopback interface, and ends by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::extract::ws::{self, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::get;
use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};
use tower_sluice::BoxError;
use tower_sluice::backoff::Backoff;
use tower_sluice::reconnect::{Lease, Link, LinkState};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    for (generation, topics) in run(ms(1_500)).await? {
        println!("connection {generation} received {topics:?}");
    }
    Ok(())
}

/// The topics that each connection received, by generation. The server is away twice, for `outage` each.
pub(crate) async fn run(outage: Duration) -> Result<BTreeMap<u64, BTreeSet<String>>, BoxError> {
    let mut server = Server::start().await?;
    let url = format!("ws://{}/", server.address);
    let topics = Topics::default();
    topics.lock().unwrap().insert("weather".to_owned());

    let wanted = topics.clone();
    let link = Link::connect(move || Conn::open(url.clone()))
        .restore(move |mut conn: Conn| {
            let wanted = wanted.clone();
            async move {
                let topics = wanted.lock().unwrap().clone();
                for topic in topics {
                    conn.subscribe(&topic).await?;
                }
                Ok::<_, BoxError>(conn)
            }
        })
        // Short, so that the example is.
        .backoff(Backoff::exponential(ms(200), ms(800)))
        .first_wait(ms(300))
        .min_uptime(ms(100))
        .name("websocket")
        .spawn();
    let countdown = tokio::spawn(count_down(link.state()));

    let mut received = BTreeMap::<u64, BTreeSet<String>>::new();
    for outages_left in (0..3).rev() {
        let conn = link.get().await?;
        let seen = received.entry(conn.generation()).or_default();
        println!("connected: connection {}", conn.generation());
        // Until every topic was heard, then until the server goes.
        read(&conn, seen, |seen| topics.lock().unwrap().iter().all(|topic| seen.contains(topic))).await?;
        if topics.lock().unwrap().insert("trains".to_owned()) {
            conn.socket.lock().await.send(Message::text("subscribe trains")).await?;
            read(&conn, seen, |seen| seen.contains("trains")).await?;
        }
        if outages_left == 0 {
            break;
        }
        sleep(ms(150)).await; // long enough to count as stable
        server.stop().await;
        if let Err(error) = read(&conn, seen, |_| false).await {
            conn.broken(error);
        }
        sleep(outage).await;
        server.run().await?;
    }
    drop(link);
    countdown.await?;
    Ok(received)
}

type Topics = Arc<Mutex<BTreeSet<String>>>;

/// A connection. Its socket wants `&mut`, and many could share the connection: it lies behind a lock.
struct Conn {
    socket: tokio::sync::Mutex<WebSocketStream<MaybeTlsStream<TcpStream>>>,
}

impl Conn {
    async fn open(url: String) -> Result<Self, BoxError> {
        let (socket, _) = connect_async(url).await?;
        Ok(Self { socket: socket.into() })
    }

    /// While nobody else has the connection.
    async fn subscribe(&mut self, topic: &str) -> Result<(), BoxError> {
        let socket = self.socket.get_mut();
        socket.send(Message::text(format!("subscribe {topic}"))).await?;
        let expected = format!("subscribed {topic}");
        while let Some(message) = socket.next().await {
            // Of an earlier subscription, words may come in between.
            if message?.to_text()? == expected {
                return Ok(());
            }
        }
        Err("closed while subscribing".into())
    }
}

/// Reads topics until `enough`, or fails when the socket does.
async fn read(
    conn: &Lease<Conn>,
    seen: &mut BTreeSet<String>,
    enough: impl Fn(&BTreeSet<String>) -> bool,
) -> Result<(), BoxError> {
    let mut socket = conn.socket.lock().await;
    while !enough(seen) {
        let message = timeout(Duration::from_secs(10), socket.next()).await?.ok_or("end of stream")??;
        match message {
            Message::Text(text) => {
                if let Some((topic, _)) = text.split_once(": ") {
                    seen.insert(topic.to_owned());
                }
            }
            Message::Close(_) => return Err("closed by the server".into()),
            _ => {}
        }
    }
    Ok(())
}

/// What a person sees while the link is down.
async fn count_down(mut state: watch::Receiver<LinkState>) {
    loop {
        let shown = state.borrow_and_update().clone();
        if let LinkState::Waiting { attempt, cause, .. } = &shown {
            let left = shown.next_try(Instant::now()).unwrap_or_default();
            println!("try {attempt} in {:.1} s ({cause})", left.as_secs_f64());
        }
        let tick = if matches!(shown, LinkState::Waiting { .. }) { ms(100) } else { Duration::MAX };
        if let Ok(Err(_)) = timeout(tick, state.changed()).await {
            return; // the link is gone
        }
    }
}

/// A server of topics: to whoever subscribes to one it says something about it every few milliseconds.
struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    running: JoinHandle<()>,
}

impl Server {
    async fn start() -> Result<Self, BoxError> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (stop, running) = Self::serve(listener);
        Ok(Self { address, stop, running })
    }

    fn serve(listener: TcpListener) -> (watch::Sender<bool>, JoinHandle<()>) {
        let (stop, stopped) = watch::channel(false);
        let app = Router::new().route("/", get(upgrade)).with_state(stopped.clone());
        let running = tokio::spawn(async move {
            let mut stopped = stopped;
            let stopped = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
            // An error is the end of this server all the same.
            let _ = axum::serve(listener, app).with_graceful_shutdown(stopped).await;
        });
        (stop, running)
    }

    /// Takes the server away, with all its connections.
    async fn stop(&mut self) {
        self.stop.send_replace(true);
        let _ = (&mut self.running).await;
    }

    async fn run(&mut self) -> Result<(), BoxError> {
        let listener = TcpListener::bind(self.address).await?;
        (self.stop, self.running) = Self::serve(listener);
        Ok(())
    }
}

async fn upgrade(upgrade: WebSocketUpgrade, State(stopped): State<watch::Receiver<bool>>) -> Response {
    upgrade.on_upgrade(|socket| async move {
        // A client that went away is no concern of the server's.
        let _ = talk(socket, stopped).await;
    })
}

async fn talk(mut socket: ws::WebSocket, mut stopped: watch::Receiver<bool>) -> Result<(), BoxError> {
    let mut topics = Vec::<String>::new();
    let mut tick = interval(ms(10));
    loop {
        tokio::select! {
            message = socket.recv() => {
                let Some(message) = message else { return Ok(()) };
                if let Some(topic) = message?.to_text()?.strip_prefix("subscribe ") {
                    topics.push(topic.to_owned());
                    socket.send(ws::Message::text(format!("subscribed {topic}"))).await?;
                }
            }
            _ = tick.tick() => {
                for topic in &topics {
                    socket.send(ws::Message::text(format!("{topic}: as ever"))).await?;
                }
            }
            _ = stopped.changed() => return Ok(()),
        }
    }
}
