//! What real clients' errors mean, against servers that fail on purpose (case E12: surely not processed, or perhaps).
#![cfg(feature = "client")]

use std::convert::Infallible;
use std::future::{Future, ready};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::{Body, Frame};
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tower_sluice_http::verdict::{Classify, Verdict};
use tower_sluice_http::{BoxError, HttpVerdicts};

const SURELY_NOT: Verdict = Verdict::transient().not_processed();
const PERHAPS: Verdict = Verdict::transient();

type HyperClient<B = Empty<Bytes>> = Client<HttpConnector, B>;

fn verdict<E: 'static>(error: E) -> Verdict {
    HttpVerdicts::new().classify(&Err::<Response<Incoming>, E>(error))
}

/// Both as the client's own error and boxed, as layers hand it on.
async fn verdict_of<B>(client: &HyperClient<B>, request: Request<B>) -> Verdict
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let result = client.request(request).await;
    let typed = HttpVerdicts::new().classify(&result);
    let error = result.expect_err("the server fails on purpose");
    let shown = format!("{error:?}");
    assert_eq!(typed, verdict::<BoxError>(error.into()), "{shown}");
    typed
}

fn post(server: SocketAddr) -> Request<Empty<Bytes>> {
    Request::post(format!("http://{server}/charge")).body(Empty::new()).unwrap()
}

/// Serves each connection with `serve`.
async fn server<F, S>(serve: S) -> SocketAddr
where
    S: Fn(TcpStream) -> F + Send + 'static,
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

async fn read_head(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(())
}

fn http1<B: Body + Send>() -> HyperClient<B>
where
    B::Data: Send,
{
    Client::builder(TokioExecutor::new()).build_http()
}

#[tokio::test]
async fn a_refused_connection_is_surely_not_processed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(verdict_of(&http1(), post(address)).await, SURELY_NOT);
}

#[tokio::test]
async fn a_connection_that_takes_too_long_to_make_is_surely_not_processed() {
    let slow = tower::service_fn(|_: http::Uri| {
        ready(Err::<TokioIo<TcpStream>, _>(io::Error::from(io::ErrorKind::TimedOut)))
    });
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(slow);
    let error = client.request(post(([127, 0, 0, 1], 1).into())).await.unwrap_err();
    assert_eq!(verdict(error), SURELY_NOT);
}

#[tokio::test]
async fn a_rejection_while_connecting_is_no_attempts_failure() {
    use tower_sluice_http::reject::Rejection;
    let down = tower::service_fn(|_: http::Uri| {
        ready(Err::<TokioIo<TcpStream>, _>(Rejection::Disconnected { retry_after: None, cause: None }))
    });
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(down);
    let error = client.request(post(([127, 0, 0, 1], 1).into())).await.unwrap_err();
    assert_eq!(verdict(error), Verdict::Fatal);
}

#[tokio::test]
async fn accepted_read_and_closed_is_perhaps_processed() {
    let server = server(|mut stream| async move { read_head(&mut stream).await }).await;
    assert_eq!(verdict_of(&http1(), post(server)).await, PERHAPS);
}

#[tokio::test]
async fn accepted_and_closed_unread_is_transient() {
    // Whether the client sees the end before it writes or after is a race, and so is whether anything was sent.
    let server = server(|stream| async move {
        drop(stream);
        Ok(())
    })
    .await;
    let verdict = verdict_of(&http1(), post(server)).await;
    assert!(verdict == PERHAPS || verdict == SURELY_NOT, "{verdict:?}");
}

#[tokio::test]
async fn half_a_head_is_perhaps_processed() {
    let server = server(|mut stream| async move {
        read_head(&mut stream).await?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-le").await
    })
    .await;
    assert_eq!(verdict_of(&http1(), post(server)).await, PERHAPS);
}

#[tokio::test]
async fn a_reset_while_waiting_is_perhaps_processed() {
    let server = server(|mut stream| async move {
        // Closing with a byte unread resets the connection.
        stream.read_u8().await.map(drop)
    })
    .await;
    assert_eq!(verdict_of(&http1(), post(server)).await, PERHAPS);
}

#[tokio::test]
async fn an_answer_that_is_no_http_is_perhaps_processed() {
    let server = server(|mut stream| async move {
        read_head(&mut stream).await?;
        stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n").await
    })
    .await;
    assert_eq!(verdict_of(&http1(), post(server)).await, PERHAPS);
}

#[tokio::test]
async fn case_e12_a_stale_connection_that_ate_the_request_is_perhaps_processed() {
    let server = server(|mut stream| async move {
        read_head(&mut stream).await?;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
        // The second request of the kept connection is read, and then nothing.
        read_head(&mut stream).await
    })
    .await;
    let client = http1();
    assert_eq!(client.request(post(server)).await.unwrap().status(), 200);
    assert_eq!(verdict_of(&client, post(server)).await, PERHAPS);
}

#[tokio::test]
async fn a_request_that_its_connection_did_not_take_is_surely_not_processed() {
    let server = server(|mut stream| async move { read_head(&mut stream).await }).await;
    let connect = || async {
        let stream = TcpStream::connect(server).await.unwrap();
        hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await.unwrap()
    };
    // Cancelled: queued, and the connection ended before it was written.
    let (mut sender, connection) = connect().await;
    let queued = sender.send_request(post(server));
    drop(connection);
    let error = queued.await.unwrap_err();
    assert!(error.is_canceled(), "{error:?}");
    assert_eq!(verdict(error), SURELY_NOT);
    // Closed: the connection is known to have ended.
    let (mut sender, connection) = connect().await;
    drop(connection);
    let error = sender.ready().await.unwrap_err();
    assert!(error.is_closed(), "{error:?}");
    assert_eq!(verdict(error), SURELY_NOT);
}

