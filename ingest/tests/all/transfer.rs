//! Sender and receiver over two devices of this process.

use longhaul_ingest::device::software::Software;
use longhaul_ingest::receiver::Receiver;
use longhaul_ingest::ring::Fate;
use longhaul_ingest::sender::{Schedule, Sender, SenderError, Sent, Source, Station};
use longhaul_ingest::settings::{Receives, Settings, Wait};
use longhaul_ingest::{pattern, session};
use longhaul_rdma::{Attach, Device, Role, attach};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const LIMIT: Duration = Duration::from_secs(120);

pub fn devices() -> (Software, Software) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let socket =
        std::env::temp_dir().join(format!("longhaul-ingest-{}-{count}.sock", std::process::id()));
    let open = |role: Role, last: u8| {
        let attach = Attach::from_lookup(|name| match name {
            attach::ENV_SOCKET => Some(socket.display().to_string()),
            attach::ENV_IP => Some(Ipv4Addr::new(10, 77, 0, last).to_string()),
            attach::ENV_ROLE => {
                Some(if role == Role::Master { "master" } else { "slave" }.to_owned())
            }
            _ => None,
        });
        Software::new(Device::open(attach.unwrap()).unwrap()).unwrap()
    };
    (open(Role::Master, 2), open(Role::Slave, 1))
}

pub fn settings() -> Settings {
    Settings {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        slots: 64,
        message_bytes: 5000,
        // More than any test sends: however late the chunks are taken, none is overwritten.
        regions: 128,
        linger_ms: 100,
        // Longer than a busy machine stops a sender.
        idle_ms: 60_000,
        ..Settings::default()
    }
}

pub fn station() -> Station {
    Station {
        subbands: 8,
        blocks: 8,
        message_bytes: 5000,
        windows: Some(50),
        rate: Some(1e9),
        ..Station::default()
    }
}

pub fn send(device: &Software, receiver: &Receiver, station: Station) -> Result<Sent, SenderError> {
    Sender::connect(device, &receiver.address().to_string(), station)?
        .run(&AtomicBool::new(false), |_| {})
}

/// Takes `count` chunks, checks their bytes, and returns the windows and the number of messages
/// with each fate.
fn drain(receiver: &Receiver, count: usize) -> (Vec<u64>, [usize; 8]) {
    let (mut windows, mut fates) = (Vec::new(), [0; 8]);
    let mut message = vec![0; 5000];
    for _ in 0..count {
        let chunk = receiver.next(LIMIT).expect("a chunk");
        for (index, fate) in chunk.fates().iter().enumerate() {
            fates[*fate as usize] += 1;
            if *fate == Fate::Present {
                chunk.read(index, &mut message);
                assert!(pattern::matches(&message, 0, chunk.chunk_id(), index as u32));
            }
        }
        windows.push(chunk.chunk_id());
        assert_eq!(chunk.release(), 0);
    }
    (windows, fates)
}

#[test]
fn every_message_is_placed_whatever_the_queues() {
    for (receives, wait, threads) in [
        (Receives::Shared(4096), Wait::Events, 1),
        (Receives::PerPair(512), Wait::Poll, 2),
        (Receives::PerPair(512), Wait::Solicited, 1),
    ] {
        let (a, b) = devices();
        let receiver =
            Receiver::start(b, Settings { receives, wait, threads, ..settings() }).unwrap();
        let solicit = u32::from(wait == Wait::Solicited) * 8;
        let station = Station { list: 4, solicit, ..station() };
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| send(&a, &receiver, station).unwrap());
            let (windows, fates) = drain(&receiver, 50);
            assert_eq!(windows, (0..50).collect::<Vec<_>>(), "{receives:?}");
            assert_eq!(fates[Fate::Present as usize], 50 * 64);
            let sent = sender.join().unwrap();
            assert_eq!((sent.messages, sent.received), (3200, Some((3200, 0))));
        });
        assert_eq!(receiver.statistics().counts.windows_complete, 50);
    }
}

#[test]
fn gaps_are_messages_that_were_never_sent() {
    let (a, b) = devices();
    let receiver = Receiver::start(b, settings()).unwrap();
    let station = Station { gap: 0.2, ..station() };
    let (sent, fates) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&a, &receiver, station).unwrap());
        let (_, fates) = drain(&receiver, 50);
        (sender.join().unwrap(), fates)
    });
    assert!(sent.unsent > 0);
    let statistics = receiver.statistics();
    assert_eq!(fates[Fate::Present as usize] as u64, sent.messages);
    assert_eq!(statistics.fates.of(Fate::NeverSent), sent.unsent);
    assert_eq!(statistics.fates.total(), 3200);
}

#[test]
fn a_sender_that_returns_continues_the_windows() {
    let (a, b) = devices();
    let receiver = Receiver::start(b, settings()).unwrap();
    let half = Station { windows: Some(5), ..station() };
    for _ in 0..2 {
        send(&a, &receiver, half.clone()).unwrap();
    }
    receiver.stop();
    assert_eq!(drain(&receiver, 10).0, (0..10).collect::<Vec<_>>());
}

