//! A capture file of any port.
//!
//! [`CapturingPort`] records the frames of both directions, in the order in which this port handled
//! them, as a pcap file with nanosecond timestamps (magic `0xa1b23c4d`, link type 1, the layout of
//! libpcap's `pcap-savefile` manual page). Records collect in a fixed buffer, which is written with
//! one system call: when it is full, when it holds the last wanted frame and, while the port is
//! serviced, when its first record is a second old. A failed write ends the recording and never
//! disturbs the traffic: see [`CapturingPort::recording_error`].
//!
//! Several ports, such as the queues of one device on several threads, can write one file
//! ([`CapturingPort::sharing`]). A lock keeps their records separate and in the order of their
//! times. A port takes it once per frame, until the recording is over.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{Lease, LinkState, Port, PortError, Received, forward_port};

/// Magic number of a pcap file with nanosecond timestamps.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINK_TYPE_ETHERNET: u32 = 1;
const RECORD_HEADER_BYTES: usize = 16;
/// The snap length that means "whole frames" to capture tools.
const SNAP_BYTES_MAX: usize = 262_144;
/// Maximum time that a record stays in the buffer while the port is serviced.
const WRITE_AFTER: Duration = Duration::from_secs(1);

/// Configuration of a [`CapturingPort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureConfig {
    /// Stop recording after this many frames, both directions together. `None`: no limit.
    pub frames_max: Option<u64>,
    /// Keep at most this many bytes of a frame, 1 to 262144. `None`: whole frames.
    pub snap_bytes: Option<usize>,
    /// Memory for unwritten records, in bytes. It always holds at least one whole record.
    pub buffer_bytes: usize,
}

impl Default for CaptureConfig {
    fn default() -> Self {
        Self { frames_max: None, snap_bytes: None, buffer_bytes: 1 << 20 }
    }
}

/// Buffers and writes records.
struct Recorder<W: Write> {
    sink: W,
    buffer: Vec<u8>,
    buffer_bytes: usize,
    snap_bytes: usize,
    frames_left: u64,
    frames: u64,
    /// Arrival of the first record in the buffer.
    buffered_since: Option<Instant>,
    error: Option<io::Error>,
}

impl<W: Write> Recorder<W> {
    fn new(sink: W, config: CaptureConfig) -> io::Result<Self> {
        let snap_bytes = config.snap_bytes.unwrap_or(SNAP_BYTES_MAX).clamp(1, SNAP_BYTES_MAX);
        let buffer_bytes = config.buffer_bytes.max(RECORD_HEADER_BYTES);
        let mut recorder = Self {
            sink,
            buffer: Vec::with_capacity(buffer_bytes),
            buffer_bytes,
            snap_bytes,
            frames_left: config.frames_max.unwrap_or(u64::MAX),
            frames: 0,
            buffered_since: None,
            error: None,
        };
        let mut header = [0u8; 24];
        header[0..4].copy_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
        header[4..6].copy_from_slice(&2u16.to_le_bytes());
        header[6..8].copy_from_slice(&4u16.to_le_bytes());
        header[16..20].copy_from_slice(&(snap_bytes as u32).to_le_bytes());
        header[20..24].copy_from_slice(&LINK_TYPE_ETHERNET.to_le_bytes());
        recorder.sink.write_all(&header)?;
        Ok(recorder)
    }

