//! Health, metrics and state of a program over plain HTTP.
//!
//! Serves GET and HEAD of four paths, one request per connection. A request must arrive within
//! [`CLIENT_PATIENCE`] and [`HEAD_BYTES_MAX`]; its body is ignored. [`SERVERS`] threads answer: a
//! client that holds as many connections open delays other clients, but not the program. There is
//! no authentication, and no request changes any state.

use serde::Deserialize;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Maximum bytes of a request's head: several times the length of those of probes and scrapers.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Time limit for a client to send its request, and again to read the answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(2);

/// Threads that answer.
const SERVERS: usize = 4;

/// Limits of the input that is discarded so that a client that sends too much still reads the
/// answer: bytes, and time.
const SPILL_BYTES_MAX: usize = 64 << 10;
const SPILL_PATIENCE: Duration = Duration::from_millis(200);

/// Default port.
const PORT: u16 = 9187;

/// Address to listen at, with port 9187 by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Address(SocketAddr);

/// The text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "'{0}' is not an address of this machine: write one as 127.0.0.1, [::1] or 127.0.0.1:{PORT}"
)]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let ip = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let alone = || ip.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PORT));
        let address = text.parse().or_else(|_| alone());
        address.map(Address).map_err(|_| AddressError(text.to_string()))
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A program that answers probes and scrapers, from any thread.
pub trait Probed: Send + Sync {
    /// Its metrics in Prometheus' text format; `None` while it shuts down or hangs.
    fn metrics(&self) -> Option<String>;

    /// Its state as JSON; `None` while it shuts down or hangs.
    fn state(&self) -> Option<serde_json::Result<String>>;

    /// Reasons why it is not ready; empty if it is.
    fn not_ready(&self) -> Vec<String>;

    /// Warnings that concern its operator.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Parts of it that hang.
    fn stuck(&self) -> Vec<String>;
}

/// Listens. Called while the program may still bind privileged ports.
///
/// # Errors
/// If the address cannot be bound.
pub fn listen(address: Address) -> io::Result<TcpListener> {
    TcpListener::bind(address.0)
}

/// Starts the threads that answer; they run as long as the process.
///
/// # Errors
/// If they cannot be started.
pub fn serve(listener: &TcpListener, of: &Arc<dyn Probed>) -> io::Result<()> {
    for _ in 0..SERVERS {
        let (listener, of) = (listener.try_clone()?, Arc::clone(of));
        let serve = move || {
            for stream in listener.incoming() {
                match stream {
                    // Errors of a client that disconnects early are ignored.
                    Ok(stream) => drop(serve_one(stream, &*of)),
                    // For example, no free descriptors: retry at a bounded rate.
                    Err(_) => thread::sleep(CLIENT_PATIENCE),
                }
            }
        };
        thread::Builder::new().name("http".to_string()).spawn(serve)?;
    }
    Ok(())
}

fn serve_one(mut stream: TcpStream, of: &dyn Probed) -> io::Result<()> {
    let head = read_head(&mut stream)?;
    let response = match Asked::read(&head) {
        Ok(asked) => answer(&asked, of),
        Err(refusal) => refusal,
    };
    let deadline = Instant::now() + CLIENT_PATIENCE;
    for part in response.bytes().chunks(16 << 10) {
        stream.set_write_timeout(Some(left_until(deadline)?))?;
        stream.write_all(part)?;
    }
    stream.shutdown(Shutdown::Write)?;
    spill(&mut stream)
}

/// Discards unread input, because closing a connection with unread input discards the answer too.
fn spill(stream: &mut TcpStream) -> io::Result<()> {
    let deadline = Instant::now() + SPILL_PATIENCE;
    let mut bytes = [0; 4 << 10];
    for _ in 0..SPILL_BYTES_MAX / bytes.len() {
        stream.set_read_timeout(Some(left_until(deadline)?))?;
        if stream.read(&mut bytes)? == 0 {
            break;
        }
    }
    Ok(())
}

fn left_until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads up to the empty line that ends the headers, or up to the limit.
fn read_head(stream: &mut impl ReadWithin) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + CLIENT_PATIENCE;
    let mut head = Vec::new();
    let mut part = [0; 1 << 10];
    while head.len() <= HEAD_BYTES_MAX && !is_whole(&head) {
        let len = stream.read_within(&mut part, left_until(deadline)?)?;
        if len == 0 {
            break;
        }
        head.extend_from_slice(&part[..len]);
    }
    Ok(head)
}