#[test]
fn an_empty_receive_queue_is_named_as_the_reason() {
    let (a, b) = devices();
    let receiver = Receiver::start(b, Settings { receives: Receives::Shared(4), ..settings() });
    let receiver = receiver.unwrap();
    let station = Station { rate: None, windows: Some(20), ..station() };
    let sent = send(&a, &receiver, station).unwrap();
    let statistics = receiver.statistics();
    let (present, refused) =
        (statistics.fates.of(Fate::Present), statistics.fates.of(Fate::NoReceive));
    assert!(statistics.out_of_buffer >= refused, "{statistics:?}");
    assert_eq!(statistics.fates.total() + statistics.counts.windows_skipped * 64, sent.messages);
    assert!(present > 0);
}

/// Says `line` to the receiver, and returns the sentence with which it refuses.
fn refusal(receiver: &Receiver, line: &str) -> String {
    let mut stream = TcpStream::connect(receiver.address()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(line.as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    match session::from_line(answer.as_bytes()) {
        Ok(session::FromReceiver::Refused(sentence)) => sentence,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn senders_that_do_not_fit_are_refused_with_a_sentence_to_both_sides() {
    let (a, b) = devices();
    let receiver = Receiver::start(b, settings()).unwrap();
    for (change, text) in [
        ((|s| s.stream = 1) as fn(&mut Station), "stream 1 is unknown"),
        (|s| s.blocks = 9, "too small for its windows: 72 messages"),
        (|s| s.message_bytes = 100, "not those of its windows"),
        (|s| s.transport = longhaul_ingest::device::Transport::Rc, "queue pairs are Rc"),
    ] {
        let mut wrong = station();
        change(&mut wrong);
        let said = send(&a, &receiver, wrong).unwrap_err().to_string();
        assert!(said.contains(text), "{said}");
        let told = receiver.notices();
        assert!(told.iter().any(|told| told.contains(text)), "{told:?}");
    }
    for (line, text) in [
        ("{\"longhaul_ingest\":9,\"hello\":{}}\n", "version 9"),
        ("GET / HTTP/1.1\r\n", "invalid"),
        ("{\"longhaul_ingest\":1,\"end\":{\"messages\":1}}\n", "out of turn"),
    ] {
        let said = refusal(&receiver, line);
        assert!(said.contains(text), "{said}");
    }
    let first = Sender::connect(&a, &receiver.address().to_string(), station()).unwrap();
    let said = send(&a, &receiver, station()).unwrap_err().to_string();
    assert!(said.contains("has a sender already"), "{said}");
    drop(first);
    assert_eq!(receiver.statistics().refused, 8);
}

#[test]
fn a_sender_that_dies_leaves_its_stream_to_the_next() {
    let (a, b) = devices();
    let receiver = Receiver::start(b, settings()).unwrap();
    drop(Sender::connect(&a, &receiver.address().to_string(), station()).unwrap());
    let begun = Instant::now();
    while receiver.statistics().sessions > 0 {
        assert!(begun.elapsed() < LIMIT, "its session goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(receiver.notices().iter().any(|notice| notice.contains("is gone")));
    let windows = Some(3);
    send(&a, &receiver, Station { windows, ..station() }).unwrap();
    assert_eq!(drain(&receiver, 3).0, [0, 1, 2]);
}

#[test]
fn windows_that_a_program_makes_are_placed_by_slot() {
    let (a, b) = devices();
    let receiver = Receiver::start(b, settings()).unwrap();
    let station = Station { source: Source::Unchanged, list: 4, rate: None, ..station() };
    let mut schedule = Schedule::new(&station);
    let stop = AtomicBool::new(false);
    let address = receiver.address().to_string();
    let mut sender = Sender::connect(&a, &address, station).unwrap();
    let mut bytes = vec![0; 64 * 5000];
    let refused = sender.send(&bytes[1..], &mut schedule, &stop).unwrap_err().to_string();
    assert_eq!(refused, "a window has 320000 bytes, and 319999 were given");
    for window in 0..3 {
        for (message, slot) in bytes.chunks_mut(5000).zip(0..) {
            pattern::fill(message, 0, window, slot);
        }
        sender.send(&bytes, &mut schedule, &stop).unwrap();
    }
    let sent = sender.finish(&schedule).unwrap();
    assert_eq!((sent.windows, sent.received), (3, Some((192, 0))));
    assert_eq!(drain(&receiver, 3).1[Fate::Present as usize], 192);
}

#[test]
fn a_sender_that_waits_for_its_next_message_stops_at_once() {
    let (a, b) = devices();
    let receiver = Receiver::start(b, settings()).unwrap();
    // A message in 1000 s.
    let station = Station { rate: Some(40.0), ..station() };
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let address = receiver.address().to_string();
        let sender = Sender::connect(&a, &address, station).unwrap();
        let running = scope.spawn(|| sender.run(&stop, |_| {}).unwrap());
        let begun = Instant::now();
        while receiver.statistics().counts.arrivals == 0 && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        running.join().unwrap()
    });
    // The message that waited leaves at once.
    assert_eq!((sent.messages, sent.unsent), (2, 62));
}