    fn record(&mut self, frame: &[u8]) {
        if self.frames_left == 0 {
            return;
        }
        let kept = &frame[..frame.len().min(self.snap_bytes)];
        if self.buffer.len() + RECORD_HEADER_BYTES + kept.len() > self.buffer_bytes {
            self.write_out();
            if self.frames_left == 0 {
                return;
            }
        }
        // CLOCK_REALTIME. A clock before 1970 yields zero instead of an error.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut header = [0u8; RECORD_HEADER_BYTES];
        header[0..4].copy_from_slice(&(now.as_secs() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&now.subsec_nanos().to_le_bytes());
        header[8..12].copy_from_slice(&(kept.len() as u32).to_le_bytes());
        header[12..16].copy_from_slice(&(frame.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(&header);
        self.buffer.extend_from_slice(kept);
        self.buffered_since.get_or_insert_with(Instant::now);
        self.frames += 1;
        self.frames_left -= 1;
        if self.frames_left == 0 {
            self.write_out();
        }
    }

    /// Writes the buffer if its first record is old enough at `now`.
    fn write_out_old(&mut self, now: impl FnOnce() -> Instant) {
        if self.buffered_since.is_some_and(|since| now().duration_since(since) >= WRITE_AFTER) {
            self.write_out();
        }
    }

    /// Writes the buffer. A failure ends the recording; the first error is kept.
    fn write_out(&mut self) {
        if self.error.is_none()
            && let Err(error) = self.sink.write_all(&self.buffer).and_then(|()| self.sink.flush())
        {
            self.error = Some(error);
            self.frames_left = 0;
        }
        self.buffer.clear();
        self.buffered_since = None;
    }
}

impl<W: Write> Drop for Recorder<W> {
    fn drop(&mut self) {
        self.write_out();
    }
}

/// State that the ports of one file share.
struct Recording<W: Write> {
    recorder: Mutex<Recorder<W>>,
    /// The recording has ended, so ports need not lock the recorder.
    is_over: AtomicBool,
}

impl<W: Write> Recording<W> {
    fn recorder(&self) -> MutexGuard<'_, Recorder<W>> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, frame: &[u8]) {
        if self.is_over.load(Ordering::Relaxed) {
            return;
        }
        let mut recorder = self.recorder();
        recorder.record(frame);
        if recorder.frames_left == 0 {
            self.is_over.store(true, Ordering::Relaxed);
        }
    }
}

/// A port that records every frame of the port inside it.
pub struct CapturingPort<P: Port, W: Write + Send = File> {
    inner: P,
    recording: Arc<Recording<W>>,
}

impl<P: Port> CapturingPort<P> {
    /// Records into a new file at `path`, replacing any previous file.
    ///
    /// # Errors
    /// If the file cannot be created or written.
    pub fn create(inner: P, path: impl AsRef<Path>, config: CaptureConfig) -> io::Result<Self> {
        Self::new(inner, File::create(path)?, config)
    }
}

impl<P: Port, W: Write + Send> CapturingPort<P, W> {
    /// Records into `sink`, which needs no buffer of its own.
    ///
    /// # Errors
    /// If the file header cannot be written.
    pub fn new(inner: P, sink: W, config: CaptureConfig) -> io::Result<Self> {
        Ok(Self { inner, recording: Self::recording(sink, config)? })
    }

    /// Records all of these ports into one `sink`; `config` applies to them together. The file is
    /// complete when the last of them is dropped.
    ///
    /// # Errors
    /// If the file header cannot be written.
    pub fn sharing(inners: Vec<P>, sink: W, config: CaptureConfig) -> io::Result<Vec<Self>> {
        let recording = Self::recording(sink, config)?;
        let port = |inner| Self { inner, recording: Arc::clone(&recording) };
        Ok(inners.into_iter().map(port).collect())
    }

    fn recording(sink: W, config: CaptureConfig) -> io::Result<Arc<Recording<W>>> {
        let recorder = Mutex::new(Recorder::new(sink, config)?);
        Ok(Arc::new(Recording { recorder, is_over: AtomicBool::new(false) }))
    }

    /// Writes all records so far.
    ///
    /// # Errors
    /// The first write error of the recording, which ended it.
    pub fn write_out(&mut self) -> Result<(), io::ErrorKind> {
        self.recording.recorder().write_out();
        self.recording_error().map_or(Ok(()), Err)
    }

    /// Why the recording ended early, if it did.
    pub fn recording_error(&self) -> Option<io::ErrorKind> {
        self.recording.recorder().error.as_ref().map(io::Error::kind)
    }

    /// Frames recorded so far, both directions together.
    pub fn frames_recorded(&self) -> u64 {
        self.recording.recorder().frames
    }

    /// The port inside.
    pub fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }

    /// The port that is recorded.
    pub fn inner(&self) -> &P {
        &self.inner
    }
}

impl<P: Port, W: Write + Send> Port for CapturingPort<P, W> {
    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        let recording = &self.recording;
        self.inner.receive(max, &mut |frame| {
            recording.record(frame);
            each(frame);
        })
    }

