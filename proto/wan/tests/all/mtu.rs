//! Frames too long for a path arrive in parts, once, in order and byte for byte; the path MTU is
//! found, and found again after a change.

use crate::net::{Loses, Net, Source, config};
use longhaul_link::{Impairments, LinkConfig};
use longhaul_node::{Frame, Node};
use longhaul_units::{BitRate, Duration};
use longhaul_wan::format::{DatagramKind, HEADER_LEN, Header};
use longhaul_wan::{Config, Counters, DropReason, INNER, Parity, PathStatus};
use longhaul_wire::Udp;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const ETHERNET: usize = 14;

fn fibre(gbps: u64, rtt_us: u64) -> LinkConfig {
    let rate = BitRate::from_gbps(gbps);
    LinkConfig { delay: Duration::from_us(rtt_us / 2), rate, seed: 3, ..LinkConfig::default() }
}

/// A path that carries IP packets of up to `mtu` bytes.
fn takes(mtu: usize) -> Loses {
    Box::new(move |_, frame| frame.len() - ETHERNET > mtu)
}

fn net(parity: Parity, fibre: LinkConfig, mtu: usize) -> Net {
    let boxes = [1, 2].map(|id| Config { parity, ..config(id, 1, fibre.rate) });
    let mut net = Net::new(boxes, vec![fibre]);
    net.loses = Some(takes(mtu));
    net.meet();
    net
}

/// Streams in both directions, all of which are delivered.
fn transfer(net: &mut Net, first: u32, frames: u64) {
    for from in 0..2 {
        let lens = [0, 700, 2048, 4096];
        let streams =
            (first..).zip(lens).map(|(qpn, len)| Source::new(from, qpn, len, true, frames));
        net.sources[usize::from(from)] = streams.collect();
    }
    net.finish(Duration::from_ms(60_000));
}

fn path(net: &Net, of: usize) -> PathStatus {
    net.boxes[of].sessions().next().unwrap().paths[0].clone()
}

fn counters(net: &Net) -> [Counters; 2] {
    [0, 1].map(|n| *net.boxes[n].counters())
}

#[test]
fn what_is_too_long_comes_in_parts() {
    for parity in [Parity::Off, Parity::Always] {
        for (mtu, loss) in
            [(576, 0.0), (1280, 1e-3), (1500, 0.0), (1500, 1e-2), (1500, 5e-2), (2100, 1e-2)]
        {
            let mut net = net(parity, LinkConfig { loss, ..fibre(10, 2000) }, mtu);
            transfer(&mut net, 10, 1500);
            net.run_for(Duration::from_ms(2000));
            for end in 0..2 {
                let found = usize::from(path(&net, end).mtu);
                assert!(found <= mtu && (loss > 1e-3 || found + 8 >= mtu), "{found} of {mtu}");
                let counters = net.boxes[end].counters();
                assert!(
                    counters.parts_sent > 3000 && counters.assembled >= 1500,
                    "{mtu}: {counters:?}"
                );
                assert_eq!(counters.drops.get(DropReason::Corrupted) + counters.void, 0);
            }
        }
    }
}

#[test]
fn parts_are_under_parity_as_frames_are() {
    let mut net = net(Parity::Always, LinkConfig { loss: 1e-2, ..fibre(10, 4000) }, 1500);
    transfer(&mut net, 10, 3000);
    let before = counters(&net);
    transfer(&mut net, 20, 6000);
    for (then, now) in before.iter().zip(counters(&net)) {
        let (repaired, repeated) = (now.repaired - then.repaired, now.repeated - then.repeated);
        assert!(repaired > 100, "{now:?}");
        assert!(repaired > repeated, "{repaired} by parity, {repeated} repeated");
    }
}

#[test]
fn what_fits_goes_whole() {
    let mut net = net(Parity::Always, fibre(10, 2000), 4300);
    transfer(&mut net, 10, 500);
    assert_eq!(counters(&net).map(|counters| counters.parts_sent), [0, 0]);
    assert!(path(&net, 0).mtu > 4200);
}