/// A connection that takes what is written, and then reports a refusal, as the system may do late for one that lost
/// its peer.
#[derive(Default)]
struct LateRefusal {
    written: bool,
    reader: Option<Waker>,
}

impl AsyncRead for LateRefusal {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.written {
            return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()));
        }
        self.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for LateRefusal {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.written = true;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_refusal_that_a_connection_reports_late_is_perhaps_processed() {
    let io = TokioIo::new(LateRefusal::default());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let error = sender.send_request(post(([127, 0, 0, 1], 1).into())).await.unwrap_err();
    assert_eq!(verdict(error), PERHAPS);
}

#[tokio::test]
async fn a_request_that_cannot_be_sent_is_fatal() {
    let client = http1();
    let no_host = Request::get("/path").body(Empty::new()).unwrap();
    assert_eq!(verdict_of(&client, no_host).await, Verdict::Fatal);
    let mut unknown_version = post(([127, 0, 0, 1], 1).into());
    *unknown_version.version_mut() = Version::HTTP_3;
    assert_eq!(verdict_of(&client, unknown_version).await, Verdict::Fatal);
}

/// A request body that fails, with the error of some other connection.
struct BrokenBody;

impl Body for BrokenBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(Some(Err(io::ErrorKind::ConnectionRefused.into())))
    }
}

#[tokio::test]
async fn an_error_of_the_requests_own_body_is_fatal() {
    let server = server(|mut stream| async move {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.map(drop)
    })
    .await;
    let request = Request::post(format!("http://{server}/")).body(BrokenBody).unwrap();
    assert_eq!(verdict_of(&http1(), request).await, Verdict::Fatal);
}

#[tokio::test]
async fn an_answer_is_judged_by_its_status() {
    let server = server(|mut stream| async move {
        read_head(&mut stream).await?;
        stream.write_all(b"HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n").await
    })
    .await;
    let response = http1::<Full<Bytes>>()
        .request(Request::get(format!("http://{server}/")).body(Full::default()).unwrap())
        .await
        .unwrap();
    let verdict = HttpVerdicts::new().classify(&Ok::<_, Infallible>(response));
    assert_eq!(verdict, Verdict::unavailable().after(Some(Duration::from_secs(7))));
}

#[cfg(feature = "http2")]
mod http2 {
    use super::*;

    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;

    const NO_ERROR: u32 = 0;
    const PROTOCOL_ERROR: u32 = 1;
    const INTERNAL_ERROR: u32 = 2;
    const REFUSED_STREAM: u32 = 7;
    const CANCEL: u32 = 8;
    const ENHANCE_YOUR_CALM: u32 = 11;

    fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, 0];
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn reset(code: u32) -> Vec<u8> {
        frame(RST_STREAM, 1, &code.to_be_bytes())
    }

    fn goaway(last_stream: u32, code: u32) -> Vec<u8> {
        frame(GOAWAY, 0, &[last_stream.to_be_bytes(), code.to_be_bytes()].concat())
    }

    /// The verdict on the first request of a connection, which the server answers with these bytes; it closes the
    /// connection then, if `closes`.
    async fn answered(answer: Vec<u8>, closes: bool) -> Verdict {
        let server = server(move |mut stream| {
            let answer = answer.clone();
            async move {
                let mut preface = [0; 24];
                stream.read_exact(&mut preface).await?;
                stream.write_all(&frame(SETTINGS, 0, &[])).await?;
                loop {
                    let mut head = [0; 9];
                    stream.read_exact(&mut head).await?;
                    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                    stream.read_exact(&mut vec![0; length as usize]).await?;
                    if head[3] == HEADERS {
                        break;
                    }
                }
                stream.write_all(&answer).await?;
                if !closes {
                    let mut rest = Vec::new();
                    stream.read_to_end(&mut rest).await?;
                }
                Ok(())
            }
        })
        .await;
        let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        verdict_of(&client, post(server)).await
    }

    #[tokio::test]
    async fn a_refused_stream_is_surely_not_processed_and_any_other_reset_perhaps() {
        assert_eq!(answered(reset(REFUSED_STREAM), false).await, SURELY_NOT);
        for code in [NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, CANCEL, ENHANCE_YOUR_CALM] {
            assert_eq!(answered(reset(code), false).await, PERHAPS, "{code}");
        }
    }

    #[tokio::test]
    async fn a_goaway_below_the_stream_is_surely_not_processed() {
        for code in [NO_ERROR, ENHANCE_YOUR_CALM] {
            assert_eq!(answered(goaway(0, code), false).await, SURELY_NOT, "{code}");
            assert_eq!(answered(goaway(0, code), true).await, SURELY_NOT, "{code}");
        }
    }

    #[tokio::test]
    async fn a_goaway_that_includes_the_stream_leaves_it_perhaps_processed() {
        for code in [NO_ERROR, INTERNAL_ERROR, REFUSED_STREAM, ENHANCE_YOUR_CALM] {
            assert_eq!(answered(goaway(1, code), true).await, PERHAPS, "{code}");
        }
    }

    #[tokio::test]
    async fn a_connection_that_ends_or_breaks_the_protocol_leaves_it_perhaps_processed() {
        assert_eq!(answered(Vec::new(), true).await, PERHAPS);
        // A PING of the wrong length: h2 itself ends the connection with a GOAWAY.
        assert_eq!(answered(frame(PING, 0, &[0; 3]), false).await, PERHAPS);
        // A reset of a stream that is idle.
        assert_eq!(answered(frame(RST_STREAM, 3, &REFUSED_STREAM.to_be_bytes()), false).await, PERHAPS);
    }
}
