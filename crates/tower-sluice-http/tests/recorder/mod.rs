//! A real HTTP server that records what each attempt sent, and answers as it is told.
#![allow(dead_code)]

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpListener;

/// One attempt as the server saw it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    /// `None` where the server did not read it, or not to its end.
    pub(crate) body: Option<Bytes>,
    pub(crate) trailers: Option<HeaderMap>,
}

/// What the server does with the n-th attempt, counted from 1.
#[derive(Clone)]
pub(crate) enum Act {
    /// Reads all of the body, and answers.
    Answer(u16),
    /// Reads all of the body, and answers with a body of so many bytes.
    AnswerLong(u16, usize),
    /// Answers without reading any of the body; the connection keeps it.
    AnswerAtOnce(u16),
    /// Reads the first frame, and answers.
    AnswerAfterAFrame(u16),
    /// Reads the first frame, and closes the connection.
    Close,
}

#[derive(Clone)]
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
    pub(crate) connections: Arc<AtomicUsize>,
}

impl Recorder {
    pub(crate) async fn start(act: fn(usize) -> Act) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), act)
    }

    pub(crate) fn on(listener: TcpListener, act: fn(usize) -> Act) -> Self {
        let this = Self {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
            connections: Arc::default(),
        };
        let server = this.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                server.connections.fetch_add(1, Ordering::SeqCst);
                let server = server.clone();
                tokio::spawn(async move {
                    let (close, closed) = tokio::sync::mpsc::channel::<()>(1);
                    let service =
                        service_fn(move |request| server.clone().serve(request, act, close.clone()));
                    let builder = Builder::new(TokioExecutor::new());
                    let serving = builder.serve_connection(TokioIo::new(stream), service);
                    let mut closed = closed;
                    tokio::select! {
                        _ = serving => {}
                        Some(()) = closed.recv() => {}
                    }
                });
            }
        });
        this
    }

    fn serve(
        self,
        request: Request<Incoming>,
        act: fn(usize) -> Act,
        close: tokio::sync::mpsc::Sender<()>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>> {
        Box::pin(async move {
            let (head, mut body) = request.into_parts();
            let n = {
                let mut seen = self.seen.lock().unwrap();
                seen.push(Seen {
                    method: head.method,
                    path: head.uri.path().to_owned(),
                    headers: head.headers,
                    body: None,
                    trailers: None,
                });
                seen.len()
            };
            let answer = |status: u16, length: usize| {
                let body = Body::new(Full::new(Bytes::from(vec![b'x'; length])));
                Ok(Response::builder().status(status).body(body).unwrap())
            };
            match act(n) {
                Act::Answer(status) | Act::AnswerLong(status, _) => {
                    if let Ok(all) = body.collect().await {
                        let mut seen = self.seen.lock().unwrap();
                        seen[n - 1].trailers = all.trailers().cloned();
                        seen[n - 1].body = Some(all.to_bytes());
                    }
                    answer(status, if let Act::AnswerLong(_, length) = act(n) { length } else { 100 })
                }
                Act::AnswerAtOnce(status) => {
                    tokio::spawn(async move {
                        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
                        drop(body);
                    });
                    answer(status, 0)
                }
                Act::AnswerAfterAFrame(status) => {
                    body.frame().await;
                    answer(status, 0)
                }
                Act::Close => {
                    body.frame().await;
                    close.send(()).await.unwrap();
                    std::future::pending().await
                }
            }
        })
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://{}/item", self.address)
    }

    /// What the attempts sent, all of them.
    pub(crate) fn attempts(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

pub(crate) fn http1() -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).build_http()
}

pub(crate) fn http2() -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).http2_only(true).build_http()
}
