//! The sender: a station that writes windows of messages into a receiver's memory.

mod schedule;

pub use schedule::Schedule;

use crate::device::{
    Completion, CompletionKind, Completions, Device, DeviceError, Endpoint, Pair, PairSettings,
    Path, Transport, Write,
};
use crate::layout::{Layout, Place};
use crate::memory::Memory;
use crate::pattern;
use crate::ring::Slots;
use crate::session::{FromReceiver, FromSender, Hello, Lines, SessionError, Welcome};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Longest wait for the receiver's answer, and for its farewell.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Longest wait for the device to execute a work request.
const STALL: Duration = Duration::from_secs(20);
/// Messages of the local memory, shared among the queue pairs.
const DEPTH_TOTAL: u32 = 4096;

/// Bytes of the messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A pattern that the receiver can check.
    Pattern,
    /// These bytes, again and again, message after message.
    Bytes(Vec<u8>),
    /// The memory as it is: no processor touches it.
    Unchanged,
    /// Recorded messages, once.
    Recorded(Recording),
}

/// Messages that were recorded, of one length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// The messages, one after the other.
    pub bytes: Vec<u8>,
    /// When each was recorded, after the first. It is due then, unless the station has a rate.
    pub times: Vec<Duration>,
}

/// What a sender sends, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Station {
    /// Its number.
    pub stream: u32,
    /// Transport service.
    pub transport: Transport,
    /// Subbands, each with its queue pair: slot s is of subband s modulo their number.
    pub subbands: u32,
    /// Messages of a subband per window.
    pub blocks: u32,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Payload rate in bit/s; `None`: as fast as the device.
    pub rate: Option<f64>,
    /// Largest delay of a message behind its schedule, uniformly distributed.
    pub jitter: Duration,
    /// Probability that a message is not sent.
    pub gap: f64,
    /// Work requests of a subband that are posted in one list; 1 interleaves the subbands exactly.
    pub list: u32,
    /// Every n-th message of a queue pair is solicited; 0: none.
    pub solicit: u32,
    /// Windows to send; `None`: until stopped.
    pub windows: Option<u64>,
    /// First window; `None`: the receiver decides.
    pub first_window: Option<u64>,
    /// Whether to announce what was sent.
    pub announce: bool,
    /// Seed of jitter and gaps.
    pub seed: u64,
    /// Bytes of the messages.
    pub source: Source,
}

impl Station {
    /// Messages per window.
    fn slots(&self) -> u64 {
        u64::from(self.subbands) * u64::from(self.blocks)
    }

    /// Windows to send: those asked for, and no more than were recorded.
    fn windows_to_send(&self) -> Option<u64> {
        match &self.source {
            Source::Recorded(Recording { times, .. }) => {
                let recorded = (times.len() as u64).div_ceil(self.slots());
                Some(self.windows.unwrap_or(recorded).min(recorded))
            }
            _ => self.windows,
        }
    }
}

