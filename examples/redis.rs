//! A subscriber of Redis, with the `redis` crate's low-level connection under a link: a real `redis-server` is killed
//! and started again while messages flow, and the subscription comes back each time.
//!
//! `cargo run --example redis` starts a server of its own on a free port of the loopback interface, and ends by itself.
//! Without `redis-server` (Debian's package of that name) it says so and does nothing.
//!
//! Redis forgets what it published to nobody, so what is published while the link is down is lost by its own rules.
//! What must hold is that nothing is missing while the link is up, and that nothing comes twice or out of order.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};
use tower_sluice::BoxError;
use tower_sluice::backoff::Backoff;
use tower_sluice::reconnect::{Link, LinkState};

const CHANNEL: &str = "orders";

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let Some(received) = run(3).await? else {
        println!("skipped: there is no redis-server on this machine");
        return Ok(());
    };
    for (generation, numbers) in received {
        let (first, last) = (numbers.first().copied(), numbers.last().copied());
        println!("connection {generation}: {} messages, {first:?} to {last:?}", numbers.len());
    }
    Ok(())
}

/// What each connection received, by generation. `None` where there is no `redis-server`.
pub(crate) async fn run(kills: u64) -> Result<Option<BTreeMap<u64, Vec<u64>>>, BoxError> {
    let Some(mut server) = Server::start().await? else { return Ok(None) };
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", server.port))?;

    let dial = client.clone();
    let link = Link::connect(move || {
        let client = dial.clone();
        async move {
            let (sink, stream) = client.get_async_pubsub().await?.split();
            Ok::<_, redis::RedisError>(Conn { sink: sink.into(), stream: stream.into() })
        }
    })
    .restore(|conn: Conn| async move {
        conn.sink.lock().await.subscribe(CHANNEL).await?;
        Ok::<_, redis::RedisError>(conn)
    })
    .heartbeat(Duration::from_secs(1), Conn::ping)
    // Short, so that the example is.
    .backoff(Backoff::exponential(ms(50), ms(200)))
    .first_wait(ms(100))
    .min_uptime(ms(200))
    .name("redis")
    .spawn();

    let received = Arc::new(Mutex::new(BTreeMap::<u64, Vec<u64>>::new()));
    let subscriber = tokio::spawn(subscribe(link.clone(), Arc::clone(&received)));
    let stop = Arc::new(AtomicBool::new(false));
    let publisher = tokio::spawn(publish(client, Arc::clone(&stop)));

    let mut state = link.state();
    for kill in 0..=kills {
        let up = |state: &LinkState| matches!(state, LinkState::Connected { generation, .. } if *generation > kill);
        state.wait_for(up).await?;
        sleep(ms(300)).await; // messages flow
        if kill < kills {
            server.kill().await?;
            state.wait_for(|state| !state.is_connected()).await?;
            sleep(ms(200)).await; // and are lost
            server.run().await?;
        }
    }
    stop.store(true, Ordering::Relaxed);
    publisher.await?;
    link.give_up();
    subscriber.await?;
    let received = std::mem::take(&mut *received.lock().unwrap());
    Ok(Some(received))
}

/// A connection: the two halves of a subscription, each behind a lock, since both want `&mut` and the connection is
/// shared.
struct Conn {
    sink: tokio::sync::Mutex<PubSubSink>,
    stream: tokio::sync::Mutex<PubSubStream>,
}

impl Conn {
    async fn ping(&self) -> Result<(), redis::RedisError> {
        self.sink.lock().await.ping::<redis::Value>().await?;
        Ok(())
    }
}

/// Reads on, over all connections, until the link is given up.
async fn subscribe(link: Link<Conn>, received: Arc<Mutex<BTreeMap<u64, Vec<u64>>>>) {
    while let Ok(conn) = link.get().await {
        let mut stream = conn.stream.lock().await;
        loop {
            tokio::select! {
                message = stream.next() => match message.map(|message| message.get_payload::<u64>()) {
                    Some(Ok(number)) => {
                        received.lock().unwrap().entry(conn.generation()).or_default().push(number);
                    }
                    Some(Err(error)) => {
                        conn.broken(error);
                        break;
                    }
                    None => {
                        conn.broken("end of stream");
                        break;
                    }
                },
                () = conn.lost() => break,
            }
        }
    }
}

/// Publishes numbers, every few milliseconds, over connections of its own.
async fn publish(client: redis::Client, stop: Arc<AtomicBool>) {
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut conn) = client.get_multiplexed_async_connection().await else {
            sleep(ms(10)).await;
            continue;
        };
        loop {
            number += 1;
            let sent: Result<u64, _> =
                redis::cmd("PUBLISH").arg(CHANNEL).arg(number).query_async(&mut conn).await;
            if sent.is_err() || stop.load(Ordering::Relaxed) {
                break;
            }
            sleep(ms(2)).await;
        }
    }
}

/// A `redis-server` that ends with this value.
struct Server {
    port: u16,
    child: Child,
}

impl Server {
    async fn start() -> Result<Option<Self>, BoxError> {
        // Redis takes 0 as "do not listen": a free port is found by listening for a moment.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = match Self::spawn(port) {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let server = Self { port, child };
        server.answers().await?;
        Ok(Some(server))
    }

    fn spawn(port: u16) -> std::io::Result<Child> {
        Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
    }

    /// Starts again on the same port.
    async fn run(&mut self) -> Result<(), BoxError> {
        self.child = Self::spawn(self.port)?;
        self.answers().await
    }

    async fn kill(&mut self) -> Result<(), BoxError> {
        Ok(self.child.kill().await?)
    }

    async fn answers(&self) -> Result<(), BoxError> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            if Instant::now() > deadline {
                return Err("redis-server does not answer".into());
            }
            sleep(ms(10)).await;
        }
        Ok(())
    }
}
