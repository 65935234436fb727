//! A client of QMP, QEMU's machine protocol: JSON lines over a stream socket.

use serde_json::{Value, json};
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Time limit for the greeting, which QEMU sends at once.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a TCP connection.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);
/// Longest line; replies are far shorter, except those about QEMU's schema.
const LINE_MAX: u64 = 1 << 20;
/// Characters of the peer's first words that an error quotes.
const QUOTED: usize = 60;
/// Characters of QEMU's description of an error.
const DESCRIPTION_MAX: usize = 500;
/// Messages that wait to be read; a peer that sends more is not read from.
const QUEUED_MAX: usize = 256;
/// Events that wait to be taken; later ones are dropped.
const EVENTS_MAX: usize = 256;
/// The events that tell a migration's phases; others are dropped.
const EVENTS: [&str; 3] = ["MIGRATION", "STOP", "RESUME"];

/// Up to `limit` characters of a peer's `text`, fit for a terminal.
pub fn printable(text: &str, limit: usize) -> String {
    text.chars().map(|c| if c.is_control() { '.' } else { c }).take(limit).collect()
}

/// True for a host and a port that one can connect to.
pub fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse().is_ok_and(|port: u16| port > 0)
    })
}

/// Where a QEMU listens for QMP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A UNIX socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

impl FromStr for Address {
    type Err = String;

    /// A path contains a slash or begins with `unix:`; the rest is a host and a port.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Address::Unix(path.into()));
        }
        if text.contains('/') {
            return Ok(Address::Unix(text.into()));
        }
        let name = text.strip_prefix("tcp:").unwrap_or(text);
        if is_host_and_port(name) {
            return Ok(Address::Tcp(name.to_owned()));
        }
        Err("the path of a socket or HOST:PORT is needed, as in ./source.qmp or 192.0.2.7:4444"
            .to_owned())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => path.display().fmt(f),
            Address::Tcp(name) => f.write_str(name),
        }
    }
}

/// Error of a QMP connection.
#[derive(Debug, Error)]
pub enum QmpError {
    /// There is no connection.
    #[error("cannot connect to QMP at {address}: {error}")]
    Connect {
        /// The peer's address.
        address: Address,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The peer sent nothing after the connection.
    #[error("no QMP greeting from {0} within {limit} s", limit = GREETING_TIMEOUT.as_secs())]
    NoGreeting(Address),
    /// The peer speaks another protocol.
    #[error("{address} does not speak QMP: it says '{said}'")]
    NotQmp {
        /// The peer's address.
        address: Address,
        /// Its first words.
        said: String,
    },
    /// QEMU refused a command.
    #[error("QEMU at {address} refuses {command}: {description}")]
    Refused {
        /// The peer's address.
        address: Address,
        /// The command.
        command: String,
        /// QEMU's description.
        description: String,
    },
    /// QEMU did not reply in time.
    #[error("QEMU at {address} has not answered {command} for {} s", .limit.as_secs())]
    Silent {
        /// The peer's address.
        address: Address,
        /// The command.
        command: String,
        /// The time limit.
        limit: Duration,
    },
    /// The connection ended.
    #[error("QEMU at {0} closed its connection: it ended or was killed")]
    Closed(Address),
}

/// An event of QEMU.
#[derive(Clone, Debug)]
pub struct Event {
    /// When it arrived here.
    pub at: Instant,
    /// Its name.
    pub name: String,
    /// Its data; null if there are none.
    pub data: Value,
}

/// A connection in command mode. One thread receives, so that events have the time of their
/// arrival.
pub struct Qmp {
    address: Address,
    stream: Stream,
    messages: Receiver<(Instant, Message)>,
    events: Vec<Event>,
    next_id: u64,
}

/// A command whose reply is awaited.
#[derive(Debug)]
pub struct Sent {
    id: u64,
    command: String,
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// What the receiving thread hands over.
enum Message {
    Json(Value),
    /// A line that is no JSON object; nothing follows.
    Other(String),
}

impl Qmp {
    /// Connects, reads the greeting and enters command mode.
    ///
    /// # Errors
    /// As [`QmpError`] says.
    pub fn connect(address: &Address) -> Result<Self, QmpError> {
        let failed = |error| QmpError::Connect { address: address.clone(), error };
        let stream = Stream::connect(address).map_err(failed)?;
        Qmp::over(address.clone(), stream)
    }

