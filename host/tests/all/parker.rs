//! Tests of sleeping and waking.

use longhaul_host::{Parker, WakeUp, Woken};
use longhaul_port::{LoopbackPort, NullPort, Port, loopback};
use longhaul_units::Duration;

const LONG: Option<Duration> = Some(Duration::from_ms(120_000));

fn send(port: &mut LoopbackPort) {
    assert!(port.transmit(60, &mut |slot| slot.fill(0)).unwrap());
    port.flush().unwrap();
}

#[test]
fn a_frame_that_already_waits_prevents_the_sleep() {
    let (mut a, mut b) = loopback::pair("lo", 4, 100).unwrap();
    send(&mut a);
    let wake = WakeUp::new().unwrap();
    let woken = Parker::new().park(std::slice::from_mut(&mut b), &wake, LONG).unwrap();
    assert_eq!(woken, Woken::ByPort);
}

#[test]
fn a_frame_ends_the_sleep() {
    let (mut a, mut b) = loopback::pair("lo", 4, 100).unwrap();
    let wake = WakeUp::new().unwrap();
    let sender = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        send(&mut a);
        a
    });
    let woken = Parker::new().park(std::slice::from_mut(&mut b), &wake, LONG).unwrap();
    assert_eq!(woken, Woken::ByPort);
    drop(sender.join().unwrap());
}

#[test]
fn the_time_ends_the_sleep_and_not_before() {
    let (_a, mut b) = loopback::pair("lo", 4, 100).unwrap();
    let wake = WakeUp::new().unwrap();
    let began = std::time::Instant::now();
    let timeout = Duration::from_us(1500);
    let woken = Parker::new().park(std::slice::from_mut(&mut b), &wake, Some(timeout)).unwrap();
    assert_eq!(woken, Woken::ByTime);
    assert!(began.elapsed() >= std::time::Duration::from_micros(1500));
}

#[test]
fn a_call_before_the_sleep_ends_it_and_is_told_once() {
    let (_a, mut b) = loopback::pair("lo", 4, 100).unwrap();
    let wake = WakeUp::new().unwrap();
    let mut parker = Parker::new();
    wake.wake();
    wake.clone().wake();
    assert_eq!(parker.park(std::slice::from_mut(&mut b), &wake, LONG).unwrap(), Woken::ByCall);
    assert!(wake.take());
    assert!(!wake.take());
    let short = Some(Duration::from_us(10));
    assert_eq!(parker.park(std::slice::from_mut(&mut b), &wake, short).unwrap(), Woken::ByTime);
}

#[test]
fn a_call_taken_without_sleeping_leaves_one_look_for_nothing_at_most() {
    let wake = WakeUp::new().unwrap();
    let mut parker = Parker::new();
    let none: &mut [LoopbackPort] = &mut [];
    wake.wake();
    assert!(wake.take());
    let short = Some(Duration::from_us(10));
    assert_eq!(parker.park(none, &wake, short).unwrap(), Woken::ByCall);
    assert!(!wake.take());
    assert_eq!(parker.park(none, &wake, short).unwrap(), Woken::ByTime);
    wake.wake();
    assert_eq!(parker.park(none, &wake, LONG).unwrap(), Woken::ByCall);
}

#[test]
fn no_call_between_threads_is_lost() {
    const CALLS: usize = 20_000;
    let wake = WakeUp::new().unwrap();
    let done = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (caller_wake, caller_done) = (wake.clone(), done.clone());
    let caller = std::thread::spawn(move || {
        for call in 1..=CALLS {
            caller_done.store(call, std::sync::atomic::Ordering::Relaxed);
            caller_wake.wake();
        }
    });
    let mut parker = Parker::new();
    let none: &mut [LoopbackPort] = &mut [];
    while done.load(std::sync::atomic::Ordering::Relaxed) < CALLS {
        if !wake.take() {
            assert_eq!(parker.park(none, &wake, LONG).unwrap(), Woken::ByCall, "lost");
        }
    }
    caller.join().unwrap();
}

#[test]
fn arm_and_disarm_leave_room_for_a_lock_in_between() {
    let (mut a, mut b) = loopback::pair("lo", 4, 100).unwrap();
    let wake = WakeUp::new().unwrap();
    let mut parker = Parker::new();
    assert!(!parker.arm(std::slice::from_mut(&mut b)).unwrap());
    send(&mut a);
    assert_eq!(parker.sleep(&wake, LONG).unwrap(), Woken::ByPort);
    Parker::disarm(std::slice::from_mut(&mut b));
    assert_eq!(b.receive(4, &mut |_| ()).unwrap(), 1);
}

#[test]
fn ports_without_descriptors_sleep_until_the_time() {
    let wake = WakeUp::new().unwrap();
    let mut port = NullPort::new("null", 100);
    let short = Some(Duration::from_us(10));
    assert_eq!(
        Parker::new().park(std::slice::from_mut(&mut port), &wake, short).unwrap(),
        Woken::ByTime
    );
}
