//! Tests that frames stay in the port while the send buffer is full.

use super::*;

#[test]
fn slots_run_out_only_when_the_kernel_takes_nothing() {
    let [from, to] = [own_ipv4(), own_ipv4()];
    let config = UdpConfig { transmit_slots: 4, ..UdpConfig::new("test", from) };
    let mut a = UdpPort::bind(&config).unwrap();
    let mut b = port(to);
    assert_eq!(a.transmit_room(), 4);
    for number in 0..10 {
        give(&mut a, &frame_on(&path(from, to), number, 64));
    }
    a.flush().unwrap();
    assert_eq!(a.transmit_room(), 4);
    assert_eq!(a.counters().tx_full, 0);
    assert_eq!(take(&mut b, 10, 64).len(), 10);
}

#[test]
fn a_kernel_without_memory_is_asked_again_after_a_while_rather_than_all_the_time() {
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::fd::BorrowedFd;

    let [from, to] = [own_ipv4(), own_ipv4()];
    let (mut a, mut b) = (port(from), port(to));
    give(&mut a, &frame_on(&path(from, to), 0, 64));
    a.sender.back_off();
    let calls = a.udp_counters().tx_calls;
    a.flush().unwrap();
    assert!(!a.arm().unwrap());
    // SAFETY: the port is open until the end of the test.
    let descriptors: Vec<_> =
        a.descriptors().iter().map(|&fd| unsafe { BorrowedFd::borrow_raw(fd) }).collect();
    let mut fds: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let limit = rustix::time::Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(
        poll(&mut fds, Some(&limit)).unwrap(),
        1,
        "the socket is writable, but it is not waited for"
    );
    assert_eq!(a.udp_counters().tx_calls, calls, "not before the time is up");
    a.disarm();
    until("the time is up", || {
        a.service().unwrap();
        (a.udp_counters().tx_calls > calls).then_some(())
    });
    assert_eq!(take(&mut b, 1, 1).len(), 1);
    assert!(!a.arm().unwrap());
    let nothing = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&nothing)).unwrap(), 0, "what has expired is taken back");
}