/// Goodput after a warm-up, as a share of the fibre's rate.
fn share_of_rate(loss: f64, payload_len: usize) -> f64 {
    let mut net = net(Parity::Adaptive, LinkConfig { loss, ..fibre(10, 10_000) }, 1500);
    net.sources[0] = vec![Source::new(0, 5, payload_len, false, u64::MAX)];
    net.run_for(Duration::from_ms(100));
    let before = net.arrived_bytes(payload_len as u64);
    net.run_for(Duration::from_ms(150));
    (net.arrived_bytes(payload_len as u64) - before) as f64 * 8e3 / (150.0 * 10e9)
}

/// A path of 1500 bytes carries more in split frames of 4096 bytes than in frames of 1024 bytes,
/// the longest RoCE payload that fits unsplit.
#[test]
fn a_path_of_1500_bytes_is_filled_by_frames_of_4096() {
    for (loss, least) in [(0.0, 0.93), (1e-3, 0.93), (1e-2, 0.90)] {
        let (whole, parts) = (share_of_rate(loss, 1024), share_of_rate(loss, 4096));
        assert!(parts > whole, "{loss}: {parts} in parts, {whole} of 1024 bytes");
        assert!(parts > least, "{loss}: {parts}");
    }
}

#[test]
fn a_path_that_takes_less_than_before_is_no_black_hole() {
    for (parity, small) in [(Parity::Off, 0), (Parity::Adaptive, 0), (Parity::Always, 3)] {
        let mut net = net(parity, fibre(1, 4000), 9000);
        let mtu = Rc::new(Cell::new(9000));
        let at = Rc::clone(&mtu);
        net.loses = Some(Box::new(move |_, frame| frame.len() - ETHERNET > at.get()));
        net.sources[0] = vec![Source::new(0, 5, 4096, true, 20_000)];
        // Short frames that arrive hide the loss of long ones.
        net.sources[0].extend((10..10 + small).map(|qpn| Source::new(0, qpn, 8, true, 20_000)));
        net.run_for(Duration::from_ms(100));
        mtu.set(1500);
        net.run_for(Duration::from_ms(40));
        let before = net.hosts[1].payload_bytes;
        net.run_for(Duration::from_ms(200));
        let rate = (net.hosts[1].payload_bytes - before) as f64 * 8.0 / 0.2;
        assert!(rate > 0.7e9 || small > 0, "{parity:?}: {rate}");
        let status = path(&net, 0);
        // If nothing arrives any more the path goes down, which also ends the black hole.
        assert!(status.black_holes + status.outages > 0 && status.mtu <= 1500, "{status:?}");
        net.finish(Duration::from_ms(10_000));
        // A larger MTU is found within a minute.
        mtu.set(9000);
        net.run_for(Duration::from_ms(61_000));
        assert_eq!(path(&net, 0).mtu, 4352);
    }
}

#[test]
fn paths_that_take_different_lengths_are_both_filled() {
    let config = |id| config(id, 2, BitRate::from_gbps(1));
    let mut net = Net::new([config(1), config(2)], vec![fibre(1, 4000), fibre(1, 4000)]);
    // The hosts' addresses are the same on both paths; the path number in the header distinguishes
    // them.
    net.loses = Some(Box::new(|_, frame| {
        let is_of_second = Header::read(&frame.head[42..]).is_some_and(|header| header.path == 1);
        is_of_second && frame.len() - ETHERNET > 1500
    }));
    net.meet();
    net.sources[0] = vec![Source::new(0, 5, 4096, true, u64::MAX)];
    net.run_for(Duration::from_ms(100));
    let before = net.hosts[1].payload_bytes;
    net.run_for(Duration::from_ms(100));
    let rate = (net.hosts[1].payload_bytes - before) as f64 * 8.0 / 0.1;
    assert!(rate > 1.75e9, "{rate}");
    let paths = net.boxes[0].sessions().next().unwrap().paths;
    assert_eq!((paths[0].mtu, paths[1].mtu <= 1500), (4352, true));
    assert!(paths[1].split > 100);
}

#[test]
fn a_frame_that_was_damaged_before_does_not_stop_its_stream() {
    let mut net = net(Parity::Off, fibre(10, 2000), 1500);
    let mut source = Source::new(0, 10, 4096, true, 10);
    net.hosts[1].is_strict = false;
    source.send_broken(|frame| net.boxes[0].handle_frame(net.now, INNER, frame));
    net.sources[0] = vec![source];
    net.finish(Duration::from_ms(500));
    assert_eq!((net.hosts[1].frames, net.boxes[1].counters().void), (9, 1));
}