impl Default for Station {
    fn default() -> Self {
        Station {
            stream: 0,
            transport: Transport::Uc,
            subbands: 16,
            blocks: 16,
            message_bytes: 8192,
            rate: None,
            jitter: Duration::ZERO,
            gap: 0.0,
            list: 1,
            solicit: 0,
            windows: None,
            first_window: None,
            announce: true,
            seed: 1,
            source: Source::Pattern,
        }
    }
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sent {
    /// Windows begun.
    pub windows: u64,
    /// Messages posted.
    pub messages: u64,
    /// Messages left out as gaps.
    pub unsent: u64,
    /// Payload bytes posted.
    pub bytes: u64,
    /// Payload bytes of messages that the device has completed. A stream without a number of
    /// windows ends with some whose completion nobody asked for.
    pub completed_bytes: u64,
    /// Time since the first message.
    pub elapsed: Duration,
    /// Largest delay of a message behind its schedule, without jitter.
    pub behind: Duration,
    /// The receiver's counts of the stream: present and missing messages.
    pub received: Option<(u64, u64)>,
}

impl Sent {
    /// Rate of completed payload in bit/s.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.completed_bytes as f64 * 8.0 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Why a sender failed.
#[derive(Debug, Error)]
pub enum SenderError {
    /// A setting is invalid.
    #[error("{0}")]
    Setting(String),
    /// The receiver cannot be reached.
    #[error("cannot connect to {to}: {source}")]
    Connect {
        /// The receiver.
        to: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A work request failed.
    #[error("a WRITE failed with status {0}: the receiver is gone, or its memory is")]
    Failed(u32),
    /// The device executes nothing.
    #[error("the device has executed no WRITE for {} s", STALL.as_secs())]
    Stalled,
}

/// One subband.
struct Subband<D: Device> {
    pair: D::Pair,
    posted: u64,
    /// Messages up to the last one that a completion reports.
    signaled: u64,
    executed: u64,
}

/// A connected sender.
pub struct Sender<D: Device> {
    station: Station,
    completions: D::Completions,
    registration: D::Registration,
    memory: Arc<Memory>,
    subbands: Vec<Subband<D>>,
    welcome: Welcome,
    lines: Lines,
    /// Messages of a subband that may be outstanding.
    depth: u32,
    found: Vec<Completion>,
    message: Vec<u8>,
    sent: Sent,
}

fn check(station: &Station) -> Result<(), SenderError> {
    let slots = station.slots();
    let fault = if slots == 0 || station.message_bytes == 0 {
        "subbands, blocks and bytes of a message must be at least 1"
    } else if slots > 1 << 31 {
        "a window has at most 2^31 messages"
    } else if station.list == 0 {
        "a list has at least 1 work request"
    } else if station.rate.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
        "the rate must be above 0"
    } else if !(0.0..=1.0).contains(&station.gap) {
        "the probability of a gap must be from 0 to 1"
    } else if matches!(&station.source, Source::Bytes(bytes) if bytes.is_empty()) {
        "the file is empty"
    } else if matches!(&station.source, Source::Recorded(recording) if recording.bytes.len() as u64
        != recording.times.len() as u64 * u64::from(station.message_bytes))
    {
        "a recording has messages of the station's length, and a time for each"
    } else if matches!(&station.source, Source::Recorded(recording) if recording.times.is_empty()) {
        "the recording has no messages"
    } else {
        return Ok(());
    };
    Err(SenderError::Setting(fault.into()))
}

impl<D: Device> Sender<D> {
    /// Connects to the receiver at `to`.
    ///
    /// # Errors
    /// If the station is invalid, the receiver refuses, or the device does.
    pub fn connect(device: &D, to: &str, station: Station) -> Result<Self, SenderError> {
        check(&station)?;
        // Slots of the local memory are reused when half of a subband's have been executed.
        let depth = (DEPTH_TOTAL / station.subbands).max(2 * station.list).clamp(2, 256);
        let depth = depth.max(2 * station.list);
        let bytes = station.message_bytes as usize * depth as usize * station.subbands as usize;
        let memory = Arc::new(Memory::allocate(bytes));
        let registration = device.register(&memory)?;
        let completions = device.completions(depth * station.subbands + 16)?;
        let settings =
            PairSettings { transport: station.transport, send_depth: depth, receive_depth: 1 };
        let mut subbands: Vec<Subband<D>> = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..station.subbands {
            let pair = device.pair(&completions, &settings, None)?;
            ends.push(Endpoint { qpn: pair.qpn(), psn: device.fresh_psn() });
            subbands.push(Subband { pair, posted: 0, signaled: 0, executed: 0 });
        }
        let hello = Hello {
            stream: station.stream,
            transport: station.transport,
            address: device.address(),
            path_mtu: device.path_mtu(),
            message_bytes: station.message_bytes,
            slots: station.subbands * station.blocks,
            queue_pairs: ends.clone(),
            first_window: station.first_window,
            announces: station.announce,
        };
        let (lines, welcome) = introduce(to, hello)?;
        let path = Path { address: welcome.address, mtu: welcome.path_mtu };
        for ((subband, end), peer) in subbands.iter().zip(&ends).zip(&welcome.queue_pairs) {
            subband.pair.connect(end.psn, *peer, path)?;
        }
        Ok(Sender {
            message: vec![0; station.message_bytes as usize],
            station,
            completions,
            registration,
            memory,
            subbands,
            welcome,
            lines,
            depth,
            found: Vec::with_capacity(256),
            sent: Sent::default(),
        })
    }