    fn receive_lent(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, PortError> {
        let recording = &self.recording;
        self.inner.receive_lent(max, &mut |frame| {
            recording.record(frame.bytes());
            each(frame);
        })
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError> {
        let recording = &self.recording;
        self.inner.transmit(len, &mut |frame| {
            fill(frame);
            recording.record(frame);
        })
    }

    fn transmit_lent(&mut self, lease: &Lease) -> Result<bool, PortError> {
        let sent = self.inner.transmit_lent(lease)?;
        if sent {
            self.recording.record(lease.bytes());
        }
        Ok(sent)
    }

    fn service(&mut self) -> Result<LinkState, PortError> {
        if !self.recording.is_over.load(Ordering::Relaxed) {
            self.recording.recorder().write_out_old(Instant::now);
        }
        self.inner.service()
    }

    forward_port!(|self| self.inner => transmit_room, flush, arm, disarm, descriptors, link_state);
    forward_port!(|self| self.inner => set_link, last_disconnect, capabilities, counters);
    forward_port!(|self| self.inner => is_at_rest, hand_over, give_away, take_charge);
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::loopback;

    #[derive(Clone, Default)]
    struct SharedSink(Arc<Mutex<Vec<u8>>>);

    impl Write for SharedSink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn word(file: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(file[at..at + 4].try_into().unwrap())
    }

    /// The (kept, original) lengths and bytes of every record.
    fn records(file: &[u8]) -> Vec<(usize, Vec<u8>)> {
        assert_eq!(word(file, 0), 0xa1b2_3c4d);
        assert_eq!(word(file, 20), 1);
        let mut records = Vec::new();
        let mut at = 24;
        while at < file.len() {
            assert!(word(file, at) > 1_500_000_000);
            assert!(word(file, at + 4) < 1_000_000_000);
            let kept = word(file, at + 8) as usize;
            let original = word(file, at + 12) as usize;
            records.push((original, file[at + 16..at + 16 + kept].to_vec()));
            at += 16 + kept;
        }
        records
    }

    /// Timestamps of the records, in nanoseconds.
    fn times(file: &[u8]) -> Vec<u64> {
        let mut at = 24;
        let next = || {
            let header = file.get(at..at + 16)?;
            at += 16 + word(header, 8) as usize;
            Some(u64::from(word(header, 0)) * 1_000_000_000 + u64::from(word(header, 4)))
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn records_both_directions_and_flushes_on_drop() {
        let sink = SharedSink::default();
        let (near, mut far) = loopback::pair("lo", 8, 128).unwrap();
        let mut port = CapturingPort::new(near, sink.clone(), CaptureConfig::default()).unwrap();
        port.transmit(20, &mut |frame| frame.fill(1)).unwrap();
        port.flush().unwrap();
        far.transmit(30, &mut |frame| frame.fill(2)).unwrap();
        far.flush().unwrap();
        assert_eq!(port.receive(8, &mut |_| ()).unwrap(), 1);
        assert_eq!(port.frames_recorded(), 2);
        drop(port);
        let file = sink.0.lock().unwrap();
        assert_eq!(records(&file), vec![(20, vec![1; 20]), (30, vec![2; 30])]);
    }

    #[test]
    fn obeys_snap_length_frame_limit_and_small_buffer() {
        let sink = SharedSink::default();
        let (near, _far) = loopback::pair("lo", 8, 128).unwrap();
        let config = CaptureConfig { frames_max: Some(3), snap_bytes: Some(16), buffer_bytes: 40 };
        let mut port = CapturingPort::new(near, sink.clone(), config).unwrap();
        for number in 0..5u8 {
            port.transmit(100, &mut |frame| frame.fill(number)).unwrap();
        }
        let file = sink.0.lock().unwrap();
        let expected: Vec<_> = (0..3u8).map(|number| (100, vec![number; 16])).collect();
        assert_eq!(records(&file), expected);
        assert_eq!(word(&file, 16), 16);
    }

    #[test]
    fn ports_that_share_a_file_share_its_bound_and_lose_no_record() {
        let sink = SharedSink::default();
        let (ports, _far): (Vec<_>, Vec<_>) =
            (0..4).map(|_| loopback::pair("lo", 512, 128).unwrap()).unzip();
        let config =
            CaptureConfig { frames_max: Some(700), buffer_bytes: 200, ..CaptureConfig::default() };
        let capturing = CapturingPort::sharing(ports, sink.clone(), config).unwrap();
        std::thread::scope(|scope| {
            for (mut port, number) in capturing.into_iter().zip(0u8..) {
                scope.spawn(move || {
                    for at in 0..200u8 {
                        assert!(
                            port.transmit(60, &mut |frame| frame.fill(number ^ at << 2)).unwrap()
                        );
                    }
                });
            }
        });
        // The last port is dropped, which writes the rest.
        let file = sink.0.lock().unwrap();
        let records = records(&file);
        assert_eq!(records.len(), 700);
        for number in 0..4 {
            let of_one = records.iter().filter(|(_, bytes)| bytes[0] & 3 == number);
            let order: Vec<u8> = of_one.map(|(_, bytes)| (bytes[0] ^ number) >> 2).collect();
            let wanted: Vec<u8> = (0..order.len()).map(|at| at as u8 & 63).collect();
            assert_eq!(order, wanted, "port {number}");
        }
        let times: Vec<u64> = times(&file);
        assert!(times.is_sorted(), "records stand in the order of their times");
    }

    #[test]
    fn writes_out_what_a_second_has_passed_over() {
        let sink = SharedSink::default();
        let mut recorder = Recorder::new(sink.clone(), CaptureConfig::default()).unwrap();
        recorder.record(&[1; 20]);
        let recorded = Instant::now();
        recorder.write_out_old(|| recorded);
        assert_eq!(records(&sink.0.lock().unwrap()), vec![]);
        recorder.write_out_old(|| recorded + WRITE_AFTER);
        assert_eq!(records(&sink.0.lock().unwrap()), vec![(20, vec![1; 20])]);
        recorder.write_out_old(|| unreachable!("nothing is buffered"));
    }

    #[test]
    fn a_failing_sink_ends_the_recording_only() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (near, mut far) = loopback::pair("lo", 8, 128).unwrap();
        let config = CaptureConfig { buffer_bytes: 0, ..CaptureConfig::default() };
        let mut port = CapturingPort::new(near, Full(1), config).unwrap();
        for _ in 0..4 {
            assert!(port.transmit(20, &mut |frame| frame.fill(3)).unwrap());
        }
        port.flush().unwrap();
        assert!(port.recording_error().is_some());
        assert_eq!(far.receive(8, &mut |_| ()).unwrap(), 4);
    }
}
