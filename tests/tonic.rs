//! Whole gRPC stacks: a tonic server and channel with a generated client (tonic-health), over TCP.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::stream::{FuturesUnordered, Stream, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::service::LayerExt;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tower::{Layer, ServiceBuilder, service_fn};
use tower_sluice_http::HoldSlots;
use tower_sluice_http::backoff::Backoff;
use tower_sluice_http::grpc::{
    GrpcAnswer, GrpcRetryPolicy, grpc_client, grpc_retry, grpc_server, grpc_timeout,
};
use tower_sluice_http::queue::QueueLayer;
use tower_sluice_http::reject::Rejection;
use tower_sluice_http::replay::{ReplayBodies, ReplayBody};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A health service that fails as told, takes as long as told, and records.
#[derive(Clone)]
struct Upstream {
    /// What the n-th call is answered with, from 1.
    answer: fn(usize) -> Result<(), Status>,
    /// Each call takes one of these permits, and keeps it for good.
    open: Arc<Semaphore>,
    calls: Arc<AtomicUsize>,
    running: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
    metadata: Arc<Mutex<Vec<MetadataMap>>>,
    takes: Duration,
}

impl Upstream {
    fn new(answer: fn(usize) -> Result<(), Status>) -> Self {
        Self {
            answer,
            open: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            calls: Arc::default(),
            running: Arc::default(),
            peak: Arc::default(),
            metadata: Arc::default(),
            takes: Duration::ZERO,
        }
    }

    /// Answers no call before [`open`](Self::open) lets it.
    fn held() -> Self {
        Self { open: Arc::new(Semaphore::new(0)), ..Self::new(|_| Ok(())) }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    async fn reached(&self, calls: usize) {
        while self.calls() < calls {
            tokio::time::sleep(ms(1)).await;
        }
    }

    async fn run(&self, metadata: MetadataMap) -> Result<(), Status> {
        struct Ran<'a>(&'a AtomicUsize);
        impl Drop for Ran<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let n = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak.fetch_max(self.running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let _ran = Ran(&self.running);
        self.metadata.lock().unwrap().push(metadata);
        self.open.acquire().await.unwrap().forget();
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        (self.answer)(n)
    }
}

fn serving() -> HealthCheckResponse {
    HealthCheckResponse { status: ServingStatus::Serving.into() }
}

#[tonic::async_trait]
impl Health for Upstream {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, Status> {
        self.run(request.metadata().clone()).await?;
        Ok(tonic::Response::new(serving()))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// One message for each permit.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<Self::WatchStream>, Status> {
        let n = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        self.metadata.lock().unwrap().push(request.metadata().clone());
        (self.answer)(n)?;
        let open = Arc::clone(&self.open);
        let messages = futures_util::stream::unfold(open, |open| async {
            open.acquire().await.ok()?.forget();
            Some((Ok(serving()), open))
        });
        Ok(tonic::Response::new(Box::pin(messages)))
    }
}

async fn listener() -> (TcpIncoming, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (TcpIncoming::from(listener), address)
}

async fn serve(upstream: &Upstream) -> Channel {
    let (incoming, address) = listener().await;
    let server = Server::builder().add_service(HealthServer::new(upstream.clone()));
    tokio::spawn(server.serve_with_incoming(incoming));
    channel(address).await
}

async fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

fn check() -> Request<HealthCheckRequest> {
    Request::new(HealthCheckRequest { service: "shop".into() })
}

/// Real time, so short delays.
type Replays = ReplayBodies<fn(ReplayBody<Body>) -> Body>;

fn policy() -> GrpcRetryPolicy<Replays> {
    grpc_retry(Body::new as fn(ReplayBody<Body>) -> Body).backoff(Backoff::exponential(ms(5), ms(20)))
}

#[tokio::test]
async fn case_e8_a_generated_client_through_our_stack_is_retried() {
    let upstream = Upstream::new(|n| if n < 3 { Err(Status::unavailable("restarting")) } else { Ok(()) });
    let stack = grpc_client(64, Body::new).call_timeout(Duration::from_secs(5));
    let mut client = HealthClient::new(stack.layer(serve(&upstream).await));
    let answer = client.check(check()).await.unwrap();
    assert_eq!(answer.into_inner(), serving());
    assert_eq!((upstream.calls(), stack.handle().stats().retries), (3, 2));
    let metadata = upstream.metadata.lock().unwrap();
    let previous: Vec<_> = metadata.iter().map(|m| m.get("grpc-previous-rpc-attempts")).collect();
    assert_eq!(previous[0], None);
    assert_eq!(previous[1].unwrap(), "1");
    assert_eq!(previous[2].unwrap(), "2");
}

#[tokio::test]
async fn r8_h4_the_last_real_status_is_the_callers() {
    let upstream = Upstream::new(|_| Err(Status::unavailable("still restarting")));
    let stack = grpc_client(4, Body::new).retry(policy());
    let mut client = HealthClient::new(stack.layer(serve(&upstream).await));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "still restarting"));
    assert_eq!(upstream.calls(), 3);

    let upstream = Upstream::new(|_| Err(Status::invalid_argument("no")));
    let mut client = HealthClient::new(stack.layer(serve(&upstream).await));
    assert_eq!(client.check(check()).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(upstream.calls(), 1);
}

