//! Sessions of senders: accepts or refuses each with a sentence to both sides.

use super::worker::Entry;
use super::{Inner, Shared};
use crate::device::{Device, Endpoint, Pair, PairSettings, Path, Registration};
use crate::ring::Fate;
use crate::session::{
    FromReceiver, FromSender, Hello, Lines, RemoteRegion, SessionError, StaticStream, Welcome,
};
use crate::settings::Receives;
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Time between two looks at whether the receiver stops.
const TICK: Duration = Duration::from_millis(20);
/// UDP port of RoCEv2 (IANA).
const ROCE_PORT: u16 = 4791;
/// Longest wait for a sender's hello.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Longest wait for messages of a sender that has ended.
const LINGER_MAX: Duration = Duration::from_secs(10);
/// Connections at a time that have not said hello; more are closed at once.
const CONNECTIONS_MAX: usize = 1024;

/// Accepts senders until the receiver stops, and then waits for their sessions to end.
pub(super) fn run<D: Device>(inner: &Arc<Inner<D>>, listener: &TcpListener) {
    let shared = &inner.shared;
    if let Err(error) = listener.set_nonblocking(true) {
        shared.notice(format!("cannot accept senders: {error}"));
        return;
    }
    let mut sessions = Vec::new();
    while !shared.is_stopping() {
        match listener.accept() {
            Ok((stream, peer)) => {
                sessions.retain(|session: &thread::JoinHandle<()>| !session.is_finished());
                if sessions.len() >= CONNECTIONS_MAX {
                    shared
                        .notice(format!("{peer}: closed, {CONNECTIONS_MAX} senders are connected"));
                    continue;
                }
                let inner = Arc::clone(inner);
                let serve = move || serve(&inner, stream, &peer.to_string());
                match thread::Builder::new().name("ingest-session".into()).spawn(serve) {
                    Ok(session) => sessions.push(session),
                    Err(error) => shared.notice(format!("{peer}: cannot start a thread: {error}")),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(TICK),
            Err(error) => {
                shared.notice(format!("cannot accept a sender: {error}"));
                thread::sleep(TICK);
            }
        }
    }
    for session in sessions {
        // A panic was printed.
        let _ = session.join();
    }
}

fn serve<D: Device>(inner: &Inner<D>, stream: TcpStream, peer: &str) {
    let shared = &inner.shared;
    let prepared = stream.set_read_timeout(Some(TICK)).and_then(|()| {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(HELLO_WITHIN))
    });
    let mut lines = Lines::new(stream);
    let hello = prepared.map_err(SessionError::from).and_then(|()| greet(shared, &mut lines));
    let outcome = match hello {
        Ok(hello) => accept(inner, &hello, peer).map(|welcome| (hello, welcome)),
        Err(error) => Err(error.to_string()),
    };
    match outcome {
        Ok((hello, (welcome, qpns))) => {
            shared.sessions.fetch_add(1, Ordering::Relaxed);
            shared.notice(format!(
                "stream {} from {peer}: {} queue pairs, from window {}",
                hello.stream,
                qpns.len(),
                welcome.first_window
            ));
            let told = lines.write(&FromReceiver::Welcome(welcome));
            let ended = told.and_then(|()| follow(inner, &hello, &mut lines));
            end(inner, &hello, &qpns, &mut lines, peer, ended);
            shared.sessions.fetch_sub(1, Ordering::Relaxed);
        }
        Err(sentence) => {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            shared.notice(format!("refused {peer}: {sentence}"));
            // The sender may be gone.
            let _ = lines.write(&FromReceiver::Refused(sentence));
        }
    }
}

fn greet(shared: &Shared, lines: &mut Lines) -> Result<Hello, SessionError> {
    let begun = Instant::now();
    loop {
        match lines.read()? {
            Some(FromSender::Hello(hello)) => return Ok(hello),
            Some(_) => return Err(SessionError::OutOfTurn("a message before its hello")),
            None if shared.is_stopping() => return Err(SessionError::Closed),
            None if begun.elapsed() > HELLO_WITHIN => {
                return Err(SessionError::Malformed("no hello within 10 s".into()));
            }
            None => {}
        }
    }
}

/// Whether the sender fits this receiver; if not, a sentence.
fn check<D: Device>(inner: &Inner<D>, hello: &Hello) -> Result<(), String> {
    let settings = &inner.shared.settings;
    let pairs = hello.queue_pairs.len();
    if hello.stream >= settings.streams {
        let streams = settings.streams;
        return Err(format!("stream {} is unknown: there are {streams}, from 0", hello.stream));
    }
    if hello.transport != settings.transport {
        let (theirs, ours) = (hello.transport, settings.transport);
        return Err(format!("its queue pairs are {theirs:?}, and this receiver's {ours:?}"));
    }
    let window = u64::from(hello.slots) * u64::from(hello.message_bytes);
    if (hello.slots, hello.message_bytes) != (settings.slots, settings.message_bytes) {
        let shape = inner.shared.settings.shape();
        let size = if window > shape.stream_bytes() { "too small for" } else { "not those of" };
        return Err(format!(
            "the regions are {size} its windows: {} messages of {} bytes are sent, and {} of {} \
             bytes fit",
            hello.slots, hello.message_bytes, settings.slots, settings.message_bytes
        ));
    }
    let pairs_max = settings.queue_pairs_max.min(settings.slots) as usize;
    if pairs == 0 || pairs > pairs_max {
        return Err(format!("{pairs} queue pairs: from 1 to {pairs_max} are possible"));
    }
    if hello.queue_pairs.iter().any(|pair| pair.qpn >> 24 != 0 || pair.psn >> 24 != 0) {
        return Err("a QPN or PSN has more than 24 bits".into());
    }
    if !hello.path_mtu.is_power_of_two() || !(256..=4096).contains(&hello.path_mtu) {
        return Err(format!("a path MTU of {} is none of RoCE's", hello.path_mtu));
    }
    Ok(())
}

/// Creates the queue pairs of senders without a session.
pub(super) fn accept_static<D: Device>(inner: &Inner<D>) -> Result<Vec<StaticStream>, String> {
    let (shared, device) = (&inner.shared, &inner.device);
    let settings = &shared.settings;
    let streams = settings.senders.iter().map(|sender| {
        let hello = Hello {
            stream: sender.stream,
            transport: settings.transport,
            address: sender.address,
            path_mtu: sender.path_mtu,
            message_bytes: settings.message_bytes,
            slots: settings.slots,
            queue_pairs: sender.queue_pairs.clone(),
            first_window: Some(sender.first_window),
            announces: false,
        };
        let (welcome, _) = accept(inner, &hello, "the configuration")
            .map_err(|error| format!("sender of stream {}: {error}", sender.stream))?;
        shared.sessions.fetch_add(1, Ordering::Relaxed);
        let hex = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        Ok(StaticStream {
            stream: sender.stream,
            transport: settings.transport,
            gid: match device.address() {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            },
            mac: device.mac().map(hex),
            udp_port: ROCE_PORT,
            message_bytes: settings.message_bytes,
            slots: settings.slots,
            sender_queue_pairs: sender.queue_pairs.clone(),
            welcome,
        })
    });
    streams.collect()
}

type Accepted = (Welcome, Vec<u32>);

/// Creates the sender's queue pairs.
fn accept<D: Device>(inner: &Inner<D>, hello: &Hello, peer: &str) -> Result<Accepted, String> {
    check(inner, hello)?;
    let shared = &inner.shared;
    let (ring, index) = shared.settings.shape().ring_of(hello.stream);
    let first_window = shared
        .with_ring(ring, |book| book.begin_stream(index, hello.first_window, hello.announces))
        .map_err(|error| format!("stream {} from {peer}: {error}", hello.stream))?;
    let queue_pairs = connect(inner, hello, ring, index).inspect_err(|_| {
        shared.with_ring(ring, |book| book.end_stream(index));
    })?;
    let path_mtu = hello.path_mtu.min(inner.device.path_mtu());
    let qpns = queue_pairs.iter().map(|pair| pair.qpn).collect();
    let stream_bytes = shared.settings.shape().stream_bytes();
    let regions = inner.registrations[ring as usize].iter().map(|region| RemoteRegion {
        address: region.address() + u64::from(index) * stream_bytes,
        rkey: region.rkey(),
        bytes: stream_bytes,
    });
    let welcome = Welcome {
        layout: shared.settings.layout,
        address: inner.device.address(),
        path_mtu,
        queue_pairs,
        regions: regions.collect(),
        first_window,
    };
    Ok((welcome, qpns))
}

fn connect<D: Device>(
    inner: &Inner<D>,
    hello: &Hello,
    ring: u32,
    index: u32,
) -> Result<Vec<Endpoint>, String> {
    let settings = &inner.shared.settings;
    let worker = &inner.workers[(ring % settings.threads) as usize];
    let receive_depth = match settings.receives {
        Receives::PerPair(depth) => depth,
        Receives::Shared(_) => 0,
    };
    let wanted = PairSettings { transport: settings.transport, send_depth: 1, receive_depth };
    let path = Path { address: hello.address, mtu: hello.path_mtu.min(inner.device.path_mtu()) };
    let mut entries: Vec<Entry<D>> = Vec::new();
    let mut ends = Vec::new();
    for (queue, peer) in (0..).zip(&hello.queue_pairs) {
        let psn = inner.device.fresh_psn();
        let made = inner.device.pair(&worker.completions, &wanted, worker.receives.as_ref());
        let ready = made.and_then(|pair| {
            if receive_depth > 0 {
                pair.post_receives(receive_depth)?;
            }
            pair.connect(psn, *peer, path)?;
            Ok(pair)
        });
        let pair = ready.map_err(|error| error.to_string())?;
        ends.push(Endpoint { qpn: pair.qpn(), psn });
        entries.push(Entry {
            pair,
            stream: hello.stream,
            ring,
            index,
            queue,
            queues: hello.queue_pairs.len() as u32,
            taken: 0,
            last: None,
        });
    }
    let mut pairs = worker.pairs();
    pairs.extend(entries.into_iter().map(|entry| (entry.pair.qpn(), entry)));
    Ok(ends)
}

/// Follows a sender until it ends. Returns the messages that it sent, if it says so.
fn follow<D: Device>(
    inner: &Inner<D>,
    hello: &Hello,
    lines: &mut Lines,
) -> Result<u64, SessionError> {
    let shared = &inner.shared;
    let (ring, index) = shared.settings.shape().ring_of(hello.stream);
    while !shared.is_stopping() {
        match lines.read()? {
            Some(FromSender::Sent { window, unsent }) => {
                shared.with_ring(ring, |book| book.announce(index, window, &unsent));
            }
            Some(FromSender::End { messages }) => return Ok(messages),
            Some(FromSender::Hello(_)) => return Err(SessionError::OutOfTurn("a second hello")),
            None => {}
        }
    }
    Err(SessionError::Closed)
}

/// Waits for messages in flight, destroys the queue pairs, and closes the windows.
fn end<D: Device>(
    inner: &Inner<D>,
    hello: &Hello,
    qpns: &[u32],
    lines: &mut Lines,
    peer: &str,
    ended: Result<u64, SessionError>,
) {
    let shared = &inner.shared;
    let (ring, index) = shared.settings.shape().ring_of(hello.stream);
    let linger = Duration::from_millis(shared.settings.linger_ms);
    let begun = Instant::now();
    while !shared.is_stopping()
        && begun.elapsed() < LINGER_MAX
        && (begun.elapsed() < linger || shared.rings[ring as usize].lock().quiet_for() < linger)
    {
        thread::sleep(TICK.min(linger));
    }
    let worker = &inner.workers[(ring % shared.settings.threads) as usize];
    let entries: Vec<_> = {
        let mut pairs = worker.pairs();
        qpns.iter().filter_map(|qpn| pairs.remove(qpn)).collect()
    };
    drop(entries);
    let of_stream = shared.with_ring(ring, |book| {
        book.end_stream(index);
        book.counts().fates[index as usize]
    });
    let stream = hello.stream;
    match ended {
        Ok(messages) => {
            let present = of_stream.of(Fate::Present);
            let missing = of_stream.total() - present - of_stream.of(Fate::NeverSent);
            shared
                .notice(format!("stream {stream} from {peer} has ended: {messages} messages sent"));
            // The sender may be gone.
            let _ = lines.write(&FromReceiver::Ended { present, missing });
        }
        Err(SessionError::Closed) if shared.is_stopping() => {}
        Err(error) => shared.notice(format!("stream {stream} from {peer} is gone: {error}")),
    }
}