/// A stream whose reads have a deadline.
trait ReadWithin {
    fn read_within(&mut self, bytes: &mut [u8], limit: Duration) -> io::Result<usize>;
}

impl ReadWithin for TcpStream {
    fn read_within(&mut self, bytes: &mut [u8], limit: Duration) -> io::Result<usize> {
        self.set_read_timeout(Some(limit))?;
        self.read(bytes)
    }
}

fn is_whole(head: &[u8]) -> bool {
    head.windows(4).any(|end| end == b"\r\n\r\n") || head.windows(2).any(|end| end == b"\n\n")
}

/// A parsed request.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    path: String,
    /// HEAD: without the body.
    is_head: bool,
}

impl Asked {
    /// Parses the head of a request. The error is the response.
    fn read(head: &[u8]) -> Result<Self, Response> {
        if !is_whole(head) {
            let is_long = head.len() > HEAD_BYTES_MAX;
            let status =
                if is_long { "431 Request Header Fields Too Large" } else { "400 Bad Request" };
            return Err(Response::text(status, "the request's head is truncated or too long\n"));
        }
        let bad = || Response::text("400 Bad Request", "this is not an HTTP/1 request\n");
        let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let line = str::from_utf8(line.trim_ascii_end()).map_err(|_| bad())?;
        let mut words = line.split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(bad());
        };
        if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
            return Err(bad());
        }
        let is_head = match method {
            "GET" => false,
            "HEAD" => true,
            _ => {
                let response = Response::text("405 Method Not Allowed", "only GET and HEAD\n");
                return Err(Response { more: "Allow: GET, HEAD\r\n", ..response });
            }
        };
        let path = target.split(['?', '#']).next().unwrap_or_default();
        Ok(Asked { path: path.to_owned(), is_head })
    }
}

fn answer(asked: &Asked, of: &dyn Probed) -> Response {
    let lines =
        |reasons: Vec<String>| reasons.into_iter().map(|reason| reason + "\n").collect::<String>();
    let judged = |reasons: Vec<String>| match reasons.is_empty() {
        true => Response::text("200 OK", &format!("ok\n{}", lines(of.notes()))),
        false => Response::text("503 Service Unavailable", &lines(reasons)),
    };
    let gone = || {
        let text = "it is shutting down or hangs: see /healthz\n";
        Response::text("503 Service Unavailable", text)
    };
    let response = match &*asked.path {
        "/healthz" => judged(of.stuck()),
        "/readyz" => judged(of.not_ready()),
        "/metrics" => match of.metrics() {
            None => gone(),
            Some(text) => {
                Response { kind: "text/plain; version=0.0.4", ..Response::text("200 OK", &text) }
            }
        },
        "/state" => match of.state() {
            None => gone(),
            Some(Ok(json)) => {
                Response { kind: "application/json", ..Response::text("200 OK", &(json + "\n")) }
            }
            Some(Err(e)) => Response::text("500 Internal Server Error", &format!("{e}\n")),
        },
        _ => Response::text("404 Not Found", "paths: /healthz, /readyz, /metrics, /state\n"),
    };
    Response { without_body: asked.is_head, ..response }
}

#[derive(Debug, PartialEq, Eq)]
struct Response {
    status: &'static str,
    kind: &'static str,
    more: &'static str,
    body: String,
    without_body: bool,
}

impl Response {
    fn text(status: &'static str, body: &str) -> Self {
        let kind = "text/plain; charset=utf-8";
        Response { status, kind, more: "", body: body.to_owned(), without_body: false }
    }