    /// The first window.
    #[must_use]
    pub fn first_window(&self) -> u64 {
        self.welcome.first_window
    }

    /// Sends all windows, or until `stop`; `progress` is called after each window.
    ///
    /// # Errors
    /// If the receiver ends the session, or the device fails.
    pub fn run(
        mut self,
        stop: &AtomicBool,
        mut progress: impl FnMut(&Sent),
    ) -> Result<Sent, SenderError> {
        let mut schedule = Schedule::new(&self.station);
        let mut window = self.welcome.first_window;
        let end = self.station.windows_to_send().map(|windows| window.saturating_add(windows));
        while end.is_none_or(|end| window < end) && !stop.load(Ordering::Relaxed) {
            self.send_next(None, &mut schedule, stop)?;
            progress(&self.sent);
            window += 1;
        }
        self.finish(&schedule)
    }

    /// Sends the next window with these bytes: message s of the window has its s-th part. Meant for
    /// [`Source::Unchanged`]. Once `stop` is set, the rest of the window is left out.
    ///
    /// # Errors
    /// If `bytes` is no window, the receiver ends the session, or the device fails.
    pub fn send(
        &mut self,
        bytes: &[u8],
        schedule: &mut Schedule,
        stop: &AtomicBool,
    ) -> Result<Sent, SenderError> {
        let of_window = self.station.slots() * u64::from(self.station.message_bytes);
        if bytes.len() as u64 != of_window {
            let given = bytes.len();
            let text = format!("a window has {of_window} bytes, and {given} were given");
            return Err(SenderError::Setting(text));
        }
        self.send_next(Some(bytes), schedule, stop)?;
        Ok(self.sent)
    }

    /// Sends and announces the next window.
    fn send_next(
        &mut self,
        given: Option<&[u8]>,
        schedule: &mut Schedule,
        stop: &AtomicBool,
    ) -> Result<(), SenderError> {
        let window = self.welcome.first_window.saturating_add(self.sent.windows);
        let unsent = self.send_window(window, given, schedule, stop)?;
        self.sent.windows += 1;
        self.sent.elapsed = schedule.elapsed();
        self.sent.behind = schedule.behind();
        if self.station.announce {
            self.lines.write(&FromSender::Sent { window, unsent })?;
        }
        Ok(())
    }

    /// Ends the stream when the device has executed everything.
    ///
    /// # Errors
    /// If the receiver ended the session, or the device fails.
    pub fn finish(mut self, schedule: &Schedule) -> Result<Sent, SenderError> {
        self.drain()?;
        self.sent.elapsed = schedule.elapsed();
        self.lines.write(&FromSender::End { messages: self.sent.messages })?;
        self.sent.received = self.farewell();
        Ok(self.sent)
    }

    /// Sends a window. Returns the slots that were left out.
    fn send_window(
        &mut self,
        window: u64,
        given: Option<&[u8]>,
        schedule: &mut Schedule,
        stop: &AtomicBool,
    ) -> Result<Vec<Slots>, SenderError> {
        let Station { subbands, blocks, list, .. } = self.station;
        let mut unsent: Vec<u32> = Vec::new();
        let mut writes = Vec::with_capacity(list as usize);
        for first in (0..blocks).step_by(list as usize) {
            for subband in 0..subbands {
                writes.clear();
                let is_stopped = stop.load(Ordering::Relaxed);
                for block in first..(first + list).min(blocks) {
                    let slot = block * subbands + subband;
                    if is_stopped || schedule.is_gap() || !self.has(window, slot) {
                        unsent.push(slot);
                    } else {
                        self.wait_for_room(subband, writes.len() as u64)?;
                        let write = self.prepare(window, slot, subband, writes.len() as u64);
                        if let Some(given) = given {
                            let bytes = write.bytes as usize;
                            self.memory
                                .write(write.offset, &given[slot as usize * bytes..][..bytes]);
                        }
                        writes.push(write);
                    }
                    if !is_stopped {
                        let waited = schedule.wait(|| match stop.load(Ordering::Relaxed) {
                            true => Err(None),
                            false => self.take_completions().map_err(Some),
                        });
                        if let Err(Some(error)) = waited {
                            return Err(error);
                        }
                    }
                }
                self.post(subband, &writes)?;
            }
        }
        self.sent.unsent += unsent.len() as u64;
        unsent.sort_unstable();
        Ok(in_rows(&unsent))
    }