/// A server that sends the status of a failed call in trailers, behind a head that says nothing of it.
async fn serve_with_late_status(upstream: &Upstream) -> Channel {
    let (incoming, address) = listener().await;
    let late = ServiceBuilder::new().map_response(|response: Response<Body>| {
        let (mut head, body) = response.into_parts();
        let trailers: HeaderMap = ["grpc-status", "grpc-message", "grpc-retry-pushback-ms"]
            .into_iter()
            .filter_map(|name| Some((HeaderName::from_static(name), head.headers.remove(name)?)))
            .collect();
        if trailers.is_empty() {
            return Response::from_parts(head, body);
        }
        Response::from_parts(head, Body::new(body.with_trailers(async { Some(Ok(trailers)) })))
    });
    let server = Server::builder().layer(late.into_inner()).add_service(HealthServer::new(upstream.clone()));
    tokio::spawn(server.serve_with_incoming(incoming));
    channel(address).await
}

#[tokio::test]
async fn case_e9_a_status_in_trailers_after_an_empty_body_is_retried() {
    let upstream = Upstream::new(|n| if n < 3 { Err(Status::unavailable("late")) } else { Ok(()) });
    let stack = grpc_client(4, Body::new).retry(policy());
    let mut client = HealthClient::new(stack.layer(serve_with_late_status(&upstream).await));
    client.check(check()).await.unwrap();
    assert_eq!(upstream.calls(), 3);

    let upstream = Upstream::new(|_| Err(Status::not_found("late, too")));
    let mut client = HealthClient::new(stack.layer(serve_with_late_status(&upstream).await));
    let status = client.check(check()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "late, too"), "no frame is lost");
    assert_eq!(upstream.calls(), 1);
}

fn exhausted(push_back: &'static str) -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert("grpc-retry-pushback-ms", push_back.parse().unwrap());
    Status::with_metadata(Code::ResourceExhausted, "quota", metadata)
}

#[tokio::test]
async fn case_d16_resource_exhausted_is_retried_with_a_push_back_alone() {
    for (answer, calls) in [
        ((|_| Err(Status::resource_exhausted("quota"))) as fn(usize) -> Result<(), Status>, 1),
        (|_| Err(exhausted("-1")), 1),
        (|n| if n == 1 { Err(exhausted("20")) } else { Ok(()) }, 2),
    ] {
        let upstream = Upstream::new(answer);
        let stack = grpc_client(4, Body::new).retry(policy());
        let mut client = HealthClient::new(stack.layer(serve(&upstream).await));
        let answer = client.check(check()).await;
        assert_eq!(upstream.calls(), calls);
        assert_eq!(answer.is_ok(), calls == 2);
    }
}

/// A server of one call at a time, which is under way.
async fn busy_server(max_waiting: usize) -> (Upstream, tower_sluice_http::queue::Handle, Channel) {
    let upstream = Upstream::held();
    let queue = grpc_server(1).max_waiting(max_waiting);
    let (incoming, address) = listener().await;
    let server = Server::builder().layer(queue.clone()).add_service(HealthServer::new(upstream.clone()));
    tokio::spawn(server.serve_with_incoming(incoming));
    let channel = channel(address).await;
    let mut client = HealthClient::new(channel.clone());
    tokio::spawn(async move { client.check(check()).await });
    upstream.reached(1).await;
    (upstream, queue.handle(), channel)
}

