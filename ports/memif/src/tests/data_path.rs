//! Frames between two honest ports.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use longhaul_port::{DropReason, LinkState, Port, PortError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;

use super::*;

fn length(number: u64) -> usize {
    14 + (number as usize * 101) % 287
}

/// Sends `frames` from `from` to `to` in bursts of different sizes, and checks each.
fn stream(from: &mut MemifPort, to: &mut MemifPort, frames: u64) {
    let (mut sent, mut received) = (0u64, 0u64);
    while received < frames {
        for _ in 0..=sent % 11 {
            if sent == frames {
                break;
            }
            let number = sent;
            if !from.transmit(length(number), &mut |frame| pattern(frame, number)).unwrap() {
                break;
            }
            sent += 1;
        }
        from.flush().unwrap();
        to.receive(5, &mut |frame| {
            assert_eq!(frame.len(), length(received));
            check_pattern(frame, received);
            received += 1;
        })
        .unwrap();
    }
}

#[test]
fn frames_survive_both_directions_past_the_wrap_of_the_indices() {
    let path = TestPath::new();
    let (mut master, mut slave) = pair(&path, &config(3, 300));
    stream(&mut slave, &mut master, 70_000);
    stream(&mut master, &mut slave, 70_000);
    assert_eq!(slave.counters().tx_bytes, master.counters().rx_bytes);
    assert_eq!(slave.counters().rx_frames, 70_000);
    assert_eq!(slave.peer_name(), Some("test"));
}

#[test]
fn the_largest_frame_of_the_default_configuration_fits_one_buffer() {
    let path = TestPath::new();
    let (mut master, mut slave) = pair(&path, &MemifConfig::new("default"));
    for number in 0..3000 {
        send(&mut slave, 4352, number);
        assert_eq!(master.receive(4, &mut |frame| check_pattern(frame, number)).unwrap(), 1);
        send(&mut master, 4352, number);
        assert_eq!(slave.receive(4, &mut |frame| check_pattern(frame, number)).unwrap(), 1);
    }
}

#[test]
fn frames_are_invisible_until_flushed() {
    let path = TestPath::new();
    let (mut master, mut slave) = pair(&path, &config(3, 300));
    for (from, to) in [(0, 1), (1, 0)] {
        let ports = [&mut master, &mut slave];
        assert!(ports[from].transmit(60, &mut |frame| pattern(frame, 1)).unwrap());
        assert_eq!(ports[to].receive(8, &mut |_| ()).unwrap(), 0);
        ports[from].flush().unwrap();
        assert_eq!(ports[to].receive(8, &mut |_| ()).unwrap(), 1);
    }
}

#[test]
fn a_full_ring_refuses_and_recovers() {
    let path = TestPath::new();
    let (mut master, mut slave) = pair(&path, &config(3, 300));
    for (from, to) in [(0, 1), (1, 0)] {
        let ports = [&mut master, &mut slave];
        assert_eq!(ports[from].transmit_room(), 8);
        for number in 0..8 {
            send(ports[from], 60, number);
        }
        assert_eq!(ports[from].transmit_room(), 0);
        assert!(!ports[from].transmit(60, &mut |_| panic!("no slot to fill")).unwrap());
        assert_eq!(ports[from].counters().tx_full, 1);
        assert_eq!(ports[to].receive(3, &mut |_| ()).unwrap(), 3);
        assert_eq!(ports[from].transmit_room(), 3);
    }
}

#[test]
fn a_port_without_peer_drops_and_counts() {
    let path = TestPath::new();
    let mut port = MemifPort::slave(&path, 0, config(3, 300)).unwrap();
    assert_eq!(port.service().unwrap(), LinkState::Down);
    assert!(port.transmit(60, &mut |frame| frame.fill(1)).unwrap());
    assert_eq!(port.counters().tx_drops.get(DropReason::LinkDown), 1);
    assert_eq!(port.counters().tx_frames, 0);
    assert!(matches!(
        port.transmit(301, &mut |_| ()),
        Err(PortError::FrameTooLong { len: 301, max: 300 })
    ));
}

#[test]
fn a_slave_takes_frames_longer_than_it_wants_as_drops() {
    let path = TestPath::new();
    let mut master = MemifPort::master(&path, 0, config(3, 100)).unwrap();
    let mut slave = MemifPort::slave(&path, 0, config(3, 300)).unwrap();
    bring_up(&mut [&mut master, &mut slave]);
    send(&mut slave, 101, 1);
    send(&mut slave, 100, 2);
    assert_eq!(master.receive(8, &mut |frame| check_pattern(frame, 2)).unwrap(), 1);
    assert_eq!(master.counters().rx_drops.get(DropReason::FrameTooLong), 1);
}

#[test]
fn a_master_spreads_long_frames_over_small_buffers() {
    let path = TestPath::new();
    let mut master = MemifPort::master(&path, 0, config(3, 1000)).unwrap();
    let mut slave = MemifPort::slave(&path, 0, config(3, 100)).unwrap();
    bring_up(&mut [&mut master, &mut slave]);
    // Eight buffers of 100 bytes are too small for a frame of the maximum length.
    assert_eq!(master.transmit_room(), 0);
    send(&mut master, 700, 1);
    send(&mut master, 60, 2);
    // The slave's own limit is exceeded: it drops the one frame, and stays in step for the other.
    assert_eq!(slave.receive(8, &mut |frame| check_pattern(frame, 2)).unwrap(), 1);
    assert_eq!(slave.counters().rx_drops.get(DropReason::FrameTooLong), 1);
    // A frame that exceeds the whole ring is dropped instead of waiting for ever.
    assert!(master.transmit(900, &mut |frame| pattern(frame, 3)).unwrap());
    assert_eq!(master.counters().tx_drops.get(DropReason::FrameTooLong), 1);
    send(&mut master, 100, 4);
    assert!(!master.transmit(800, &mut |_| panic!("no room to fill")).unwrap());
}

