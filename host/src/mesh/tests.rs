//! Tests of the mesh between cores: each frame reaches the core of its host pair, in order.

use super::*;
use crate::{Parker, WakeUp, Woken};
use longhaul_port::loopback::{self, LoopbackPort};
use longhaul_units::Duration;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const FRAME_BYTES_MAX: usize = 200;
const SIDES: usize = 2;

/// The far ends of the cores' queues, by core and side, and the joined ports.
type Joined = (Vec<Vec<LoopbackPort>>, Vec<Vec<CorePort<LoopbackPort>>>);

fn joined(cores: usize, spread: Spread, ring_bytes: usize) -> Joined {
    let pair = |_| loopback::pair("queue", 64, FRAME_BYTES_MAX).unwrap();
    let (far, near): (Vec<_>, Vec<_>) =
        (0..cores).map(|_| (0..SIDES).map(pair).collect::<(Vec<_>, Vec<_>)>()).collect();
    (far, join(near, spread, ring_bytes).unwrap())
}

fn put(port: &mut LoopbackPort, frame: &[u8]) {
    assert!(port.transmit(frame.len(), &mut |slot| slot.copy_from_slice(frame)).unwrap());
    port.flush().unwrap();
}

/// All that the ports bring until nothing comes any more: by core and side.
fn brought(
    ports: &mut [Vec<CorePort<LoopbackPort>>],
    max: usize,
) -> BTreeMap<(usize, Side), Vec<Vec<u8>>> {
    let mut all = BTreeMap::<_, Vec<Vec<u8>>>::new();
    loop {
        let mut any = false;
        for (core, ports) in ports.iter_mut().enumerate() {
            for (side, port) in ports.iter_mut().enumerate() {
                let mut each =
                    |frame: &[u8]| all.entry((core, side)).or_default().push(frame.to_vec());
                any |= port.receive(max, &mut each).unwrap() > 0;
            }
        }
        if !any {
            return all;
        }
    }
}

/// From one host to another, with a tag or without, and a number.
fn between(from: u8, to: u8, is_tagged: bool, is_ipv6: bool, number: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from];
    if is_tagged {
        frame.extend([0x81, 0x00, 0, 5]);
    }
    if is_ipv6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, 64]);
        for host in [from, to] {
            frame.extend([0xfd; 15]);
            frame.push(host);
        }
    } else {
        frame.extend([0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 0, from, 10, 0, 0, to]);
    }
    frame.extend(number.to_be_bytes());
    frame
}

/// Arrivals: the core of the queue, the side, and the frame.
fn arrivals() -> impl Strategy<Value = Vec<(usize, Side, Vec<u8>)>> {
    let flow = (1..6_u8, 6..12_u8, any::<bool>(), any::<bool>(), any::<bool>(), any::<u16>())
        .prop_map(|(one, other, is_back, is_tagged, is_ipv6, number)| {
            let (from, to) = if is_back { (other, one) } else { (one, other) };
            between(from, to, is_tagged, is_ipv6, number)
        });
    let hostile = proptest::collection::vec(any::<u8>(), 14..80);
    let cut = (14..60_usize, any::<bool>()).prop_map(|(len, is_ipv6)| {
        let whole = between(1, 7, true, is_ipv6, 0);
        whole[..len.min(whole.len())].to_vec()
    });
    let frame = prop_oneof![4 => flow, 1 => hostile, 1 => cut];
    proptest::collection::vec((0..4_usize, 0..SIDES, frame), 0..60)
}

proptest! {
    #[test]
    fn every_frame_comes_once_and_to_its_core(
        cores in 2..=4_usize,
        arrivals in arrivals(),
        max in 1..=64_usize,
        spread in
            prop_oneof![Just(Spread::ByPair), Just(Spread::BySide), Just(Spread::AsItArrives)],
    ) {
        let (mut far, mut ports) = joined(cores, spread, 1 << 16);
        let mut expected = BTreeMap::<_, Vec<Vec<u8>>>::new();
        for (queue, side, frame) in &arrivals {
            let queue = queue % cores;
            put(&mut far[queue][*side], frame);
            let core = spread.core(*side, frame, cores).unwrap_or(queue);
            expected.entry((core, *side)).or_default().push(frame.clone());
        }
        let mut brought = brought(&mut ports, max);
        // Frames of different queues may be reordered.
        for frames in brought.values_mut().chain(expected.values_mut()) {
            frames.sort();
        }
        prop_assert_eq!(brought, expected);
        let total = |of: fn(HandedOver) -> u64| -> u64 {
            ports.iter().flatten().map(|port| of(port.handed_over())).sum()
        };
        prop_assert_eq!(total(|counters| counters.given), total(|counters| counters.taken));
        prop_assert_eq!(total(|counters| counters.ring_full), 0);
    }

    #[test]
    fn both_directions_of_two_hosts_meet_whatever_queues_they_come_by(
        cores in 2..=4_usize,
        hosts in (1..100_u8, 101..200_u8),
        queues in (0..4_usize, 0..4_usize),
        is_tagged in any::<bool>(),
        is_ipv6 in any::<bool>(),
    ) {
        let (mut far, mut ports) = joined(cores, Spread::ByPair, 1 << 16);
        put(&mut far[queues.0 % cores][0], &between(hosts.0, hosts.1, is_tagged, is_ipv6, 1));
        put(&mut far[queues.1 % cores][1], &between(hosts.1, hosts.0, is_tagged, is_ipv6, 2));
        let brought = brought(&mut ports, 8);
        let found: Vec<(usize, Side)> = brought.keys().copied().collect();
        prop_assert!(matches!(found[..], [(one, 0), (other, 1)] if one == other), "{:?}", found);
    }
}

