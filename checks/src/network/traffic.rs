//! Traffic that crosses a network while something fails: RoCEv2 packets and other datagrams, one
//! every millisecond, and a TCP connection whose every byte is checked.

use super::{LIMIT, Namespace, forbid_fragments};
use crate::packets::{Fields, paths};
use longhaul_wire::{Opcode, Path};
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Between two datagrams, and two pieces of the stream.
const BEAT: Duration = Duration::from_millis(1);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// A flow that is silent for longer is interrupted.
pub const SILENCE: Duration = Duration::from_millis(20);
/// A flow has resumed if it then runs this long, silent for less than half of it at a time: the
/// machine may be busy.
const STEADY: Duration = Duration::from_millis(300);
const PIECE: usize = 100;

/// Kind of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// SENDs of UD, of one packet each.
    Roce,
    /// Datagrams to another port.
    Other,
    /// One connection, which must not end.
    Tcp,
}

impl Flow {
    /// All kinds.
    pub const ALL: [Flow; 3] = [Flow::Roce, Flow::Other, Flow::Tcp];
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Flow::Roce => "RoCE",
            Flow::Other => "other",
            Flow::Tcp => "TCP",
        })
    }
}

/// Times of arrival, in order.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<Vec<Instant>>>);

impl Times {
    fn push(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
    }

    fn all(&self) -> Vec<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The arrivals of one flow.
pub struct Arrivals(Vec<Instant>);

impl Arrivals {
    /// Silences that overlap the time `from` to `until`, as begin and end; one that lasts until
    /// then ends then.
    fn silences(&self, from: Instant, until: Instant) -> impl Iterator<Item = (Instant, Instant)> {
        let first = self.0.partition_point(|time| *time < from);
        let last = self.0.partition_point(|time| *time < until);
        let before = first.checked_sub(1).map_or(from, |before| self.0[before]);
        let times = [before].into_iter().chain(self.0[first..last].iter().copied());
        let next = self.0[first..last].iter().copied().chain([until]);
        times.zip(next).collect::<Vec<_>>().into_iter()
    }

    /// The longest silence that overlaps this time; what follows `until` does not count.
    pub fn longest_gap(&self, from: Instant, until: Instant) -> Duration {
        self.silences(from, until).map(|(begin, end)| end - begin).max().unwrap_or_default()
    }

    /// Time from `from` until the flow runs again and is not interrupted until `until`: zero if it
    /// never was, and `None` if it is interrupted at `until`.
    pub fn resumed(&self, from: Instant, until: Instant) -> Option<Duration> {
        let mut resumed = Duration::ZERO;
        for (begin, end) in self.silences(from, until) {
            // The last silence may be short yet.
            if end == until && end - begin >= STEADY / 2 {
                return None;
            }
            if end < until && end - begin >= SILENCE {
                resumed = end - from;
            }
        }
        Some(resumed)
    }

    /// Number of arrivals from `from` to `until`.
    pub fn count(&self, from: Instant, until: Instant) -> usize {
        self.0.iter().filter(|time| (from..until).contains(*time)).count()
    }
}

/// Running traffic in one direction.
pub struct Traffic {
    is_over: Arc<AtomicBool>,
    times: [Times; Flow::ALL.len()],
    senders: Vec<JoinHandle<()>>,
    takers: Vec<JoinHandle<()>>,
    stream: [JoinHandle<Result<usize, String>>; 2],
}

impl Traffic {
    /// Starts all flows from an address of one host to one of another, in full flight once this
    /// returns.
    ///
    /// # Panics
    /// If sockets cannot be created, or a flow does not begin.
    pub fn start([from, at]: [&Namespace; 2], [source, to]: [&str; 2]) -> Self {
        let [source, to]: [IpAddr; 2] = [source, to].map(|ip| ip.parse().expect("an address"));
        let is_over = Arc::new(AtomicBool::new(false));
        let times: [Times; Flow::ALL.len()] = Default::default();
        let (mut senders, mut takers) = (Vec::new(), Vec::new());
        for (flow, port) in [(Flow::Roce, 4791), (Flow::Other, 0)] {
            let taker = at.inside(|| UdpSocket::bind((to, port))).expect("a socket");
            let address = taker.local_addr().expect("an address");
            let sender = from.inside(|| UdpSocket::bind((source, 0))).expect("a socket");
            forbid_fragments(&sender, to.is_ipv6());
            let datagram = roce(&sender, to);
            senders.push(send_datagrams(sender, address, datagram, &is_over));
            takers.push(take_datagrams(taker, &times[flow as usize], &is_over));
        }
        let listener = at.inside(|| TcpListener::bind((to, 0))).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let sender = from.inside(|| TcpStream::connect(address)).expect("a connection");
        let (taker, _) = listener.accept().expect("a connection");
        let stream = [
            send_stream(sender, &is_over),
            take_stream(taker, &times[Flow::Tcp as usize], &is_over),
        ];
        let traffic = Traffic { is_over, times, senders, takers, stream };
        let deadline = Instant::now() + LIMIT;
        while traffic.now().iter().any(|all| all.0.is_empty()) {
            let counts = traffic.now().map(|all| all.0.len());
            assert!(Instant::now() < deadline, "traffic does not begin: {counts:?}");
            sleep(LOOK_AGAIN);
        }
        sleep(STEADY);
        traffic
    }

