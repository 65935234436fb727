//! A client of QMP, QEMU's machine protocol: JSON lines over a stream socket.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Time limit for the greeting, which QEMU sends at once.
const GREETS_WITHIN: Duration = Duration::from_secs(10);
/// Time limit for a TCP connection.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);
/// Longest line; replies are far shorter, except those about QEMU's schema.
const LINE_MAX: u64 = 1 << 20;
/// Characters of a peer's words that an error quotes.
const QUOTED: usize = 60;

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
        match name.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Address::Tcp(name.to_owned()))
            }
            _ => Err("the path of a socket or HOST:PORT is needed, as in ./source.qmp or \
                      192.0.2.7:4444"
                .to_owned()),
        }
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

/// Why a conversation failed.
#[derive(Debug, Error)]
pub enum QmpError {
    /// There is no connection.
    #[error("cannot connect to QMP at {address}: {error}")]
    Connect {
        /// The socket.
        address: Address,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The peer sent nothing after the connection.
    #[error("QMP at {0} does not greet")]
    NoGreeting(Address),
    /// The peer speaks another protocol.
    #[error("{address} does not speak QMP: it says '{said}'")]
    NotQmp {
        /// The socket.
        address: Address,
        /// Its first words.
        said: String,
    },
    /// QEMU refused a command.
    #[error("QEMU at {address} refuses {command}: {description}")]
    Refused {
        /// The socket.
        address: Address,
        /// The command.
        command: String,
        /// QEMU's description.
        description: String,
    },
    /// QEMU did not reply in time.
    #[error("QEMU at {address} has not answered {command} for {} s", .limit.as_secs())]
    Silent {
        /// The socket.
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
    events: VecDeque<Event>,
    next_id: u64,
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
        let reader = stream.reader().map_err(failed)?;
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || receive(reader, &sender));
        let mut qmp =
            Qmp { address: address.clone(), stream, messages, events: VecDeque::new(), next_id: 0 };
        qmp.expect_greeting()?;
        qmp.execute("qmp_capabilities", json!({}), GREETS_WITHIN)?;
        Ok(qmp)
    }

    /// Where it is connected to.
    pub fn address(&self) -> &Address {
        &self.address
    }

    fn expect_greeting(&mut self) -> Result<(), QmpError> {
        let greeting = self.messages.recv_timeout(GREETS_WITHIN).map_err(|error| match error {
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
        let printable = said.chars().map(|c| if c.is_control() { '.' } else { c });
        let said = printable.take(QUOTED).collect();
        QmpError::NotQmp { address: self.address.clone(), said }
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
        let deadline = Instant::now() + limit;
        let id = self.next_id;
        self.next_id += 1;
        let line = json!({"execute": command, "arguments": arguments, "id": id});
        // A peer that has closed the connection may have said why.
        let _ = self.stream.write_all(format!("{line}\n").as_bytes());
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let (at, value) = self.receive(left)?.ok_or_else(|| QmpError::Silent {
                address: self.address.clone(),
                command: command.to_owned(),
                limit,
            })?;
            if value.get("event").is_some() {
                self.keep(at, &value);
            } else if let Some(error) = value.get("error") {
                return Err(QmpError::Refused {
                    address: self.address.clone(),
                    command: command.to_owned(),
                    description: error["desc"].as_str().unwrap_or("no reason given").to_owned(),
                });
            } else if value["id"] == id {
                return Ok(value["return"].clone());
            }
            // The reply to a command that was given up.
        }
    }

    /// The next event, if one arrives within `limit`.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn next_event(&mut self, limit: Duration) -> Result<Option<Event>, QmpError> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let Some((at, value)) = self.receive(left)? else { return Ok(None) };
            self.keep(at, &value);
        }
    }

    fn keep(&mut self, at: Instant, value: &Value) {
        if let Some(name) = value["event"].as_str() {
            let (name, data) = (name.to_owned(), value["data"].clone());
            self.events.push_back(Event { at, name, data });
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
fn receive(stream: impl Read, to: &Sender<(Instant, Message)>) {
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
        for text in ["", "b", "b:", ":4444", "b:70000"] {
            assert!(parsed(text).unwrap_err().contains("HOST:PORT"), "{text}");
        }
    }
}