    fn over(address: Address, stream: Stream) -> Result<Self, QmpError> {
        let reader = match stream.reader() {
            Ok(reader) => reader,
            Err(error) => return Err(QmpError::Connect { address, error }),
        };
        let (sender, messages) = mpsc::sync_channel(QUEUED_MAX);
        thread::spawn(move || receive(reader, &sender));
        let mut qmp = Qmp { address, stream, messages, events: Vec::new(), next_id: 0 };
        qmp.expect_greeting()?;
        qmp.execute("qmp_capabilities", json!({}), GREETING_TIMEOUT)?;
        Ok(qmp)
    }

    /// Where it is connected to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    fn expect_greeting(&mut self) -> Result<(), QmpError> {
        let greeting =
            self.messages.recv_timeout(GREETING_TIMEOUT).map_err(|error| match error {
                RecvTimeoutError::Timeout => QmpError::NoGreeting(self.address.clone()),
                RecvTimeoutError::Disconnected => QmpError::Closed(self.address.clone()),
            })?;
        match greeting {
            (_, Message::Json(value)) if value.get("QMP").is_some() => Ok(()),
            (_, Message::Json(value)) => Err(self.not_qmp(&value.to_string())),
            (_, Message::Other(text)) => Err(self.not_qmp(&text)),
        }
    }

    fn not_qmp(&self, said: &str) -> QmpError {
        QmpError::NotQmp { address: self.address.clone(), said: printable(said, QUOTED) }
    }

    /// Executes `command` and returns its value. Events that arrive in the meantime are kept.
    ///
    /// # Errors
    /// If QEMU refuses it, or does not reply within `limit`.
    pub fn execute(
        &mut self,
        command: &str,
        arguments: Value,
        limit: Duration,
    ) -> Result<Value, QmpError> {
        let order = self.send(command, arguments);
        self.reply(&order, limit)?.ok_or_else(|| QmpError::Silent {
            address: self.address.clone(),
            command: order.command,
            limit,
        })
    }

    /// Sends `command`, whose reply is then awaited with [`Qmp::reply`].
    pub fn send(&mut self, command: &str, arguments: Value) -> Sent {
        let id = self.next_id;
        self.next_id += 1;
        let line = json!({"execute": command, "arguments": arguments, "id": id});
        // A peer that has closed the connection may have said why.
        let _ = self.stream.write_all(format!("{line}\n").as_bytes());
        Sent { id, command: command.to_owned() }
    }

    /// The reply to `sent`, if it arrives within `limit`. Events that arrive in the meantime are
    /// kept.
    ///
    /// # Errors
    /// If QEMU refuses the command, or the connection ended.
    pub fn reply(&mut self, sent: &Sent, limit: Duration) -> Result<Option<Value>, QmpError> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some((at, value)) = self.receive(left)? else { return Ok(None) };
            // QEMU knows no id of a line that it could not read.
            let is_ours = value.get("id").map_or(value.get("error").is_some(), |id| *id == sent.id);
            if value.get("event").is_some() {
                self.keep(at, &value);
            } else if is_ours {
                return match value.get("error") {
                    None => Ok(Some(value["return"].clone())),
                    Some(error) => Err(self.refused(&sent.command, error)),
                };
            }
            // Other replies are those to commands that were given up.
            if Instant::now() >= deadline {
                return Ok(None);
            }
        }
    }

    fn refused(&self, command: &str, error: &Value) -> QmpError {
        let description = error["desc"].as_str().unwrap_or("no reason given");
        QmpError::Refused {
            address: self.address.clone(),
            command: command.to_owned(),
            description: printable(description, DESCRIPTION_MAX),
        }
    }

    /// The events of a migration that have arrived; waits for the first one for up to `limit`.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn events(&mut self, limit: Duration) -> Result<Vec<Event>, QmpError> {
        let deadline = Instant::now() + limit;
        // No more than were queued: a peer may send without end.
        for _ in 0..QUEUED_MAX {
            let left = match self.events.is_empty() {
                true => deadline.saturating_duration_since(Instant::now()),
                false => Duration::ZERO,
            };
            let Some((at, value)) = self.receive(left)? else { break };
            self.keep(at, &value);
        }
        Ok(self.events.drain(..).collect())
    }

    fn keep(&mut self, at: Instant, value: &Value) {
        if let Some(name) = value["event"].as_str()
            && EVENTS.contains(&name)
            && self.events.len() < EVENTS_MAX
        {
            self.events.push(Event { at, name: name.to_owned(), data: value["data"].clone() });
        }
    }

    /// The next message, if one arrives within `limit`.
    fn receive(&mut self, limit: Duration) -> Result<Option<(Instant, Value)>, QmpError> {
        match self.messages.recv_timeout(limit) {
            Ok((at, Message::Json(value))) => Ok(Some((at, value))),
            Ok((_, Message::Other(text))) => Err(self.not_qmp(&text)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(QmpError::Closed(self.address.clone())),
        }
    }
}

