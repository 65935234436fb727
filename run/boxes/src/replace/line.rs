//! The connection of a successor and its predecessor: lines of JSON, some with descriptors.

use crate::control::Outcome;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Maximum bytes of a line: the settings of many pairs, or the buffers of a port.
const LINE_BYTES_MAX: usize = 4 << 20;
/// Maximum descriptors of a message: the kernel's limit is 253.
const DESCRIPTORS_MAX: usize = 253;

/// A message as it is on the line.
#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    /// Number of descriptors that come with it.
    descriptors: usize,
    message: T,
}

/// What arrived.
#[derive(Debug)]
pub enum Arrived<T> {
    /// A message with its descriptors.
    Message(T, Vec<OwnedFd>),
    /// The answer of a box that does not know the request.
    Unknown(String),
}

/// One end of the connection.
pub struct Line {
    stream: UnixStream,
    /// Bytes that were received and not read yet.
    bytes: Vec<u8>,
    /// Descriptors that were received, in the order of their messages.
    descriptors: VecDeque<OwnedFd>,
}

impl Line {
    pub fn new(stream: UnixStream) -> Self {
        Line { stream, bytes: Vec::new(), descriptors: VecDeque::new() }
    }

    /// Sends a message with descriptors, within `limit`.
    pub fn send<T: Serialize>(
        &mut self,
        message: T,
        descriptors: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Envelope { descriptors: descriptors.len(), message })?;
        line.push(b'\n');
        self.stream.set_write_timeout(Some(limit))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(io::Error::other("too many descriptors for a message"));
        }
        let first = [IoSlice::new(&line)];
        // No signal to a process whose peer is gone.
        let sent = sendmsg(&self.stream, &first, &mut ancillary, SendFlags::NOSIGNAL)?;
        self.stream.write_all(&line[sent..])
    }

    /// Waits for a message, until `limit` is over.
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        limit: Option<Duration>,
    ) -> io::Result<Arrived<T>> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            if let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.bytes.drain(..=end).collect();
                return self.read(&line);
            }
            if self.bytes.len() > LINE_BYTES_MAX {
                return Err(io::Error::other("a message without end"));
            }
            if !self.fetch(deadline)? {
                let line = std::mem::take(&mut self.bytes);
                if line.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                return self.read(&line);
            }
        }
    }

    fn read<T: DeserializeOwned>(&mut self, line: &[u8]) -> io::Result<Arrived<T>> {
        let envelope = match serde_json::from_slice::<Envelope<T>>(line) {
            Ok(envelope) => envelope,
            Err(error) => {
                let outcome = serde_json::from_slice::<Outcome>(line);
                let refusal = outcome.ok().and_then(|outcome| outcome.error);
                return refusal.map(Arrived::Unknown).ok_or_else(|| error.into());
            }
        };
        if envelope.descriptors > self.descriptors.len() {
            return Err(io::Error::other("descriptors are missing"));
        }
        let descriptors = self.descriptors.drain(..envelope.descriptors).collect();
        Ok(Arrived::Message(envelope.message, descriptors))
    }

    /// Reads what arrives next; `false` at the end of the connection.
    fn fetch(&mut self, deadline: Option<Instant>) -> io::Result<bool> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(left)?;
        let mut bytes = [0; 16 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        );
        let received = match received {
            Err(rustix::io::Errno::INTR) => return Ok(true),
            received => received?,
        };
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other("descriptors were lost on the way"));
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.bytes.extend_from_slice(&bytes[..received.bytes]);
        Ok(received.bytes > 0)
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    const LIMIT: Duration = Duration::from_secs(20);

    fn lines() -> (Line, Line) {
        let (one, other) = UnixStream::pair().unwrap();
        (Line::new(one), Line::new(other))
    }

    #[test]
    fn descriptors_stay_with_their_messages() {
        let (mut from, mut to) = lines();
        let (mut reading, writing) = io::pipe().unwrap();
        from.send("none", &[], LIMIT).unwrap();
        from.send("one", &[writing.as_fd()], LIMIT).unwrap();
        from.send("none again", &[], LIMIT).unwrap();
        drop((from, writing));
        let mut came = Vec::new();
        while let Ok(Arrived::Message(text, descriptors)) = to.receive::<String>(Some(LIMIT)) {
            came.push((text, descriptors));
        }
        let counts: Vec<_> = came.iter().map(|(text, fds)| (&**text, fds.len())).collect();
        assert_eq!(counts, [("none", 0), ("one", 1), ("none again", 0)]);
        File::from(came.remove(1).1.remove(0)).write_all(b"by it").unwrap();
        let mut text = String::new();
        reading.read_to_string(&mut text).unwrap();
        assert_eq!(text, "by it");
    }

    #[test]
    fn an_older_box_is_told_from_noise() {
        let says = |says: &[u8]| {
            let (mut from, mut to) = lines();
            from.stream.write_all(says).unwrap();
            drop(from);
            to.receive::<String>(Some(LIMIT))
        };
        let old = says(br#"{"done":[],"error":"it does not know this request"}"#);
        assert!(matches!(old, Ok(Arrived::Unknown(text)) if text.contains("does not know")));
        for noise in [&b""[..], b"{}\n", b"\xff\n", br#"{"descriptors":1,"message":"x"}"#] {
            assert!(says(noise).is_err(), "{noise:?}");
        }
        let (_from, mut to) = lines();
        let silent = to.receive::<String>(Some(Duration::from_millis(10))).unwrap_err();
        assert!(matches!(silent.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock));
    }
}