    /// The arrivals so far, in the order of [`Flow::ALL`].
    pub fn now(&self) -> [Arrivals; Flow::ALL.len()] {
        self.times.each_ref().map(|times| Arrivals(times.all()))
    }

    /// Waits until all flows have run for a while after `since`; `false` if some do not within
    /// `limit`.
    pub fn wait_until_resumed(&self, since: Instant, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let now = Instant::now();
            let begin = (now - STEADY).max(since);
            let runs = |all: &Arrivals| {
                all.count(begin, now) > 0 && all.longest_gap(begin, now) < STEADY / 2
            };
            if now - since >= STEADY && self.now().iter().all(runs) {
                return true;
            }
            if now > deadline {
                return false;
            }
            sleep(LOOK_AGAIN);
        }
    }

    /// Ends the traffic and returns the arrivals, in the order of [`Flow::ALL`].
    ///
    /// # Errors
    /// If the connection has ended before, or its bytes differ or are not all there.
    ///
    /// # Panics
    /// If a thread panicked.
    pub fn end(self) -> Result<[Arrivals; Flow::ALL.len()], String> {
        self.is_over.store(true, Ordering::Release);
        let arrivals = self.now();
        self.senders.into_iter().for_each(|thread| thread.join().expect("a sender"));
        self.takers.into_iter().for_each(|thread| thread.join().expect("a taker"));
        let [sent, came] = self.stream.map(|thread| thread.join().expect("a stream"));
        let (sent, came) = (sent?, came?);
        if sent != came {
            return Err(format!("TCP: {sent} bytes sent, {came} received"));
        }
        Ok(arrivals)
    }
}

/// A SEND of UD that an unconnected socket sends to `to`: its ICRC covers addresses, ports and the
/// identification, which the kernel sets to 0 as it must not fragment.
fn roce(sender: &UdpSocket, to: IpAddr) -> Vec<u8> {
    const BEFORE: usize = 14 + 20 + 8;
    let own = sender.local_addr().expect("an address");
    let path =
        Path { source_ip: own.ip(), destination_ip: to, udp_source_port: own.port(), ..paths()[0] };
    let fields =
        Fields { fragmentation: None, ..Fields::made_up(Opcode::UD_SEND_ONLY, path, 32, 0) };
    fields.build()[BEFORE..].to_vec()
}

fn send_datagrams(
    sender: UdpSocket,
    to: SocketAddr,
    datagram: Vec<u8>,
    is_over: &Arc<AtomicBool>,
) -> JoinHandle<()> {
    let is_over = Arc::clone(is_over);
    thread::spawn(move || {
        while !is_over.load(Ordering::Acquire) {
            // A host without a route or neighbour refuses it.
            let _ = sender.send_to(&datagram, to);
            sleep(BEAT);
        }
    })
}

fn take_datagrams(taker: UdpSocket, times: &Times, is_over: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (times, is_over) = (times.clone(), Arc::clone(is_over));
    taker.set_read_timeout(Some(LOOK_AGAIN)).expect("a timeout");
    thread::spawn(move || {
        while !is_over.load(Ordering::Acquire) {
            if taker.recv(&mut [0; 128]).is_ok() {
                times.push();
            }
        }
    })
}

fn byte_at(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

fn is_no_time(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Sends until the end, and returns the number of bytes.
fn send_stream(
    mut sender: TcpStream,
    is_over: &Arc<AtomicBool>,
) -> JoinHandle<Result<usize, String>> {
    let is_over = Arc::clone(is_over);
    let set = sender.set_write_timeout(Some(LOOK_AGAIN)).and(sender.set_nodelay(true));
    set.expect("options of a socket");
    thread::spawn(move || {
        let mut at = 0;
        while !is_over.load(Ordering::Acquire) {
            let piece: Vec<u8> = (at..at + PIECE).map(byte_at).collect();
            match sender.write(&piece) {
                Ok(len) => at += len,
                Err(e) if is_no_time(&e) => {}
                Err(e) => return Err(format!("TCP ended after {at} bytes sent: {e}")),
            }
            sleep(BEAT);
        }
        sender.shutdown(Shutdown::Write).map_err(|e| format!("TCP ended: {e}"))?;
        Ok(at)
    })
}

/// Receives and checks until the sender's end, and returns the number of bytes.
fn take_stream(
    mut taker: TcpStream,
    times: &Times,
    is_over: &Arc<AtomicBool>,
) -> JoinHandle<Result<usize, String>> {
    let (times, is_over) = (times.clone(), Arc::clone(is_over));
    taker.set_read_timeout(Some(LOOK_AGAIN)).expect("a timeout");
    thread::spawn(move || {
        let (mut at, mut buffer, mut over) = (0, vec![0; 64 << 10], None::<Instant>);
        loop {
            match taker.read(&mut buffer) {
                Ok(0) => return Ok(at),
                Ok(len) => {
                    times.push();
                    if !buffer[..len].iter().zip(at..).all(|(byte, at)| *byte == byte_at(at)) {
                        return Err(format!("TCP: other bytes after {at}"));
                    }
                    at += len;
                }
                Err(e) if is_no_time(&e) => {
                    if is_over.load(Ordering::Acquire)
                        && over.get_or_insert_with(Instant::now).elapsed() > LIMIT
                    {
                        return Err(format!("TCP: no end after {at} bytes"));
                    }
                }
                Err(e) => return Err(format!("TCP ended after {at} bytes: {e}")),
            }
        }
    })
}
