//! One HTTP/1 connection that is kept, and what its requests are answered with.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

pub(crate) struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    driver: Driver,
}

/// Ends with its connection's value, whatever is under way.
struct Driver(JoinHandle<hyper::Result<()>>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Connection {
    pub(crate) async fn open(server: SocketAddr) -> Self {
        let stream = TcpStream::connect(server).await.unwrap();
        let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        Self { sender, driver: Driver(tokio::spawn(connection)) }
    }

    /// The answer's head; its body is still to come.
    pub(crate) async fn head(&mut self, path: &str) -> Response<Incoming> {
        self.sender.ready().await.unwrap();
        let request = Request::get(path).header("host", "test").body(Empty::new()).unwrap();
        self.sender.send_request(request).await.unwrap()
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        let (head, body) = self.head(path).await.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            text: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }

    /// Until the server has ended the connection.
    pub(crate) async fn ended(mut self) {
        (&mut self.driver.0).await.unwrap().unwrap();
    }
}

/// A request on a connection of its own.
pub(crate) async fn get(server: SocketAddr, path: &str) -> Answer {
    Connection::open(server).await.get(path).await
}

/// Such a request, under way.
pub(crate) fn start(server: SocketAddr, path: &'static str) -> JoinHandle<Answer> {
    tokio::spawn(async move { get(server, path).await })
}
