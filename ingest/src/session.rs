//! Set-up between sender and receiver: JSON lines over TCP, with a version.
//!
//! | from | line | meaning |
//! |---|---|---|
//! | sender | `hello` | number, shape and queue pairs of the sender |
//! | receiver | `welcome` or `refused` | regions and queue pairs of the receiver, or the reason |
//! | sender | `sent` | a window has been sent, except the listed slots |
//! | sender | `end` | nothing more will be sent |
//! | receiver | `ended` | what arrived; both close |
//!
//! A line is at most [`LINE_MAX`] bytes. A connection that ends without `end` is a sender that
//! died. Each line carries the version, so that another version is refused with a sentence whatever
//! else it changed.

use crate::device::{Endpoint, Transport};
use crate::layout::Layout;
use crate::ring::Slots;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpStream};
use thiserror::Error;

/// Version of the lines.
pub const VERSION: u32 = 1;

/// Longest line, in bytes: a hello of more than 20,000 queue pairs.
pub const LINE_MAX: usize = 1 << 20;

/// A sender introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its number, from 0.
    pub stream: u32,
    /// Transport service of its queue pairs.
    pub transport: Transport,
    /// Address of its port: the GID is this address or its IPv4-mapped form.
    pub address: IpAddr,
    /// Largest path MTU of its port, in bytes.
    pub path_mtu: u32,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Messages per window.
    pub slots: u32,
    /// Slot s is sent by queue pair s modulo their number.
    pub queue_pairs: Vec<Endpoint>,
    /// Its first window; absent: the receiver decides.
    #[serde(default)]
    pub first_window: Option<u64>,
    /// Whether it sends `sent` lines.
    #[serde(default)]
    pub announces: bool,
}

/// A region, as its sender sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRegion {
    /// Address of the sender's slot 0.
    pub address: u64,
    /// Key.
    pub rkey: u32,
    /// Bytes from there on that belong to this sender.
    pub bytes: u64,
}

/// The receiver accepts a sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Layout of the immediate data.
    pub layout: Layout,
    /// Address of the receiver's port.
    pub address: IpAddr,
    /// Path MTU of both ends, in bytes.
    pub path_mtu: u32,
    /// The receiver's end of each queue pair.
    pub queue_pairs: Vec<Endpoint>,
    /// Window w is written to region w modulo their number.
    pub regions: Vec<RemoteRegion>,
    /// The first window to send.
    pub first_window: u64,
}

/// What a sender without a session must know of its receiver, which writes it to a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaticStream {
    /// The sender's number.
    pub stream: u32,
    /// Transport service of its queue pairs.
    pub transport: Transport,
    /// GID of the receiver's port: its IPv6 or IPv4-mapped address.
    pub gid: Ipv6Addr,
    /// MAC address of the receiver's port, if the device says so; a router's is needed beyond one.
    pub mac: Option<String>,
    /// UDP port of RoCEv2.
    pub udp_port: u16,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Messages per window.
    pub slots: u32,
    /// The sender's own ends, as the receiver was told.
    pub sender_queue_pairs: Vec<Endpoint>,
    /// What a session would tell.
    #[serde(flatten)]
    pub welcome: Welcome,
}

/// The file for senders without a session: one line as those of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToHardware {
    /// All of them.
    Static(Vec<StaticStream>),
}

/// Lines to the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromSender {
    /// Introduces the sender.
    Hello(Hello),
    /// A window has been sent, except some slots.
    Sent {
        /// The window, without wrap.
        window: u64,
        /// Slots that were not sent.
        unsent: Vec<Slots>,
    },
    /// Nothing more will be sent.
    End {
        /// Messages sent.
        messages: u64,
    },
}

/// Lines to the sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromReceiver {
    /// Accepts.
    Welcome(Welcome),
    /// Refuses, with a sentence.
    Refused(String),
    /// Nothing more is expected.
    Ended {
        /// Messages of its stream that were present, since the receiver began.
        present: u64,
        /// Messages of its stream that were sent, and are missing or damaged.
        missing: u64,
    },
}