/// Only one part of each frame ever arrives: the parts that wait stay within the memory bound, and
/// no frame is delivered.
#[test]
fn frames_that_are_never_whole_take_bounded_memory() {
    let fibre = fibre(10, 2000);
    let small = |id| Config {
        receive_bytes_max: 1 << 20,
        parity: Parity::Off,
        ..config(id, 1, fibre.rate)
    };
    let mut net = Net::new([small(1), small(2)], vec![fibre.clone()]);
    net.loses = Some(Box::new(|_, frame| {
        let is_part =
            Header::read(&frame.head[42..]).is_some_and(|header| header.kind == DatagramKind::Part);
        frame.len() - ETHERNET > 1500 || is_part && frame.head[42 + HEADER_LEN..][..2] == [0, 0]
    }));
    net.meet();
    net.sources[0] = (10..30).map(|qpn| Source::new(0, qpn, 4096, true, 1000)).collect();
    net.run_for(Duration::from_ms(400));
    let far = net.boxes[1].sessions().next().unwrap();
    assert!(far.receive_bytes > 100_000 && far.receive_bytes <= (1 << 20) + (1 << 16), "{far:?}");
    assert_eq!(net.hosts[1].frames, 0);
}

/// Every PART that crosses, unchanged, truncated, lengthened or damaged, repeatedly, from strangers
/// and from the session.
#[test]
fn parts_of_strangers_do_nothing() {
    let kept = Rc::new(RefCell::new(Vec::new()));
    let mut net = net(Parity::Off, fibre(10, 2000), 1500);
    let keeps = Rc::clone(&kept);
    net.loses = Some(Box::new(move |to, frame| {
        let is_part =
            Header::read(&frame.head[42..]).is_some_and(|header| header.kind == DatagramKind::Part);
        if to == 1 && is_part && keeps.borrow().len() < 100 {
            let mut bytes = vec![0; frame.len()];
            frame.write_to(&mut bytes);
            keeps.borrow_mut().push(bytes);
        }
        frame.len() - ETHERNET > 1500
    }));
    transfer(&mut net, 10, 200);
    let before = (net.hosts[1].frames, *net.boxes[1].counters());
    for bytes in kept.borrow().iter() {
        let mut stranger = bytes.clone();
        stranger[42 + 4] ^= 0x40;
        let mut short = bytes.clone();
        short.truncate(90);
        let mut wrong_extent = bytes.clone();
        wrong_extent[42 + HEADER_LEN + 1] ^= 4;
        let mut wrong_address = bytes.clone();
        let udp = Udp::find(bytes).unwrap();
        wrong_address[udp.ip + 13] ^= 1;
        for bytes in [stranger, short, wrong_extent, wrong_address, bytes.clone()] {
            net.strange.push_back((1, 1, bytes));
        }
    }
    net.run_for(Duration::from_ms(10));
    let after = net.boxes[1].counters();
    assert_eq!(net.hosts[1].frames, before.0);
    assert_eq!(after.replayed - before.1.replayed, 100);
    assert_eq!(
        after.drops.get(DropReason::Corrupted) - before.1.drops.get(DropReason::Corrupted),
        300
    );
    assert_eq!(after.assembled, before.1.assembled);
}

#[test]
fn a_question_that_is_cut_short_is_not_answered() {
    let asked = Rc::new(RefCell::new(Vec::new()));
    let keeps = Rc::clone(&asked);
    let mut net = Net::of(fibre(10, 2000));
    net.loses = Some(Box::new(move |to, frame: &Frame<'_>| {
        let is_long = to == 1 && frame.len() > 1000;
        if is_long
            && Header::read(&frame.head[42..])
                .is_some_and(|header| header.kind == DatagramKind::Ping)
        {
            let mut bytes = vec![0; frame.len()];
            frame.write_to(&mut bytes);
            bytes.truncate(1000);
            keeps.borrow_mut().push(bytes);
        }
        is_long
    }));
    net.meet();
    let cut: Vec<_> = asked.borrow_mut().drain(..).collect();
    assert!(!cut.is_empty());
    net.strange.extend(cut.into_iter().map(|bytes| (1, 1, bytes)));
    net.run_for(Duration::from_ms(50));
    assert_eq!(path(&net, 0).mtu, 1200, "nothing longer was answered");
}

