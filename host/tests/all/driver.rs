//! Tests of the loop on its own thread, in real time. They check lower bounds of times only, since
//! a loaded machine may be late.

use longhaul_host::{Clock, Driver, DriverConfig, DriverCounters, Finished, Handle, Stopped};
use longhaul_link::{Link, LinkConfig};
use longhaul_port::{LinkState, LoopbackPort, Port, loopback};
use longhaul_units::{Duration, Instant};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// Long enough for any machine; expires only if the test hangs.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// A driver that never calls the hook by itself during a test, so that only the tested wake-up
/// wakes it.
fn quiet() -> DriverConfig {
    DriverConfig {
        hook_interval: Duration::from_ms(600_000),
        idle_before_sleep: Duration::ZERO,
        ..DriverConfig::default()
    }
}

struct Rig {
    a: LoopbackPort,
    b: LoopbackPort,
    clock: Clock,
    handle: Handle<Link>,
    thread: JoinHandle<Finished<Link, LoopbackPort>>,
}

fn start(delay: Duration, config: DriverConfig) -> Rig {
    let (a, inner_a) = loopback::pair("a", 256, 2048).unwrap();
    let (b, inner_b) = loopback::pair("b", 256, 2048).unwrap();
    let link = Link::new(LinkConfig { delay, ..LinkConfig::default() }).unwrap();
    let clock = Clock::start();
    let (driver, handle) = Driver::new(link, vec![inner_a, inner_b], clock, config).unwrap();
    let thread = std::thread::spawn(move || {
        driver.run(|_: Instant, _: &mut Link, _: &mut [LoopbackPort], _: &DriverCounters| {})
    });
    Rig { a, b, clock, handle, thread }
}

impl Rig {
    fn finish(self) -> Finished<Link, LoopbackPort> {
        self.handle.stop();
        self.thread.join().unwrap()
    }
}

fn send(port: &mut LoopbackPort, number: u64, now: Instant) {
    let began = std::time::Instant::now();
    while !port
        .transmit(64, &mut |slot| {
            slot.fill(0);
            slot[20..28].copy_from_slice(&number.to_be_bytes());
            slot[28..36].copy_from_slice(&now.as_ns().to_be_bytes());
        })
        .unwrap()
    {
        assert!(began.elapsed() < PATIENCE, "no room");
        std::thread::yield_now();
    }
    port.flush().unwrap();
}

/// Numbers and sending times of at least one frame.
fn receive(port: &mut LoopbackPort) -> Vec<(u64, Instant)> {
    let began = std::time::Instant::now();
    let mut frames = Vec::new();
    while frames.is_empty() {
        port.receive(256, &mut |frame| {
            let word = |at: usize| u64::from_be_bytes(frame[at..at + 8].try_into().unwrap());
            frames.push((word(20), Instant::from_ns(word(28))));
        })
        .unwrap();
        assert!(began.elapsed() < PATIENCE, "nothing arrives");
        std::thread::yield_now();
    }
    frames
}

mod frames {
    use super::*;

    #[test]
    fn arrive_in_order_and_not_before_the_delay() {
        let delay = Duration::from_ms(5);
        let mut rig = start(delay, DriverConfig::default());
        let mut next = 0;
        for number in 0..2000 {
            send(&mut rig.a, number, rig.clock.now());
            if number % 200 == 199 {
                while next <= number {
                    for (arrived, sent) in receive(&mut rig.b) {
                        assert_eq!(arrived, next);
                        assert!(rig.clock.now() >= sent + delay);
                        next += 1;
                    }
                }
            }
        }
        let finished = rig.finish();
        assert_eq!(finished.counters.transmitted_frames, 2000);
        assert_eq!(finished.node.counters(0).delivered_frames, 2000);
        assert!(finished.counters.sleeps > 0, "sleeps while frames travel");
    }

    #[test]
    fn a_driver_that_spins_never_sleeps_and_answers_all_the_same() {
        let mut rig = start(Duration::from_ms(1), DriverConfig { spins: true, ..quiet() });
        for number in 0..20 {
            send(&mut rig.a, number, rig.clock.now());
            assert_eq!(receive(&mut rig.b)[0].0, number);
        }
        assert_eq!(rig.handle.ask(|_, link: &mut Link| link.counters(0).delivered_frames), Ok(20));
        let finished = rig.finish();
        assert_eq!(finished.counters.sleeps, 0);
        assert!(finished.counters.idle_turns > 0);
    }

    /// Each frame must wake a driver that is asleep or about to sleep: a lost wake-up hangs the
    /// test.
    #[test]
    fn wake_a_driver_that_is_about_to_sleep() {
        let mut rig = start(Duration::ZERO, quiet());
        for number in 0..3000 {
            send(&mut rig.a, number, rig.clock.now());
            assert_eq!(receive(&mut rig.b)[0].0, number);
            // Hits different steps of going to sleep.
            for _ in 0..number % 64 {
                std::hint::spin_loop();
            }
        }
        let finished = rig.finish();
        assert!(finished.counters.sleeps > 100, "{:?}", finished.counters);
    }