impl Drop for Qmp {
    fn drop(&mut self) {
        // Ends the receiving thread; the peer may have closed the connection already.
        let _ = match &self.stream {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Stream {
    fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
            Address::Tcp(name) => {
                let addresses: Vec<SocketAddr> = name.to_socket_addrs()?.collect();
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                for address in addresses {
                    match TcpStream::connect_timeout(&address, CONNECTS_WITHIN) {
                        Ok(stream) => return Ok(Stream::Tcp(stream)),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    fn reader(&self) -> io::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Stream::Unix(stream) => Box::new(stream.try_clone()?),
            Stream::Tcp(stream) => Box::new(stream.try_clone()?),
        })
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.write_all(bytes),
            Stream::Tcp(stream) => stream.write_all(bytes),
        }
    }
}

/// Hands over what arrives, until the connection ends or nobody takes it.
fn receive(stream: impl Read, to: &SyncSender<(Instant, Message)>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let read = stream.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) {
            return;
        }
        let at = Instant::now();
        let message = match serde_json::from_slice(&line) {
            Ok(value @ Value::Object(_)) => Message::Json(value),
            _ => Message::Other(String::from_utf8_lossy(&line).trim().to_owned()),
        };
        let ends = matches!(message, Message::Other(_));
        if to.send((at, message)).is_err() || ends {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_path_or_a_host_with_a_port() {
        let parsed = |text: &str| text.parse::<Address>();
        assert_eq!(parsed("/run/a.qmp"), Ok(Address::Unix("/run/a.qmp".into())));
        assert_eq!(parsed("unix:a.qmp"), Ok(Address::Unix("a.qmp".into())));
        assert_eq!(parsed("b:4444"), Ok(Address::Tcp("b:4444".into())));
        assert_eq!(parsed("tcp:[::1]:4444"), Ok(Address::Tcp("[::1]:4444".into())));
        for text in ["", "b", "b:", ":4444", "b:0", "b:70000"] {
            assert!(parsed(text).unwrap_err().contains("HOST:PORT"), "{text}");
        }
    }

    /// A peer that greets, enters command mode and then does as `script` says.
    fn imitated(
        script: impl FnOnce(&mut dyn FnMut() -> Value, &mut UnixStream) + Send + 'static,
    ) -> Qmp {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
            let mut next = || match lines.next() {
                Some(Ok(line)) => serde_json::from_str(&line).unwrap(),
                _ => Value::Null,
            };
            theirs.write_all(b"{\"QMP\": {}}\n").unwrap();
            let id = next()["id"].clone();
            theirs.write_all(format!("{}\n", json!({"return": {}, "id": id})).as_bytes()).unwrap();
            script(&mut next, &mut theirs);
        });
        Qmp::over(Address::Unix("imitated".into()), Stream::Unix(ours)).unwrap()
    }

    #[test]
    fn an_error_belongs_to_the_command_with_its_id() {
        let mut qmp = imitated(|next, stream| {
            let late = next()["id"].clone();
            let id = next()["id"].clone();
            for message in [
                json!({"error": {"desc": "of a command given up"}, "id": late}),
                json!({"return": 7, "id": id}),
                json!({"error": {"desc": "two\nlines"}}),
            ] {
                stream.write_all(format!("{message}\n").as_bytes()).unwrap();
            }
            next();
        });
        let late = qmp.send("migrate", json!({}));
        assert_eq!(qmp.reply(&late, Duration::ZERO).unwrap(), None);
        let limit = Duration::from_secs(60);
        assert_eq!(qmp.execute("query-status", json!({}), limit).unwrap(), 7);
        let error = qmp.execute("query-status", json!({}), limit).unwrap_err().to_string();
        assert_eq!(error, "QEMU at imitated refuses query-status: two.lines");
    }

    #[test]
    fn a_peer_that_talks_without_end_exceeds_no_limit() {
        let mut qmp = imitated(|_, stream| {
            let line = format!("{}\n", json!({"event": "RTC_CHANGE", "data": {}}));
            while stream.write_all(line.as_bytes()).is_ok() {}
        });
        let error = qmp.execute("query-status", json!({}), Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, QmpError::Silent { .. }), "{error}");
        assert_eq!(qmp.events(Duration::ZERO).unwrap().len(), 0);
    }

    #[test]
    fn words_of_a_peer_cannot_drive_a_terminal() {
        assert_eq!(printable("a\x1b[2J\nb", 6), "a.[2J.");
    }
}