/// Streams over a path whose MTU takes each of `mtus` in turn. Returns the number of frames given
/// up.
fn voids_on_a_path_that_takes(mtus: &[usize], parity: Parity, fibre: LinkConfig) -> [u64; 2] {
    let mut net = net(parity, fibre, mtus[0]);
    let mtu = Rc::new(Cell::new(mtus[0]));
    let at = Rc::clone(&mtu);
    net.loses = Some(Box::new(move |_, frame| frame.len() - ETHERNET > at.get()));
    for (round, takes) in (1..).zip(mtus) {
        mtu.set(*takes);
        transfer(&mut net, 10 * round, 150);
    }
    counters(&net).map(|counters| counters.void)
}

/// The path becomes a black hole while a block of parity is open, so that its parity is never sent;
/// its losses are detected all the same.
#[test]
fn a_black_hole_ends_the_block_of_parity() {
    let impairments = Impairments {
        late: 0.052953923848643066,
        late_by: Duration::from_us(6624 / 4 + 1),
        duplication: 0.046301336890822484,
        corruption: 0.013689979604181774,
    };
    let fibre = LinkConfig {
        loss: 0.034298369513837676,
        impairments,
        seed: 4719424396028,
        ..fibre(1, 6624)
    };
    let mtus = [4688, 829, 3585, 814];
    assert_eq!(voids_on_a_path_that_takes(&mtus, Parity::Always, fibre), [0, 0]);
}

/// A wrong bit in a HELLO's addresses must not give a session to an address that sends nothing, or
/// frames to the real one pass untunnelled.
#[test]
fn a_damaged_hello_leaves_no_frame_untunnelled() {
    let impairments = Impairments {
        late: 0.03338024837402401,
        late_by: Duration::from_us(827 / 4 + 1),
        duplication: 0.018069643513325438,
        corruption: 0.02364351101228334,
    };
    let fibre = LinkConfig {
        loss: 0.0014037159140415107,
        impairments,
        seed: 8472088918970345008,
        ..fibre(1, 827)
    };
    for parity in [Parity::Off, Parity::Always] {
        let voids = voids_on_a_path_that_takes(&[2810, 2067], parity, fibre.clone());
        assert_eq!(voids, [0, 0]);
    }
}

/// The path carries some long datagrams and not the longest; this is detected before a stream of
/// long frames counts as astray.
#[test]
fn a_black_hole_is_found_beside_long_datagrams_that_arrive() {
    let cases = [
        (
            7408614939279059415,
            [0.049266702575590175, 0.04471432644007913, 0.022913594834909165, 0.017841581050540706],
            2803,
            &[2008, 985, 4153, 4782][..],
        ),
        (
            16275052799765198272,
            [0.044456997479372255, 0.0803332726155961, 0.018988551037251514, 0.09709596063014282],
            3447,
            &[1565, 827, 2862],
        ),
    ];
    for (seed, [loss, late, corruption, duplication], rtt_us, mtus) in cases {
        let late_by = Duration::from_us(rtt_us / 4 + 1);
        let impairments = Impairments { late, late_by, duplication, corruption };
        let fibre = LinkConfig { loss, impairments, seed, ..fibre(1, rtt_us) };
        assert_eq!(voids_on_a_path_that_takes(mtus, Parity::Always, fibre), [0, 0]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        max_shrink_iters: 20,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Each frame is delivered once, in order and byte for byte, whatever the path's impairments
    /// and changes of MTU.
    #[test]
    fn on_any_path(
        seed in any::<u64>(),
        loss in 0.0..0.05_f64,
        late in 0.0..0.1_f64,
        corruption in 0.0..0.03_f64,
        duplication in 0.0..0.1_f64,
        rtt_us in 100..8000_u64,
        mtus in prop::collection::vec(576..5000_usize, 1..5),
        has_parity: bool,
    ) {
        let late_by = Duration::from_us(rtt_us / 4 + 1);
        let impairments = Impairments { late, late_by, duplication, corruption };
        let parity = if has_parity { Parity::Always } else { Parity::Off };
        let fibre = LinkConfig { loss, impairments, seed, ..fibre(1, rtt_us) };
        prop_assert_eq!(voids_on_a_path_that_takes(&mtus, parity, fibre), [0, 0]);
    }
}
