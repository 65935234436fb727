//! Health, metrics and state of a box by plain HTTP: what a probe or a scraper asks for, and no
//! more.
//!
//! GET and HEAD of four paths, one request per connection. A request has [`HEAD_BYTES_MAX`] and
//! [`CLIENT_PATIENCE`] to come in, its body is not looked at, and [`SERVERS`] threads answer:
//! whoever dawdles on as many connections keeps others from their answers, never a frame from its
//! way. Who asks is not checked, and nothing here changes anything.

use crate::error::Error;
use crate::operation::Operated;
use crate::{journal, prometheus};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The longest head of a request, in bytes: several times what probes and scrapers send.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// How long a client may take for its request, and again for our answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(2);

/// Threads that answer.
const SERVERS: usize = 4;

/// Bytes that are thrown away so that a client that sends more than it should hears our answer, and
/// how long that may take.
const SPILL_BYTES_MAX: usize = 64 << 10;
const SPILL_PATIENCE: Duration = Duration::from_millis(200);

/// Listens; opened while the box still may use any port.
///
/// # Errors
/// When that address cannot be had.
pub fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).map_err(|error| Error::Health { address, error })
}

/// Starts the threads that answer, which live as long as the process.
///
/// # Errors
/// When they cannot be started.
pub fn serve(listener: TcpListener, of: &Arc<dyn Operated>) -> Result<(), Error> {
    journal::line(&format!(
        "answers http://{}/healthz",
        listener.local_addr().map_err(Error::Http)?
    ));
    for _ in 0..SERVERS {
        let (listener, of) = (listener.try_clone().map_err(Error::Http)?, Arc::clone(of));
        let serve = move || {
            for stream in listener.incoming() {
                match stream {
                    // A client that goes away early is its own concern.
                    Ok(stream) => drop(serve_one(stream, &*of)),
                    // Out of descriptors, say; not to be met again at full speed.
                    Err(_) => thread::sleep(CLIENT_PATIENCE),
                }
            }
        };
        thread::Builder::new().name("http".to_string()).spawn(serve).map_err(Error::Http)?;
    }
    Ok(())
}

fn serve_one(mut stream: TcpStream, of: &dyn Operated) -> io::Result<()> {
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

/// What lies unread when a connection is closed takes the answer with it.
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

/// Everything up to the empty line behind the headers, or as much of it as is taken.
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

/// A stream with a time limit for each read.
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

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    path: String,
    /// Without the body.
    is_head: bool,
}

impl Asked {
    /// From the head of a request. What is wrong with it is an answer.
    fn read(head: &[u8]) -> Result<Self, Response> {
        if !is_whole(head) {
            let is_long = head.len() > HEAD_BYTES_MAX;
            let status =
                if is_long { "431 Request Header Fields Too Large" } else { "400 Bad Request" };
            return Err(Response::text(status, "the request does not end where it should\n"));
        }
        let bad = || Response::text("400 Bad Request", "this is no HTTP/1 request\n");
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

fn answer(asked: &Asked, of: &dyn Operated) -> Response {
    let lines =
        |reasons: Vec<String>| reasons.into_iter().map(|reason| reason + "\n").collect::<String>();
    let judged = |reasons: Vec<String>| match reasons.is_empty() {
        true => Response::text("200 OK", &format!("ok\n{}", lines(of.notes()))),
        false => Response::text("503 Service Unavailable", &lines(reasons)),
    };
    let response = match &*asked.path {
        "/healthz" => judged(of.stuck()),
        "/readyz" => judged(of.not_ready()),
        "/metrics" | "/state" => match of.status() {
            None => judged(vec!["it is ending, or hangs: see /healthz".to_string()]),
            Some(state) if asked.path == "/state" => match serde_json::to_string_pretty(&state) {
                Ok(json) => Response {
                    kind: "application/json",
                    ..Response::text("200 OK", &(json + "\n"))
                },
                Err(e) => Response::text("500 Internal Server Error", &format!("{e}\n")),
            },
            Some(state) => {
                let text = prometheus::exposition([&state]);
                Response { kind: "text/plain; version=0.0.4", ..Response::text("200 OK", &text) }
            }
        },
        _ => Response::text("404 Not Found", "there are /healthz, /readyz, /metrics and /state\n"),
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
    use crate::status::BoxStatus;

    struct Fake {
        stuck: Vec<String>,
        not_ready: Vec<String>,
    }

    impl Operated for Fake {
        fn status(&self) -> Option<BoxStatus> {
            let status = BoxStatus {
                name: "west".to_string(),
                command: "accelerate".to_string(),
                pid: 1,
                user: "nobody".to_string(),
                uptime_s: 1.0,
                not_ready: self.not_ready.clone(),
                notes: vec![],
                pairs: vec![],
            };
            self.stuck.is_empty().then_some(status)
        }

        fn not_ready(&self) -> Vec<String> {
            self.not_ready.clone()
        }

        fn stuck(&self) -> Vec<String> {
            self.stuck.clone()
        }

        fn reload(&self) -> Result<Vec<String>, Error> {
            unreachable!("nothing is changed by HTTP")
        }

        fn set_draining(&self, _draining: bool) -> Result<(), Error> {
            unreachable!("nothing is changed by HTTP")
        }
    }

    fn well() -> Fake {
        Fake { stuck: vec![], not_ready: vec![] }
    }

    /// What a client reads that sends `request` over a real connection, and closes its end if
    /// `ends`.
    fn exchange(of: &Fake, request: &[u8], ends: bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let served = listener.accept().unwrap().0;
        thread::scope(|scope| {
            scope.spawn(|| drop(serve_one(served, of)));
            client.write_all(request).unwrap();
            if ends {
                client.shutdown(Shutdown::Write).unwrap();
            }
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
        assert!(json.contains("application/json") && json.contains("\"name\": \"west\""), "{json}");
        let metrics = get(&well(), "/metrics");
        assert!(metrics.contains("longhaul_box_ready{box=\"west\"} 1\n"), "{metrics}");
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
        assert!(get(&not_ready, "/metrics").contains("longhaul_box_ready{box=\"west\"} 0\n"));
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

    /// Bytes that come one at a time, each in half the time that a whole request has.
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