async fn queued(handle: &tower_sluice_http::queue::Handle, calls: usize) {
    while handle.stats().queued < calls {
        tokio::time::sleep(ms(1)).await;
    }
}

#[tokio::test]
async fn case_m2_h5_full_on_the_wire_is_resource_exhausted_with_a_push_back() {
    let (_upstream, _, channel) = busy_server(0).await;
    let status = HealthClient::new(channel).check(check()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "too busy, try again later");
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "1000");
}

#[tokio::test]
async fn case_m2_h5_cleared_and_closed_on_the_wire_are_unavailable() {
    let (upstream, handle, channel) = busy_server(4).await;
    let mut client = HealthClient::new(channel);
    let waiting = tokio::spawn({
        let mut client = client.clone();
        async move { client.check(check()).await }
    });
    queued(&handle, 1).await;
    assert_eq!(handle.clear("deploy"), 1);
    let status = waiting.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(!status.message().contains("deploy"), "an operator's words are not for outsiders");

    handle.close();
    let status = client.check(check()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "shutting down, try again later"));
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test]
async fn case_m2_h4_h5_a_deadline_on_the_wire_is_deadline_exceeded() {
    // The server's own, while the call waits.
    let (incoming, address) = listener().await;
    let upstream = Upstream::held();
    let queue = grpc_server(1).call_timeout(ms(50));
    let server = Server::builder().layer(queue).add_service(HealthServer::new(upstream.clone()));
    tokio::spawn(server.serve_with_incoming(incoming));
    let mut client = HealthClient::new(channel(address).await);
    let status = client.check(check()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "not answered in time"));

    // The caller's, by header alone: a client that does not enforce it itself, as tonic's does.
    let upstream = Upstream::held();
    let (incoming, address) = listener().await;
    let server = Server::builder().layer(grpc_server(1)).add_service(HealthServer::new(upstream.clone()));
    tokio::spawn(server.serve_with_incoming(incoming));
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let request = http::Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", "50m")
        .body(Full::<bytes::Bytes>::from(&[0_u8; 5][..]))
        .unwrap();
    let response = client.request(request).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "4");
    assert_eq!(response.headers()["grpc-message"], "not answered in time");
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test]
async fn h4_h6_a_clients_timeout_is_obeyed_by_its_queue_and_the_remainder_sent_on() {
    let upstream = Upstream::new(|n| if n == 1 { Err(exhausted("200")) } else { Ok(()) });
    let stack = grpc_client(64, Body::new).retry(policy()).call_timeout(Duration::from_secs(5));
    let mut client = HealthClient::new(stack.layer(serve(&upstream).await));
    let mut request = check();
    request.set_timeout(Duration::from_secs(1));
    client.check(request).await.unwrap();
    let told: Vec<Duration> = upstream
        .metadata
        .lock()
        .unwrap()
        .iter()
        .map(|metadata| {
            let value =
                HeaderValue::from_str(metadata.get("grpc-timeout").unwrap().to_str().unwrap()).unwrap();
            grpc_timeout(&HeaderMap::from_iter([(HeaderName::from_static("grpc-timeout"), value)])).unwrap()
        })
        .collect();
    assert!(told[0] <= Duration::from_secs(1) && told[1] <= told[0] - ms(200), "{told:?}");

    // And where the stack's one slot is taken: no attempt, and a proper status.
    let held = Upstream::held();
    let stack = grpc_client(1, Body::new);
    let mut client = HealthClient::new(stack.layer(serve(&held).await));
    let mut first = client.clone();
    tokio::spawn(async move { first.check(check()).await });
    held.reached(1).await;
    let mut request = check();
    request.set_timeout(ms(50));
    let status = client.check(request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(held.calls(), 1);
    // So are the others.
    let waiting = tokio::spawn({
        let mut client = client.clone();
        async move { client.check(check()).await }
    });
    queued(&stack.handle(), 1).await;
    stack.handle().clear("deploy");
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), Code::Unavailable);
    let mut full = HealthClient::new(stack.clone().max_waiting(0).layer(serve(&held).await));
    assert_eq!(full.check(check()).await.unwrap_err().code(), Code::ResourceExhausted);
    stack.handle().close();
    assert_eq!(client.check(check()).await.unwrap_err().code(), Code::Unavailable);
}

