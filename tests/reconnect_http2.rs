//! A link over hyper's HTTP/2 client connection, under queue and retry, over real sockets: a retry on a lost link waits
//! for the link, and burns no attempts on it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceExt};
use tower_sluice::BoxError;
use tower_sluice::backoff::Backoff;
use tower_sluice::reconnect::{Link, LinkState, Reconnect};
use tower_sluice_http::http_client;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A server that can be killed with all its connections, and started again on its port.
struct Server {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    running: JoinSet<()>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = Self { address, requests: Arc::default(), running: JoinSet::new() };
        server.run(listener);
        server
    }

    fn run(&mut self, listener: TcpListener) {
        let requests = Arc::clone(&self.requests);
        self.running.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let requests = Arc::clone(&requests);
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    requests.fetch_add(1, Ordering::Relaxed);
                    async move {
                        if request.uri().path() == "/slow" {
                            sleep(ms(200)).await;
                        }
                        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("served"))))
                    }
                });
                let executor = TokioExecutor::new();
                connections.spawn(async move {
                    let builder = hyper::server::conn::http2::Builder::new(executor);
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
    }

    async fn kill(&mut self) {
        self.running.shutdown().await;
    }

    async fn restart(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.run(listener);
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

/// One HTTP/2 connection: a service for any number of requests at once, and a sign of its end.
#[derive(Clone)]
struct Http2 {
    send: SendRequest<Full<Bytes>>,
    ended: watch::Receiver<Option<String>>,
}

impl Http2 {
    async fn open(address: SocketAddr) -> Result<Self, BoxError> {
        let stream = TcpStream::connect(address).await?;
        let (send, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        let (end, ended) = watch::channel(None);
        tokio::spawn(async move {
            let reason =
                connection.await.err().map_or_else(|| "closed".to_owned(), |error| error.to_string());
            end.send_replace(Some(reason));
        });
        Ok(Self { send, ended })
    }

    async fn ended(&self) -> Result<(), BoxError> {
        let mut ended = self.ended.clone();
        let reason = ended.wait_for(Option::is_some).await?.clone();
        Err(reason.unwrap_or_default().into())
    }
}

impl Service<Request<Full<Bytes>>> for Http2 {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.send.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        Box::pin(self.send.send_request(request))
    }
}

fn link(address: SocketAddr, tries: Arc<AtomicUsize>) -> Link<Http2> {
    Link::connect(move || {
        tries.fetch_add(1, Ordering::Relaxed);
        Http2::open(address)
    })
    .closed(Http2::ended)
    .backoff(Backoff::exponential(ms(20), ms(40)))
    .first_wait(ms(20))
    .min_uptime(Duration::ZERO)
    .seed(7)
    .spawn()
}

fn get(address: SocketAddr, path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("http://{address}{path}")).body(Full::default()).unwrap()
}

async fn text(response: Response<Incoming>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

#[tokio::test]
async fn c5_a_call_on_a_lost_link_waits_for_it_and_burns_no_attempts_case_o11() {
    let mut server = Server::start().await;
    let tries = Arc::new(AtomicUsize::new(0));
    let link = link(server.address, Arc::clone(&tries));
    let queue = http_client(16).seed(7);
    let handle = queue.handle();
    let service = queue.layer(Reconnect::new(link.clone()));

    let response = service.clone().oneshot(get(server.address, "/")).await.unwrap();
    assert_eq!(text(response).await, "served");
    assert_eq!(handle.stats().attempts, 1);

    // While nobody is there, more tries fail than the policy has attempts.
    server.kill().await;
    link.state().wait_for(|state| !state.is_connected()).await.unwrap();
    let call = tokio::spawn(service.clone().oneshot(get(server.address, "/")));
    let down = tries.load(Ordering::Relaxed);
    while tries.load(Ordering::Relaxed) < down + 6 {
        sleep(ms(5)).await;
    }
    assert!(!call.is_finished());
    server.restart().await;
    let response = timeout(Duration::from_secs(10), call).await.unwrap().unwrap().unwrap();
    assert_eq!(text(response).await, "served");
    let stats = handle.stats();
    assert_eq!((stats.attempts, stats.retries, stats.failed), (2, 0, 0), "the call had one attempt");
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn c5_a_call_under_way_when_the_link_falls_gets_its_error_and_its_retry_waits_for_the_link() {
    let mut server = Server::start().await;
    let link = link(server.address, Arc::default());
    let queue = http_client(16).seed(7);
    let handle = queue.handle();
    let service = queue.layer(Reconnect::new(link.clone()));

    let call = tokio::spawn(service.oneshot(get(server.address, "/slow")));
    while server.requests() == 0 {
        sleep(ms(1)).await;
    }
    server.kill().await;
    link.state().wait_for(|state| !state.is_connected()).await.unwrap();
    // Longer than the policy's delays: a retry that did not wait for the link would have used all of them up.
    sleep(ms(400)).await;
    server.restart().await;
    let response = timeout(Duration::from_secs(10), call).await.unwrap().unwrap().unwrap();
    assert_eq!(text(response).await, "served");
    // The link sent nothing again by itself: one attempt failed, and one retry was made.
    assert_eq!((handle.stats().attempts, server.requests()), (2, 2));
    assert!(matches!(*link.state().borrow(), LinkState::Connected { generation: 2, .. }));
}