/// A frame that belongs to `core`, of `len` bytes, with a number.
fn frame_of(core: usize, cores: usize, len: usize, number: u64) -> Vec<u8> {
    let mut frame = (1..=255)
        .map(|host| between(host, 0, false, false, 0))
        .find(|frame| Spread::ByPair.core(0, frame, cores) == Some(core))
        .unwrap();
    frame.resize(len, number as u8);
    frame[len - 8..].copy_from_slice(&number.to_le_bytes());
    frame
}

#[test]
fn frames_that_the_rings_end_cuts_are_whole() {
    let (mut far, mut ports) = joined(2, Spread::ByPair, 0);
    for number in 0..500 {
        let frame = frame_of(1, 2, 60 + (number as usize * 37) % 141, number);
        put(&mut far[0][0], &frame);
        assert_eq!(brought(&mut ports, 8), BTreeMap::from([((1, 0), vec![frame])]));
    }
}

#[test]
fn a_full_ring_drops_and_counts_and_holds_nothing_else_up() {
    // For two frames of the maximum length.
    let (mut far, mut ports) = joined(2, Spread::ByPair, 0);
    for number in 0..5 {
        put(&mut far[0][0], &frame_of(1, 2, FRAME_BYTES_MAX, number));
    }
    put(&mut far[0][0], &frame_of(0, 2, 60, 5));
    let mut own = 0;
    assert_eq!(
        ports[0][0].receive(64, &mut |_| own += 1).unwrap(),
        6,
        "those given away are work too"
    );
    assert_eq!(own, 1);
    assert_eq!(ports[0][0].handed_over(), HandedOver { given: 2, taken: 0, ring_full: 3 });
    let came = brought(&mut ports, 8).remove(&(1, 0)).unwrap();
    assert_eq!(came, [frame_of(1, 2, FRAME_BYTES_MAX, 0), frame_of(1, 2, FRAME_BYTES_MAX, 1)]);
    assert_eq!(ports[1][0].handed_over(), HandedOver { given: 0, taken: 2, ring_full: 0 });
}

#[test]
fn neither_the_queue_nor_the_other_cores_wait_for_each_other() {
    let (mut far, mut ports) = joined(2, Spread::ByPair, 1 << 16);
    for number in 0..32 {
        put(&mut far[0][0], &frame_of(1, 2, 60, number));
        put(&mut far[1][0], &frame_of(1, 2, 61, number));
    }
    ports[0][0].receive(64, &mut |_| {}).unwrap();
    let mut lengths = Vec::new();
    ports[1][0].receive(8, &mut |frame| lengths.push(frame.len())).unwrap();
    assert_eq!(lengths, [60, 60, 60, 60, 61, 61, 61, 61]);
}

#[test]
fn a_core_that_is_given_something_does_not_go_to_sleep() {
    let (mut far, mut ports) = joined(2, Spread::ByPair, 1 << 16);
    put(&mut far[0][1], &frame_of(1, 2, 60, 0));
    ports[0][1].receive(8, &mut |_| {}).unwrap();
    let woken = Parker::new().park(&mut ports[1], &WakeUp::new().unwrap(), None);
    assert_eq!(woken.unwrap(), Woken::ByPort);
}

/// Two threads that sleep whenever no frame waits.
#[test]
fn a_sleeping_core_is_woken_for_each_frame_it_is_given() {
    const FRAMES: u64 = 20_000;
    let (mut far, ports) = joined(2, Spread::ByPair, 1 << 16);
    let came = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let wakes = [WakeUp::new().unwrap(), WakeUp::new().unwrap()];
    thread::scope(|scope| {
        for (mut ports, wake) in ports.into_iter().zip(wakes.clone()) {
            let (came, is_over) = (&came, &is_over);
            scope.spawn(move || {
                let mut parker = Parker::new();
                while !is_over.load(Ordering::Acquire) {
                    for port in &mut ports {
                        port.service().unwrap();
                        let mut count = |_: &[u8]| {
                            came.fetch_add(1, Ordering::AcqRel);
                        };
                        port.receive(8, &mut count).unwrap();
                    }
                    wake.take();
                    // Far longer than any step takes.
                    let woken =
                        parker.park(&mut ports, &wake, Some(Duration::from_ms(120_000))).unwrap();
                    assert_ne!(woken, Woken::ByTime, "asleep while something was there");
                }
            });
        }
        for number in 0..FRAMES {
            // Sometimes one at a time, so that all threads are asleep; otherwise without a pause.
            while came.load(Ordering::Acquire) + if number % 100 < 20 { 0 } else { 32 } < number {
                thread::yield_now();
            }
            let (queue, side) = ((number / 2 % 2) as usize, (number % 2) as usize);
            put(&mut far[queue][side], &frame_of(1 - queue, 2, 60, number));
        }
        while came.load(Ordering::Acquire) < FRAMES {
            thread::yield_now();
        }
        is_over.store(true, Ordering::Release);
        wakes.iter().for_each(WakeUp::wake);
    });
    assert_eq!(came.load(Ordering::Relaxed), FRAMES);
}

#[test]
fn a_late_bell_ends_one_sleep_and_no_other() {
    let (_far, mut ports) = joined(2, Spread::ByPair, 1 << 16);
    let (mut parker, wake) = (Parker::new(), WakeUp::new().unwrap());
    ports[1][0].alarm.set();
    ports[1][0].alarm.tell();
    let mut sleep = || parker.park(&mut ports[1], &wake, Some(Duration::from_ms(20))).unwrap();
    assert_eq!(sleep(), Woken::ByPort);
    assert_eq!(sleep(), Woken::ByTime);
}