    /// Index of a message, from 0.
    fn index(&self, window: u64, slot: u32) -> u64 {
        (window - self.welcome.first_window) * self.station.slots() + u64::from(slot)
    }

    /// Whether this is its subband's last message of a stream with a number of windows.
    fn is_last(&self, window: u64, slot: u32) -> bool {
        let Station { subbands, blocks, .. } = self.station;
        let sent = window - self.welcome.first_window;
        slot / subbands + 1 == blocks && self.station.windows_to_send() == Some(sent + 1)
    }

    /// Whether there is such a message: a recording may end within a window.
    fn has(&self, window: u64, slot: u32) -> bool {
        match &self.station.source {
            Source::Recorded(Recording { times, .. }) => {
                self.index(window, slot) < times.len() as u64
            }
            _ => true,
        }
    }

    /// Fills the next message of a subband, the `ahead`-th that is not posted.
    fn prepare(&mut self, window: u64, slot: u32, subband: u32, ahead: u64) -> Write {
        let bytes = self.station.message_bytes;
        let count = self.subbands[subband as usize].posted + ahead;
        let at = u64::from(subband) * u64::from(self.depth) + count % u64::from(self.depth);
        let offset = at as usize * bytes as usize;
        match &self.station.source {
            Source::Pattern => {
                pattern::fill(&mut self.message, self.station.stream, window, slot);
                self.memory.write(offset, &self.message);
            }
            Source::Bytes(source) => {
                let begin = (self.sent.messages + ahead) as usize * bytes as usize % source.len();
                let again = source.iter().cycle().skip(begin);
                for (to, from) in self.message.iter_mut().zip(again) {
                    *to = *from;
                }
                self.memory.write(offset, &self.message);
            }
            Source::Recorded(recording) => {
                let begin = self.index(window, slot) as usize * bytes as usize;
                self.memory.write(offset, &recording.bytes[begin..begin + bytes as usize]);
            }
            Source::Unchanged => {}
        }
        let region = self.welcome.regions[(window % self.welcome.regions.len() as u64) as usize];
        let layout: Layout = self.welcome.layout;
        let place = Place { stream: self.station.stream, window: layout.wire_window(window), slot };
        let solicit = u64::from(self.station.solicit);
        Write {
            tag: u64::from(subband) << 40 | (count + 1) & ((1 << 40) - 1),
            offset,
            bytes,
            remote_address: region.address.wrapping_add(u64::from(slot) * u64::from(bytes)),
            rkey: region.rkey,
            immediate: layout.encode(place),
            signaled: (count + 1).is_multiple_of(u64::from(self.depth / 2))
                || self.is_last(window, slot),
            solicited: solicit > 0 && (count + 1).is_multiple_of(solicit),
        }
    }

    fn post(&mut self, subband: u32, writes: &[Write]) -> Result<(), SenderError> {
        if writes.is_empty() {
            return Ok(());
        }
        let of = &mut self.subbands[subband as usize];
        of.pair.post_writes(&self.registration, writes)?;
        for write in writes {
            of.posted += 1;
            if write.signaled {
                of.signaled = of.posted;
            }
        }
        self.sent.messages += writes.len() as u64;
        self.sent.bytes += writes.len() as u64 * u64::from(self.station.message_bytes);
        Ok(())
    }

    /// Waits until the subband has room for one message more than `ahead`.
    fn wait_for_room(&mut self, subband: u32, ahead: u64) -> Result<(), SenderError> {
        let begun = Instant::now();
        loop {
            let of = &self.subbands[subband as usize];
            if of.posted + ahead < of.executed + u64::from(self.depth) {
                return Ok(());
            }
            if begun.elapsed() > STALL {
                return Err(SenderError::Stalled);
            }
            self.take_completions()?;
        }
    }