#[derive(Serialize, Deserialize)]
struct Line<T> {
    longhaul_ingest: u32,
    #[serde(flatten)]
    message: T,
}

/// Why a session failed.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The connection ended.
    #[error("the connection ended")]
    Closed,
    /// The peer has another version.
    #[error(
        "the peer's session has version {0}, and this program's has version {VERSION}: use the \
         same release at both ends"
    )]
    Version(u64),
    /// A line that is no message.
    #[error("a line of the session is invalid: {0}")]
    Malformed(String),
    /// A line without end.
    #[error("a line of the session is longer than {LINE_MAX} bytes")]
    TooLong,
    /// The receiver refused.
    #[error("the receiver refused: {0}")]
    Refused(String),
    /// A message out of turn.
    #[error("the peer sent {0} out of turn")]
    OutOfTurn(&'static str),
}

/// Writes a message as a line.
///
/// # Errors
/// None that a message of this module can cause.
pub fn to_line(message: &impl Serialize) -> Result<String, SessionError> {
    let line = Line { longhaul_ingest: VERSION, message };
    let mut text =
        serde_json::to_string(&line).map_err(|e| SessionError::Malformed(e.to_string()))?;
    text.push('\n');
    Ok(text)
}

/// Reads a message from a line.
///
/// # Errors
/// [`SessionError::Version`], [`SessionError::Malformed`].
pub fn from_line<T: DeserializeOwned>(line: &[u8]) -> Result<T, SessionError> {
    let malformed = |error: serde_json::Error| SessionError::Malformed(error.to_string());
    let value: serde_json::Value = serde_json::from_slice(line).map_err(malformed)?;
    match value.get("longhaul_ingest").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => return Err(SessionError::Version(version)),
        None => return Err(SessionError::Malformed("no \"longhaul_ingest\": VERSION".into())),
    }
    let line: Line<T> = serde_json::from_value(value).map_err(malformed)?;
    Ok(line.message)
}

/// The lines of a connection.
pub struct Lines {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Lines {
    /// Lines over `stream`, whose read timeout bounds [`Lines::read`].
    #[must_use]
    pub fn new(stream: TcpStream) -> Self {
        Lines { stream, buffer: Vec::new() }
    }

    /// The connection.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends a message.
    ///
    /// # Errors
    /// If the connection failed.
    pub fn write(&mut self, message: &impl Serialize) -> Result<(), SessionError> {
        Ok(self.stream.write_all(to_line(message)?.as_bytes())?)
    }

    /// Receives a message; `None` if the read timeout expires first.
    ///
    /// # Errors
    /// If the connection ended, or the line is invalid.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, SessionError> {
        let mut block = [0; 8192];
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return from_line(&line).map(Some);
            }
            if self.buffer.len() > LINE_MAX {
                return Err(SessionError::TooLong);
            }
            match self.stream.read(&mut block) {
                Ok(0) => return Err(SessionError::Closed),
                Ok(read) => self.buffer.extend_from_slice(&block[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_versioned_json() {
        let sent = FromSender::Sent { window: 7, unsent: vec![Slots { first: 3, count: 2 }] };
        let line = to_line(&sent).unwrap();
        assert_eq!(
            line,
            "{\"longhaul_ingest\":1,\"sent\":{\"window\":7,\
             \"unsent\":[{\"first\":3,\"count\":2}]}}\n"
        );
        assert_eq!(from_line::<FromSender>(line.as_bytes()).unwrap(), sent);
    }

    #[test]
    fn another_version_is_named_whatever_else_it_changed() {
        let error =
            from_line::<FromSender>(b"{\"longhaul_ingest\":2,\"greetings\":1}").unwrap_err();
        assert!(error.to_string().contains("version 2"), "{error}");
        for line in ["", "{}", "[1]", "GET / HTTP/1.1", "{\"longhaul_ingest\":1,\"x\":1}"] {
            let error = from_line::<FromSender>(line.as_bytes()).unwrap_err();
            assert!(matches!(error, SessionError::Malformed(_)), "{line}: {error}");
        }
    }
}