/// All statuses that a client gets from a server which is overloaded, cleared, and closed in mid-load: each is one that
/// the server meant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_rejection_appears_as_a_broken_stream() {
    let upstream = Upstream { takes: ms(5), ..Upstream::new(|_| Ok(())) };
    let queue = grpc_server(4).max_waiting(8).call_timeout(ms(40));
    let handle = queue.handle();
    let (incoming, address) = listener().await;
    let server = Server::builder().layer(queue).add_service(HealthServer::new(upstream.clone()));
    tokio::spawn(server.serve_with_incoming(incoming));
    let mut calls = FuturesUnordered::new();
    for _ in 0..4 {
        let client = HealthClient::new(channel(address).await);
        for n in 0..150 {
            let mut client = client.clone();
            calls.push(tokio::spawn(async move {
                tokio::time::sleep(ms(n % 50)).await;
                client.check(check()).await
            }));
        }
    }
    let (mut count, mut codes) = (0, std::collections::BTreeMap::<String, usize>::new());
    while let Some(answer) = calls.next().await {
        count += 1;
        if count == 150 {
            handle.clear("test");
        }
        if count == 450 {
            handle.close();
        }
        let code = answer.unwrap().map_or_else(
            |status| {
                let meant = ["too busy", "withdrawn", "shutting down", "not answered", "waited too long"];
                assert!(meant.iter().any(|text| status.message().starts_with(text)), "{status:?}");
                status.code()
            },
            |_| Code::Ok,
        );
        *codes.entry(format!("{code:?}")).or_default() += 1;
    }
    assert_eq!(count, 600);
    let known = ["Ok", "ResourceExhausted", "Unavailable", "DeadlineExceeded"];
    assert!(codes.keys().all(|code| known.contains(&code.as_str())), "{codes:?}");
    assert!(codes.contains_key("Ok") && codes.contains_key("ResourceExhausted"), "{codes:?}");
    assert!(upstream.peak.load(Ordering::SeqCst) <= 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_f16_a_thousand_calls_at_once_over_64_slots_do_not_stall() {
    let upstream = Upstream { takes: ms(2), ..Upstream::new(|_| Ok(())) };
    let stack = grpc_client(64, Body::new).max_waiting(1_000);
    let client = HealthClient::new(stack.layer(serve(&upstream).await));
    let started = SystemTime::now();
    let calls: FuturesUnordered<_> = (0..1_000)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.check(check()).await })
        })
        .collect();
    let answers = tokio::time::timeout(Duration::from_secs(30), calls.collect::<Vec<_>>()).await;
    assert!(answers.expect("no stall").into_iter().all(|answer| answer.unwrap().is_ok()));
    let peak = upstream.peak.load(Ordering::SeqCst);
    assert!((2..=64).contains(&peak), "{peak}");
    assert!(started.elapsed().unwrap() < Duration::from_secs(30));
    let stats = stack.handle().stats();
    assert_eq!((stats.succeeded, stats.running, stats.queued), (1_000, 0, 0));
}