    fn bytes(&self) -> Vec<u8> {
        let Response { status, kind, more, body, without_body } = self;
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: \
             no-store\r\n{more}Connection: close\r\n\r\n",
            body.len()
        );
        let body: &str = if *without_body { "" } else { body };
        [head.as_bytes(), body.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port_unless_it_is_given_one() {
        for (text, address) in [
            ("127.0.0.1", "127.0.0.1:9187"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("::1", "[::1]:9187"),
            ("[::1]", "[::1]:9187"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), address);
        }
        for text in ["", "here", "127.0.0.1:", ":80", "[127.0.0.1]:80:90"] {
            let refusal = text.parse::<Address>().unwrap_err().to_string();
            assert!(refusal.contains("write one as 127.0.0.1, "), "{refusal}");
        }
    }

    struct Fake {
        stuck: Vec<String>,
        not_ready: Vec<String>,
    }

    impl Probed for Fake {
        fn metrics(&self) -> Option<String> {
            self.stuck.is_empty().then(|| format!("ready {}\n", self.not_ready.is_empty()))
        }

        fn state(&self) -> Option<serde_json::Result<String>> {
            self.stuck.is_empty().then(|| serde_json::to_string("west"))
        }

        fn not_ready(&self) -> Vec<String> {
            self.not_ready.clone()
        }

        fn stuck(&self) -> Vec<String> {
            self.stuck.clone()
        }
    }

    fn well() -> Fake {
        Fake { stuck: vec![], not_ready: vec![] }
    }

    /// Sends `request` over a real connection, closes its end if `ends`, and returns the answer.
    fn exchange(of: &Fake, request: &[u8], ends: bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let served = listener.accept().unwrap().0;
        // Before the server's time begins.
        client.write_all(request).unwrap();
        if ends {
            client.shutdown(Shutdown::Write).unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| drop(serve_one(served, of)));
            let mut text = String::new();
            let _ = client.read_to_string(&mut text);
            text
        })
    }

    fn get(of: &Fake, path: &str) -> String {
        exchange(of, format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes(), false)
    }

    #[test]
    fn each_path_says_what_it_is_there_for() {
        let ok = get(&well(), "/healthz");
        assert!(ok.starts_with("HTTP/1.1 200 OK\r\n") && ok.ends_with("\r\n\r\nok\n"), "{ok}");
        assert!(ok.contains("Content-Length: 3\r\n"), "{ok}");
        let json = get(&well(), "/state?x=1");
        assert!(
            json.contains("application/json") && json.ends_with("\r\n\r\n\"west\"\n"),
            "{json}"
        );
        let metrics = get(&well(), "/metrics");
        assert!(metrics.ends_with("\r\n\r\nready true\n"), "{metrics}");
        assert!(get(&well(), "/").starts_with("HTTP/1.1 404 "));
    }

    #[test]
    fn what_is_wrong_is_said_in_words_with_503() {
        let not_ready =
            Fake { stuck: vec![], not_ready: vec!["one".to_string(), "two".to_string()] };
        let answer = get(&not_ready, "/readyz");
        assert!(
            answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("\r\n\r\none\ntwo\n"),
            "{answer}"
        );
        assert!(get(&not_ready, "/healthz").starts_with("HTTP/1.1 200 "));
        assert!(get(&not_ready, "/metrics").ends_with("ready false\n"));
        let stuck =
            Fake { stuck: vec!["it hangs".to_string()], not_ready: vec!["it hangs".to_string()] };
        for path in ["/healthz", "/readyz", "/metrics", "/state"] {
            assert!(get(&stuck, path).starts_with("HTTP/1.1 503 "), "{path}");
        }
    }

    #[test]
    fn a_head_is_answered_without_a_body() {
        let answer = exchange(&well(), b"HEAD /healthz HTTP/1.0\r\n\r\n", false);
        assert!(
            answer.contains("Content-Length: 3\r\n") && answer.ends_with("\r\n\r\n"),
            "{answer}"
        );
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let long = [&b"GET / HTTP/1.1\r\nX: "[..], &[b'x'; 3 * HEAD_BYTES_MAX]].concat();
        for (request, status) in [
            (&b"POST /healthz HTTP/1.1\r\n\r\n"[..], "405"),
            (b"GET /healthz\r\n\r\n", "400"),
            (b"GET  /healthz HTTP/1.1\r\n\r\n", "400"),
            (b"GET healthz HTTP/1.1\r\n\r\n", "400"),
            (b"GET / HTTP/2\r\n\r\n", "400"),
            (b"\xff\xfe / HTTP/1.1\r\n\r\n", "400"),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", "400"),
            (b"\r\n\r\n", "400"),
            (b"GET / HTTP/1.1\r\n", "400"),
            (b"", "400"),
            (&long, "431"),
        ] {
            let answer = exchange(&well(), request, true);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
        }
    }

    /// A stream that delivers one byte at a time, each after half the time limit of a request.
    struct Drip(usize);

    impl ReadWithin for Drip {
        fn read_within(&mut self, bytes: &mut [u8], limit: Duration) -> io::Result<usize> {
            self.0 += 1;
            assert!(limit <= CLIENT_PATIENCE);
            thread::sleep(limit.min(CLIENT_PATIENCE / 2));
            bytes[0] = b'x';
            Ok(1)
        }
    }

    #[test]
    fn a_client_that_sends_byte_by_byte_has_no_more_time() {
        let mut drip = Drip(0);
        assert_eq!(read_head(&mut drip).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(drip.0 <= 4, "{}", drip.0);
    }
}