    fn take_completions(&mut self) -> Result<(), SenderError> {
        self.found.clear();
        self.completions.poll(256, &mut self.found)?;
        for completion in &self.found {
            match completion.kind {
                CompletionKind::Sent { tag } => {
                    if let Some(of) = self.subbands.get_mut((tag >> 40) as usize) {
                        let executed = of.executed.max(tag & ((1 << 40) - 1));
                        self.sent.completed_bytes +=
                            (executed - of.executed) * u64::from(self.station.message_bytes);
                        of.executed = executed;
                    }
                }
                CompletionKind::Failed { status } => return Err(SenderError::Failed(status)),
                CompletionKind::Arrived { .. } | CompletionKind::Foreign => {}
            }
        }
        Ok(())
    }

    /// Waits until the device has executed everything that will complete, which is all but the
    /// unsignaled messages at the end; UC's leave in the order of posting.
    fn drain(&mut self) -> Result<(), SenderError> {
        let begun = Instant::now();
        while self.subbands.iter().any(|of| of.executed < of.signaled) {
            if begun.elapsed() > STALL {
                return Err(SenderError::Stalled);
            }
            self.take_completions()?;
        }
        Ok(())
    }

    /// The receiver's counts. While it waits, the device sends what is left.
    fn farewell(&mut self) -> Option<(u64, u64)> {
        let begun = Instant::now();
        while begun.elapsed() < ANSWER_WITHIN {
            match self.lines.read() {
                Ok(Some(FromReceiver::Ended { present, missing })) => {
                    return Some((present, missing));
                }
                Ok(_) => self.take_completions().ok()?,
                Err(_) => return None,
            }
        }
        None
    }
}

/// Connects, and says hello.
fn introduce(to: &str, hello: Hello) -> Result<(Lines, Welcome), SenderError> {
    let failed = |source| SenderError::Connect { to: to.into(), source };
    let addresses = to.to_socket_addrs().map_err(failed)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut connected = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, ANSWER_WITHIN) {
            Ok(stream) => {
                connected = Some(stream);
                break;
            }
            Err(error) => last = error,
        }
    }
    let stream = connected.ok_or(last).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(Some(Duration::from_millis(50))).map_err(failed)?;
    let pairs = hello.queue_pairs.len();
    let mut lines = Lines::new(stream);
    lines.write(&FromSender::Hello(hello))?;
    let begun = Instant::now();
    while begun.elapsed() < ANSWER_WITHIN {
        match lines.read()? {
            Some(FromReceiver::Welcome(welcome)) => {
                if welcome.queue_pairs.len() != pairs || welcome.regions.is_empty() {
                    return Err(SessionError::Malformed("a welcome of another shape".into()).into());
                }
                return Ok((lines, welcome));
            }
            Some(FromReceiver::Refused(sentence)) => {
                return Err(SessionError::Refused(sentence).into());
            }
            Some(FromReceiver::Ended { .. }) => {
                return Err(SessionError::OutOfTurn("a farewell").into());
            }
            None => {}
        }
    }
    Err(SessionError::Malformed("no answer to the hello".into()).into())
}

/// Joins adjacent slots.
fn in_rows(slots: &[u32]) -> Vec<Slots> {
    let mut rows: Vec<Slots> = Vec::new();
    for slot in slots {
        match rows.last_mut() {
            Some(row) if row.first + row.count == *slot => row.count += 1,
            _ => rows.push(Slots { first: *slot, count: 1 }),
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_slots_are_one_row() {
        let rows = in_rows(&[0, 1, 2, 5, 7, 8]);
        let rows: Vec<_> = rows.iter().map(|row| (row.first, row.count)).collect();
        assert_eq!(rows, [(0, 3), (5, 1), (7, 2)]);
    }

    #[test]
    fn invalid_stations_are_refused() {
        for (change, text) in [
            ((|s| s.subbands = 0) as fn(&mut Station), "at least 1"),
            (|s| s.gap = 1.5, "from 0 to 1"),
            (|s| s.rate = Some(0.0), "above 0"),
            (|s| s.list = 0, "at least 1 work request"),
            (|s| s.source = Source::Bytes(Vec::new()), "empty"),
        ] {
            let mut station = Station::default();
            change(&mut station);
            let said = check(&station).unwrap_err().to_string();
            assert!(said.contains(text), "{said}");
        }
    }
}
