//! Tests of frames that are kept in place and sent from there.

use super::*;
use longhaul_port::{Lease, Received};
use proptest::prelude::*;
use std::cell::RefCell;

fn ring(name: &str, lent_frames: u16) -> DpdkPort {
    let mut port = open(&DpdkConfig { lent_frames, ..DpdkConfig::new(name) }).unwrap();
    up(&mut port);
    port
}

/// Passes one frame through a ring, and returns it if it was lent.
fn bring(port: &mut DpdkPort, number: usize, len: usize) -> Option<Lease> {
    assert!(send(port, number, len));
    port.flush().unwrap();
    take(port, number, len)
}

fn take(port: &mut DpdkPort, number: usize, len: usize) -> Option<Lease> {
    let (mut kept, mut came) = (None, 0);
    let each = &mut |received: Received<'_>| {
        check(received.bytes(), number, len);
        came += 1;
        if let Received::Lent(lease) = received {
            kept = Some(lease.clone());
        }
    };
    assert_eq!(port.receive_lent(64, each).unwrap(), 1);
    assert_eq!(came, 1);
    kept
}

/// Number of free buffers.
fn free(port: &mut DpdkPort) -> usize {
    port.tidy();
    port.free_buffers() + port.empty_buffers()
}

#[test]
fn frames_that_are_kept_stay_as_they_are_while_others_come() {
    let mut port = ring("net_ring_kept0", 300);
    let all = free(&mut port);
    let kept: Vec<_> =
        (0..300).map(|number| bring(&mut port, number, 256 + number).expect("lent")).collect();
    assert_eq!(free(&mut port), all - 300);
    echo(&mut port, &many_lengths(9238));
    kept.iter().enumerate().for_each(|(number, lease)| check(lease.bytes(), number, 256 + number));
    drop(kept);
    assert_eq!(free(&mut port), all);
}

#[test]
fn more_than_may_be_kept_are_handed_out_to_be_copied_and_reception_goes_on() {
    let mut port = ring("net_ring_drained0", 100);
    let mut kept: Vec<_> =
        (0..100).map(|number| bring(&mut port, number, 1000).expect("lent")).collect();
    for number in 0..1000 {
        assert!(bring(&mut port, number, 1000).is_none());
    }
    assert_eq!(port.dpdk_counters().rx_not_lent, 1000);
    // Any one that is returned makes space for another.
    for at in [99, 50, 0] {
        drop(kept.remove(at));
    }
    let more: Vec<_> = (0..1000).filter_map(|number| bring(&mut port, number, 1000)).collect();
    assert_eq!(more.len(), 3);
    assert_eq!(port.dpdk_counters().rx_no_buffer, 0);
}

#[test]
fn what_nobody_keeps_costs_no_buffer() {
    let mut port = ring("net_ring_loose0", 1);
    let all = free(&mut port);
    for number in 0..1000 {
        drop(bring(&mut port, number, 2000).expect("lent"));
    }
    assert_eq!((free(&mut port), port.dpdk_counters().rx_not_lent), (all, 0));
}

#[test]
fn short_frames_and_those_in_several_buffers_are_not_lent() {
    let config = DpdkConfig { buffer_bytes: 1024, ..DpdkConfig::new("net_ring_unlent0") };
    let mut port = open(&config).unwrap();
    up(&mut port);
    for (len, is_lent) in
        [(14, false), (255, false), (256, true), (1024, true), (1025, false), (9238, false)]
    {
        assert_eq!(bring(&mut port, len, len).is_some(), is_lent, "{len}");
    }
    // No frame was refused.
    assert_eq!(port.dpdk_counters().rx_not_lent, 0);
    let mut none = ring("net_ring_none0", 0);
    assert!(bring(&mut none, 1, 1000).is_none());
    assert_eq!(none.dpdk_counters().rx_not_lent, 0);
}