#[tokio::test]
async fn case_a6_q16_streams_hold_their_slot_to_the_end_where_so_chosen() {
    for held in [false, true] {
        let upstream = Upstream::held();
        let (incoming, address) = listener().await;
        let queue = grpc_server(1);
        let handle = queue.handle();
        let service = HealthServer::new(upstream.clone());
        if held {
            let server = Server::builder().layer(queue.hold_until_body_end()).add_service(service);
            tokio::spawn(server.serve_with_incoming(incoming));
        } else {
            tokio::spawn(Server::builder().layer(queue).add_service(service).serve_with_incoming(incoming));
        }
        let mut client = HealthClient::new(channel(address).await);
        upstream.open.add_permits(1);
        let mut stream = client.watch(check()).await.unwrap().into_inner();
        assert_eq!(stream.message().await.unwrap(), Some(serving()));
        assert_eq!(handle.stats().running, usize::from(held));
        if held {
            let second = tokio::spawn(async move { client.check(check()).await });
            queued(&handle, 1).await;
            // The client goes, and with it the stream and its slot.
            drop(stream);
            upstream.reached(2).await;
            upstream.open.add_permits(1);
            second.await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn a_streams_messages_pass_the_client_stack_as_they_come() {
    let upstream = Upstream::held();
    let stack = grpc_client(1, Body::new);
    let mut client = HealthClient::new(stack.layer(serve(&upstream).await));
    // The head is there, the first message is not: it is not waited for.
    let mut stream = client.watch(check()).await.unwrap().into_inner();
    assert_eq!(stack.handle().stats().running, 0);
    for _ in 0..3 {
        upstream.open.add_permits(1);
        assert_eq!(stream.message().await.unwrap(), Some(serving()));
    }
    upstream.open.close();
    assert_eq!(stream.message().await.unwrap(), None);
}

#[tokio::test]
async fn a_layered_service_keeps_its_name() {
    // One service limited, another not.
    let upstream = Upstream::held();
    let queue = grpc_server(1).max_waiting(0);
    let limited = queue.named_layer(HealthServer::new(upstream.clone()));
    fn name<S: tonic::server::NamedService>(_: &S) -> &'static str {
        S::NAME
    }
    assert_eq!(name(&limited), "grpc.health.v1.Health");
    let (incoming, address) = listener().await;
    tokio::spawn(Server::builder().add_service(limited).serve_with_incoming(incoming));
    let mut client = HealthClient::new(channel(address).await);
    let mut first = client.clone();
    tokio::spawn(async move { first.check(check()).await });
    upstream.reached(1).await;
    assert_eq!(client.check(check()).await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn a_boxed_rejection_on_a_server_is_no_proper_status() {
    // What the documentation warns of: without an answer mode the client learns nothing.
    let upstream = Upstream::new(|_| Ok(()));
    let queue = QueueLayer::new(1);
    queue.handle().close();
    let (incoming, address) = listener().await;
    let server = Server::builder().layer(queue.clone()).add_service(HealthServer::new(upstream.clone()));
    tokio::spawn(server.serve_with_incoming(incoming));
    let mut client = HealthClient::new(channel(address).await);
    let broken = client.check(check()).await.unwrap_err();
    assert!(!broken.message().contains("shutting down"), "{broken:?}");

    let (incoming, address) = listener().await;
    let answered = Server::builder().layer(queue.answer(GrpcAnswer::new()));
    let mut answered = answered;
    let server = answered.add_service(HealthServer::new(upstream));
    tokio::spawn(server.serve_with_incoming(incoming));
    let mut client = HealthClient::new(channel(address).await);
    let proper = client.check(check()).await.unwrap_err();
    assert_eq!((proper.code(), proper.message()), (Code::Unavailable, "shutting down, try again later"));
    assert_ne!(broken.code(), proper.code());
}

#[tokio::test]
async fn q10_a_server_drains_while_it_shuts_down() {
    let upstream = Upstream::held();
    let queue = grpc_server(1);
    let handle = queue.handle();
    let (incoming, address) = listener().await;
    let (stop, stopped) = oneshot::channel::<()>();
    let drain = {
        let handle = handle.clone();
        async move {
            stopped.await.ok();
            handle.drain(Duration::from_secs(20)).await;
        }
    };
    let server = tokio::spawn(
        Server::builder()
            .layer(queue)
            .add_service(HealthServer::new(upstream.clone()))
            .serve_with_incoming_shutdown(incoming, drain),
    );
    let client = HealthClient::new(channel(address).await);
    let calls: Vec<_> = (0..2)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.check(check()).await })
        })
        .collect();
    upstream.reached(1).await;
    queued(&handle, 1).await;
    stop.send(()).unwrap();
    while !handle.stats().closed {
        tokio::time::sleep(ms(1)).await;
    }
    let late = client.clone().check(check()).await.unwrap_err();
    assert_eq!(late.code(), Code::Unavailable);
    upstream.open.add_permits(2);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    drop(client);
    tokio::time::timeout(Duration::from_secs(10), server).await.expect("it ends").unwrap().unwrap();
}

/// The rejection is known as one inside the process, whatever it looks like outside.
#[tokio::test]
async fn a_stack_in_the_same_process_knows_the_answer_for_what_it_is() {
    let queue = grpc_server(1);
    queue.handle().close();
    let inner = queue.layer(service_fn(|_: http::Request<Body>| async {
        Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
    }));
    let response =
        tower::ServiceExt::oneshot(grpc_client(1, Body::new).layer(inner), http::Request::new(Body::empty()))
            .await
            .unwrap();
    assert_eq!(response.extensions().get(), Some(&Rejection::Closed));
}