/// Descriptors of the port that become readable within this number of seconds.
fn readable_within(port: &MemifPort, seconds: i64) -> Vec<RawFd> {
    let descriptors = port.descriptors();
    // SAFETY: the port owns these descriptors and outlives this borrow.
    let borrowed = descriptors.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) });
    let mut fds: Vec<_> = borrowed.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    poll(&mut fds, Some(&Timespec { tv_sec: seconds, tv_nsec: 0 })).unwrap();
    let readable = fds.iter().zip(&descriptors).filter(|(fd, _)| !fd.revents().is_empty());
    readable.map(|(_, fd)| *fd).collect()
}

/// Sleeps until a descriptor of the port is readable. Panics after a minute.
fn sleep(port: &MemifPort) {
    assert!(!readable_within(port, 60).is_empty(), "no wake-up came: {:?}", port.descriptors());
}

#[test]
fn an_idle_port_sleeps_and_wakes_once_per_frame() {
    let path = TestPath::new();
    let (mut master, mut slave) = pair(&path, &config(3, 300));
    for turn in 0..6 {
        let (to, from) =
            if turn % 2 == 0 { (&mut master, &mut slave) } else { (&mut slave, &mut master) };
        assert!(!to.arm().unwrap());
        assert_eq!(readable_within(to, 0), [], "turn {turn}: {:?}", to.descriptors());
        send(from, 60, turn);
        assert_eq!(readable_within(to, 0).len(), 1);
        assert!(to.arm().unwrap(), "the frame waits");
        to.service().unwrap();
        assert_eq!(to.receive(8, &mut |_| ()).unwrap(), 1);
        send(from, 60, turn);
        assert_eq!(readable_within(to, 0), [], "polling ports are not woken");
        assert_eq!(to.receive(8, &mut |_| ()).unwrap(), 1);
    }
}

/// Receives `frames` frames in order, sleeping whenever none waits, and publishes their count.
fn receive_sleeping(port: &mut MemifPort, frames: u64, seen: &AtomicU64) {
    let mut next = 0;
    let mut disarm_first = false;
    while next < frames {
        let received = port
            .receive(64, &mut |frame| {
                check_pattern(frame, next);
                next += 1;
            })
            .unwrap();
        seen.store(next, Ordering::Release);
        // Widens the gap between finding no frame and requesting a wake-up.
        for _ in 0..next.wrapping_mul(40_503) % 61 {
            std::hint::spin_loop();
        }
        if received == 0 && !port.arm().unwrap() {
            sleep(port);
            disarm_first = !disarm_first;
            if disarm_first {
                port.disarm();
            }
            port.service().unwrap();
            port.disarm();
        }
    }
}

/// Sends each frame only once the previous one was seen, after a varying delay, so that frames hit
/// every step of going to sleep and each lost wake-up is fatal.
fn send_one_by_one(port: &mut MemifPort, frames: u64, seen: &AtomicU64) {
    for number in 0..frames {
        while seen.load(Ordering::Acquire) < number {
            std::hint::spin_loop();
        }
        for _ in 0..number.wrapping_mul(2_654_435_761) % 97 {
            std::hint::spin_loop();
        }
        send(port, 60, number);
    }
}

#[test]
fn no_wake_up_is_lost() {
    const FRAMES: u64 = 20_000;
    for slave_sends in [true, false] {
        let path = TestPath::new();
        let (master, slave) = pair(&path, &config(4, 128));
        let (mut from, mut to) = if slave_sends { (slave, master) } else { (master, slave) };
        let seen = Arc::new(AtomicU64::new(0));
        let sender = thread::spawn({
            let seen = Arc::clone(&seen);
            move || {
                send_one_by_one(&mut from, FRAMES, &seen);
                from
            }
        });
        receive_sleeping(&mut to, FRAMES, &seen);
        sender.join().unwrap();
    }
}

#[test]
fn two_threads_handshake_asleep_and_echo() {
    const FRAMES: u64 = 20_000;
    let path = TestPath::new();
    let listener = crate::Listener::bind(&path).unwrap();
    let mut master = listener.port(5, config(6, 256)).unwrap();
    let mut slave = MemifPort::slave(&path, 5, config(6, 256)).unwrap();
    let echo = thread::spawn(move || {
        let mut echoed = 0;
        let mut waiting: Vec<Vec<u8>> = Vec::new();
        while echoed < FRAMES {
            if master.link_state() == LinkState::Down && !master.arm().unwrap() {
                sleep(&master);
            }
            master.service().unwrap();
            master.receive(32, &mut |frame| waiting.push(frame.to_vec())).unwrap();
            waiting.retain(|frame| {
                let done =
                    master.transmit(frame.len(), &mut |out| out.copy_from_slice(frame)).unwrap();
                echoed += u64::from(done);
                !done
            });
            master.flush().unwrap();
        }
        master
    });
    while slave.service().unwrap() == LinkState::Down {
        if !slave.arm().unwrap() {
            sleep(&slave);
        }
    }
    slave.disarm();
    let (mut sent, mut received) = (0, 0);
    until("all frames came back", || {
        // A window below the ring size keeps the echo in order.
        while sent < FRAMES && sent - received < 32 {
            let number = sent;
            assert!(slave.transmit(length(number).min(256), &mut |f| pattern(f, number)).unwrap());
            sent += 1;
        }
        slave.flush().unwrap();
        slave
            .receive(64, &mut |frame| {
                check_pattern(frame, received);
                received += 1;
            })
            .unwrap();
        (received == FRAMES).then_some(())
    });
    echo.join().unwrap();
}