#[test]
fn frames_are_sent_from_where_they_were_received() {
    let mut from = ring("net_ring_origin0", 50);
    let mut to = ring("net_ring_target0", 50);
    let all = [free(&mut from), free(&mut to)];
    for round in 0..200 {
        let lease = bring(&mut from, round, 1500).expect("lent");
        let at = lease.bytes().as_ptr();
        assert!(to.transmit_lent(&lease).unwrap());
        to.flush().unwrap();
        drop(lease);
        // It is in flight, and only the device has it.
        assert!(bring(&mut from, round + 1, 1500).is_some());
        let arrived = take(&mut to, round, 1500).expect("lent again");
        assert_eq!(arrived.bytes().as_ptr(), at, "the very same bytes");
    }
    assert_eq!((to.dpdk_counters().tx_by_reference, to.counters().tx_frames), (200, 200));
    to.tidy();
    assert_eq!([free(&mut from), free(&mut to)], all);
}

#[test]
fn frames_in_memory_that_no_device_reaches_are_copied() {
    let mut port = ring("net_ring_copied0", 50);
    let mut lease = Lease::with_capacity(1500);
    lease
        .fill(1500, &mut |out| out.iter_mut().enumerate().for_each(|(at, out)| *out = byte(7, at)));
    assert!(port.transmit_lent(&lease).unwrap());
    assert!(lease.is_returned());
    port.flush().unwrap();
    take(&mut port, 7, 1500);
    assert_eq!((port.dpdk_counters().tx_by_reference, port.counters().tx_frames), (0, 1));
}

#[test]
fn frames_outlive_the_port_that_lent_them() {
    let mut port = ring("net_ring_gone0", 50);
    let kept: Vec<_> = (0..50).map(|number| bring(&mut port, number, 700).expect("lent")).collect();
    drop(port);
    // Another device takes its place, and its memory.
    echo(&mut ring("net_ring_gone0", 50), &many_lengths(9238));
    kept.iter().enumerate().for_each(|(number, lease)| check(lease.bytes(), number, 700));
}

#[test]
fn of_a_peer_that_shares_the_memory_nothing_is_lent() {
    let config = DpdkConfig::new("net_memif0,zero-copy=yes");
    let is_owner = |driver: &str| crate::device::owns_frames(driver, &config);
    assert_eq!((is_owner("net_memif"), is_owner("net_ring")), (false, true));
}

#[derive(Clone, Debug)]
enum Step {
    /// A frame of this length arrives.
    Come(usize),
    /// One of the kept frames is sent.
    SendOn(usize),
    /// One of the kept frames is released.
    LetGo(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (14_usize..2000).prop_map(Step::Come),
        2 => any::<usize>().prop_map(Step::SendOn),
        3 => any::<usize>().prop_map(Step::LetGo),
    ];
    prop::collection::vec(step, 0..400)
}

#[test]
fn any_order_of_keeping_sending_and_letting_go_leaves_bytes_whole_and_no_buffer_lost() {
    let mut port = ring("net_ring_any0", 20);
    let all = free(&mut port);
    let port = RefCell::new(port);
    let config =
        ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() };
    proptest!(config, |(steps in steps())| {
        let port = &mut *port.borrow_mut();
        let mut kept: Vec<(usize, Lease)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Come(len) => {
                    kept.extend(bring(port, number, len).map(|lease| (number, lease)));
                }
                Step::SendOn(which) if !kept.is_empty() => {
                    let (number, lease) = &kept[which % kept.len()];
                    prop_assert!(port.transmit_lent(lease).unwrap());
                    port.flush().unwrap();
                    let (number, len) = (*number, lease.bytes().len());
                    kept.extend(take(port, number, len).map(|lease| (number, lease)));
                }
                Step::LetGo(which) if !kept.is_empty() => {
                    drop(kept.swap_remove(which % kept.len()));
                }
                Step::SendOn(_) | Step::LetGo(_) => {}
            }
            prop_assert!(kept.len() <= 20);
        }
        for (number, lease) in &kept {
            check(lease.bytes(), *number, lease.bytes().len());
        }
        drop(kept);
        // Frames that were sent in place are released one after the other.
        (0..20).for_each(|_| port.tidy());
        prop_assert_eq!(free(port), all);
    });
}
