//! A server that fails on purpose, at one point of its first connection, and serves every other one.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// The point at which the first connection fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nobody listens.
    Refuse,
    /// Accepted, and closed unread.
    CloseAtOnce,
    /// The request is read.
    CloseAfterRequest,
    HalfHead,
    /// The response's head is whole, its body is not.
    HalfBody,
    Reset,
    /// No answer ever.
    Slow,
    /// HTTP/2: the server says that it has not looked at the stream.
    RefusedStream,
    /// HTTP/2: the server ends one stream, for whatever reason.
    ResetStream,
    /// HTTP/2: the server goes away, and has not looked at any stream.
    GoAway,
}

/// What reached a connection that serves: method, key, body.
pub(crate) type Served = (String, Option<String>, Bytes);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    served: Arc<Mutex<Vec<Served>>>,
    /// Taken by [`come_back`](Self::come_back).
    refused: Option<Protocol>,
}

impl Server {
    pub(crate) async fn start(fault: Fault, protocol: Protocol) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut server = Self {
            address: listener.local_addr().unwrap(),
            served: Arc::default(),
            refused: (fault == Fault::Refuse).then_some(protocol),
        };
        if server.refused.is_none() {
            server.serve(listener, Some(fault), protocol);
        }
        server
    }

    /// Listens again, after it refused.
    pub(crate) async fn come_back(&mut self) {
        if let Some(protocol) = self.refused.take() {
            let listener = TcpListener::bind(self.address).await.unwrap();
            self.serve(listener, None, protocol);
        }
    }

    fn serve(&mut self, listener: TcpListener, mut fault: Option<Fault>, protocol: Protocol) {
        let served = self.served.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                match fault.take() {
                    Some(fault) => drop(tokio::spawn(fail(stream, fault, protocol))),
                    None => drop(tokio::spawn(answer(stream, served.clone()))),
                }
            }
        });
    }

    pub(crate) fn served(&self) -> Vec<Served> {
        self.served.lock().unwrap().clone()
    }
}

async fn answer(stream: TcpStream, served: Arc<Mutex<Vec<Served>>>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let served = served.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let key = head.headers.get("idempotency-key").map(|key| key.to_str().unwrap().to_owned());
            served.lock().unwrap().push((head.method.to_string(), key, body));
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("done"))))
        }
    });
    // A client that goes away is its own affair.
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

async fn fail(mut stream: TcpStream, fault: Fault, protocol: Protocol) -> io::Result<()> {
    if matches!(fault, Fault::Refuse | Fault::CloseAtOnce) {
        return Ok(());
    }
    match protocol {
        Protocol::Http1 => read_http1(&mut stream).await?,
        Protocol::Http2 => read_http2(&mut stream).await?,
    }
    match (fault, protocol) {
        (Fault::Reset, _) => return stream.set_zero_linger(),
        (Fault::HalfHead, Protocol::Http1) => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-le").await?;
        }
        (Fault::HalfBody, Protocol::Http1) => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalf").await?;
        }
        (Fault::HalfHead, Protocol::Http2) => {
            let head = headers();
            stream.write_all(&head[..head.len() - 1]).await?;
        }
        (Fault::HalfBody, Protocol::Http2) => {
            stream.write_all(&[headers(), frame(DATA, 0, 1, b"half")].concat()).await?;
        }
        // And takes no other, so that the next attempt comes on a connection that serves.
        (Fault::RefusedStream, _) => stream.write_all(&[reset(REFUSED_STREAM), goaway(1)].concat()).await?,
        (Fault::ResetStream, _) => stream.write_all(&[reset(INTERNAL_ERROR), goaway(1)].concat()).await?,
        (Fault::GoAway, _) => stream.write_all(&goaway(0)).await?,
        _ => {}
    }
    let stays = matches!(fault, Fault::Slow | Fault::RefusedStream | Fault::ResetStream | Fault::GoAway);
    if !stays {
        // What is unread at a close would make it a reset.
        stream.shutdown().await?;
    }
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.map(drop)
}

/// Reads a request whole.
async fn read_http1(stream: &mut TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    stream.read_exact(&mut vec![0; length.unwrap_or(0)]).await.map(drop)
}

/// Shakes hands, and reads a request whole.
async fn read_http2(stream: &mut TcpStream) -> io::Result<()> {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).await?;
        if matches!(head[3], HEADERS | DATA) && head[4] & END_STREAM != 0 {
            return Ok(());
        }
    }
}

// RFC 9113, sections 4.1, 6 and 7.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// `:status: 200`, by its index in HPACK's static table.
fn headers() -> Vec<u8> {
    frame(HEADERS, END_HEADERS, 1, &[0x88])
}

fn reset(code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, 1, &code.to_be_bytes())
}

/// Streams after `last_stream` were not looked at.
fn goaway(last_stream: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last_stream.to_be_bytes(), NO_ERROR.to_be_bytes()].concat())
}