    /// The far side empties its ring late, and no event tells the driver that there is space.
    #[test]
    fn go_on_once_a_full_port_has_room() {
        let mut rig = start(Duration::ZERO, quiet());
        for number in 0..1000 {
            send(&mut rig.a, number, rig.clock.now());
        }
        let mut next = 0;
        while next < 1000 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            for (number, _) in receive(&mut rig.b) {
                assert_eq!(number, next);
                next += 1;
            }
        }
        let finished = rig.finish();
        assert!(finished.counters.blocked_turns > 0);
        assert_eq!(finished.counters.refused_frames, 0);
    }
}

mod requests {
    use super::*;

    #[test]
    fn wake_a_sleeping_driver_and_are_answered() {
        let rig = start(Duration::ZERO, quiet());
        for _ in 0..1000 {
            assert_eq!(rig.handle.ask(|_, link| link.config().delay).unwrap(), Duration::ZERO);
        }
        rig.finish();
    }

    #[test]
    fn of_many_threads_are_all_done() {
        let rig = start(Duration::ZERO, quiet());
        let count = Arc::new(AtomicUsize::new(0));
        let askers: Vec<_> = (0..4)
            .map(|_| {
                let (handle, count) = (rig.handle.clone(), Arc::clone(&count));
                std::thread::spawn(move || {
                    for _ in 0..500 {
                        let count = Arc::clone(&count);
                        let add = move |_, _: &mut Link| {
                            count.fetch_add(1, Ordering::Relaxed);
                        };
                        handle.request(add).unwrap();
                    }
                    handle.ask(|_, _| ()).unwrap();
                })
            })
            .collect();
        askers.into_iter().for_each(|asker| asker.join().unwrap());
        assert_eq!(count.load(Ordering::Relaxed), 2000);
        rig.finish();
    }

    #[test]
    fn fail_once_it_has_stopped() {
        let rig = start(Duration::ZERO, quiet());
        let handle = rig.handle.clone();
        rig.finish();
        assert_eq!(handle.ask(|_, _| ()), Err(Stopped));
        assert_eq!(handle.request(|_, _| ()), Err(Stopped));
    }
}

mod stop {
    use super::*;

    #[test]
    fn ends_a_sleeping_driver() {
        let rig = start(Duration::ZERO, quiet());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(rig.finish().counters).is_ok());
        let counters = receiver.recv_timeout(PATIENCE).expect("still running");
        assert!(counters.turns > 0);
    }

    #[test]
    fn before_the_start_counts_too() {
        let link = Link::new(LinkConfig::default()).unwrap();
        let (driver, handle) =
            Driver::new(link, Vec::<LoopbackPort>::new(), Clock::start(), quiet()).unwrap();
        handle.stop();
        let finished =
            driver.run(|_: Instant, _: &mut Link, _: &mut [LoopbackPort], _: &DriverCounters| {});
        assert_eq!(finished.counters.turns, 0);
    }
}

mod idle {
    use super::*;

    #[test]
    fn takes_next_to_no_processor_and_still_calls_the_hook() {
        let link = Link::new(LinkConfig::default()).unwrap();
        let (_a, inner) = loopback::pair("a", 4, 100).unwrap();
        let config =
            DriverConfig { hook_interval: Duration::from_ms(5), ..DriverConfig::default() };
        let (driver, handle) = Driver::new(link, vec![inner], Clock::start(), config).unwrap();
        let processor_time = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            std::time::Duration::try_from(time).expect("a positive time")
        };
        let (begun, used_before) = (std::time::Instant::now(), processor_time());
        let mut calls = 0;
        let finished =
            driver.run(|_: Instant, _: &mut Link, _: &mut [LoopbackPort], _: &DriverCounters| {
                calls += 1;
                if calls == 20 {
                    handle.stop();
                }
            });
        let (took, used) = (begun.elapsed(), processor_time() - used_before);
        assert_eq!(calls, 21, "once more at the end");
        assert!(used < took / 4, "{used:?} of {took:?}: {:?}", finished.counters);
    }
}

#[test]
fn a_link_that_comes_up_or_goes_down_is_told_to_the_hook_at_once() {
    let link = Link::new(LinkConfig::default()).unwrap();
    let (a, inner) = loopback::pair("a", 4, 100).unwrap();
    let (driver, handle) = Driver::new(link, vec![inner], Clock::start(), quiet()).unwrap();
    let (told, states) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        driver.run(|_: Instant, _: &mut Link, ports: &mut [LoopbackPort], _: &DriverCounters| {
            told.send(ports[0].link_state()).unwrap();
        })
    });
    let wait_for = |state| {
        while states.recv_timeout(PATIENCE).expect("the hook is called") != state {}
    };
    wait_for(LinkState::Up);
    // The first call is the initial one, the second that of the link.
    wait_for(LinkState::Up);
    drop(a);
    handle.request(|_, _| {}).unwrap();
    wait_for(LinkState::Down);
    handle.stop();
    thread.join().unwrap();
}
