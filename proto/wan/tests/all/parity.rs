//! Parity repairs losses exactly once, in any order and despite damage, and stays within its share.

use crate::net::{Loses, Net, Source, config};
use longhaul_link::{Impairments, Link, LinkConfig};
use longhaul_node::{Frame, Node};
use longhaul_units::{BitRate, Duration, Rng, SplitMix64};
use longhaul_wan::format::{DatagramKind, HEADER_LEN, Header};
use longhaul_wan::{Config, Parity};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

/// Offset of the transport header, behind Ethernet, IPv4 and UDP.
const HEADER_AT: usize = 42;
const HELD_MAX: u64 = 2 << 20;

fn fibre(gbps: u64, rtt_us: u64) -> LinkConfig {
    let rate = BitRate::from_gbps(gbps);
    LinkConfig { delay: Duration::from_us(rtt_us / 2), rate, seed: 3, ..LinkConfig::default() }
}

fn net(parity: Parity, fibre: LinkConfig) -> Net {
    let boxes =
        [1, 2].map(|id| Config { parity, parity_bytes_max: HELD_MAX, ..config(id, 1, fibre.rate) });
    let mut net = Net::new(boxes, vec![fibre]);
    net.meet();
    net
}

fn kind(frame: &Frame<'_>) -> Option<DatagramKind> {
    let is_ours = frame.head.get(36..38) == Some(&4797_u16.to_be_bytes());
    Header::read(frame.head.get(HEADER_AT..)?).filter(|_| is_ours).map(|header| header.kind)
}

/// A Gilbert path: bursts of this mean length.
fn bursts(seed: u64, loss: f64, mean: f64) -> Loses {
    let mut rng = SplitMix64::new(seed);
    let mut is_bad = [false; 2];
    Box::new(move |to, _| {
        let leaves = 1.0 / mean;
        let enters = loss * leaves / (1.0 - loss);
        let changes = rng.chance(if is_bad[to] { leaves } else { enters });
        is_bad[to] ^= changes;
        is_bad[to]
    })
}

/// Streams in both directions, all of which are delivered once and in order; memory stays bounded.
fn transfer(net: &mut Net, first: u32, streams: u32, frames: u64) {
    for from in 0..2 {
        let source = |n| Source::new(from, first + n, 60 + 500 * n as usize, true, frames);
        net.sources[usize::from(from)] = (0..streams).map(source).collect();
    }
    net.finish(Duration::from_ms(60_000));
    for node in &net.boxes {
        for session in node.sessions() {
            assert!(session.parity_bytes <= HELD_MAX, "{session:?}");
            assert!(session.receive_bytes_peak <= node.config().receive_bytes_max, "{session:?}");
        }
    }
}

fn repaired(net: &Net) -> u64 {
    net.boxes.iter().map(|node| node.counters().repaired).sum()
}

#[test]
fn most_of_what_is_lost_comes_back_by_parity() {
    for (loss, mean, times) in [(1e-3, 1.0, 3), (1e-2, 1.0, 3), (1e-2, 6.0, 1), (5e-2, 1.0, 3)] {
        let mut net = net(Parity::Always, fibre(10, 4000));
        net.loses = Some(bursts(5, loss, mean));
        transfer(&mut net, 10, 3, 20_000);
        let before = [0, 1].map(|n| *net.boxes[n].counters());
        transfer(&mut net, 20, 3, 20_000);
        let (mut came_back, mut repeated, mut spurious) = (0, 0, 0);
        for (node, before) in net.boxes.iter().zip(before) {
            came_back += node.counters().repaired - before.repaired;
            repeated += node.counters().repeated - before.repeated;
            spurious += node.counters().spurious - before.spurious;
        }
        assert!(
            came_back > times * repeated,
            "{loss} {mean}: {came_back} by parity, {repeated} repeated"
        );
        assert!(
            spurious <= came_back / 50,
            "{loss} {mean}: {spurious} of {came_back} given up too early"
        );
    }
}

#[test]
fn a_simulation_without_bytes_repairs_as_well() {
    let mut net = net(Parity::Always, LinkConfig { loss: 0.01, ..fibre(10, 4000) });
    net.sources[0] = vec![Source::new(0, 5, 4096, false, 30_000)];
    net.finish(Duration::from_ms(1000));
    assert_eq!(net.hosts[1].frames, 30_000);
    let counters = net.boxes[1].counters();
    assert!(counters.repaired > 100, "{counters:?}");
}

#[test]
fn a_clean_path_and_one_that_says_no_carry_no_parity() {
    for (parity, loss) in [(Parity::Always, 0.0), (Parity::Off, 0.02)] {
        let mut net = net(parity, LinkConfig { loss, ..fibre(10, 4000) });
        transfer(&mut net, 10, 3, 5000);
        assert!(net.boxes.iter().all(|node| node.counters().parity_sent == 0));
    }
}

#[test]
fn a_full_path_carries_parity_only_where_it_pays() {
    let parity_of = |loss: f64, every: Duration| {
        let mut net = net(Parity::Adaptive, LinkConfig { loss, ..fibre(10, 10_000) });
        net.sources[0] = vec![Source::new(0, 5, 4096, false, u64::MAX).every(every)];
        net.run_for(Duration::from_ms(300));
        net.boxes[0].sessions().next().unwrap().paths[0].clone()
    };
    let full = parity_of(1e-3, Duration::ZERO);
    assert!(
        full.parity_sent < full.sent / 1000 && full.parity == "none",
        "but for the beginning: {full:?}"
    );
    assert!(parity_of(5e-2, Duration::ZERO).parity_sent > 1000);
    // With a third of the path unused.
    let free = parity_of(1e-3, Duration::from_us(5));
    assert!(free.parity_sent > 100 && free.parity != "none", "{free:?}");
    assert!(free.repaired > 20 && free.residual < 3e-4, "{free:?}");
}

/// Bytes of PARITY and of DATA that a path delivers.
fn weigh(mut inner: Loses) -> (Loses, Rc<RefCell<[u64; 2]>>) {
    let bytes = Rc::new(RefCell::new([0; 2]));
    let sum = bytes.clone();
    let loses: Loses = Box::new(move |to, frame| {
        match kind(frame) {
            Some(DatagramKind::Data) => sum.borrow_mut()[0] += frame.len() as u64,
            Some(DatagramKind::Parity) => sum.borrow_mut()[1] += frame.len() as u64,
            _ => {}
        }
        inner(to, frame)
    });
    (loses, bytes)
}

#[test]
fn parity_is_at_most_a_twentieth_below_a_loss_of_1e_3_whatever_the_traffic() {
    for (loss, mean, burst_frames, pause_us) in
        [(9e-4, 1.0, u64::MAX, 0), (6e-4, 4.0, u64::MAX, 0), (9e-4, 1.0, 30, 400)]
    {
        let mut net = net(Parity::Always, fibre(10, 4000));
        let (loses, bytes) = weigh(bursts(7, loss, mean));
        net.loses = Some(loses);
        // Short and long frames mixed; parities are as long as the longest.
        net.sources[0] =
            [60, 4096, 300].map(|len| Source::new(0, 10 + len as u32, len, false, 0)).into();
        for _ in 0..if burst_frames == u64::MAX { 60 } else { 1000 } {
            for source in &mut net.sources[0] {
                source.until =
                    if burst_frames == u64::MAX { u64::MAX } else { source.until + burst_frames };
            }
            net.run_for(Duration::from_us(if pause_us == 0 { 5000 } else { pause_us }));
        }
        let [data, parity] = *bytes.borrow();
        assert!(parity > data / 1000, "{mean} {burst_frames}: {parity} bytes for {data}");
        // During 1000 pauses it may accumulate credit for a thousandth of 10 Gbit/s.
        let pauses = 1250 * pause_us;
        assert!(parity <= data / 20 + pauses, "{mean} {burst_frames}: {parity} bytes for {data}");
    }
}

#[test]
fn the_tail_of_a_burst_comes_back_within_the_round_trip() {
    let rtt = Duration::from_ms(20);
    let mut net = net(Parity::Always, LinkConfig { loss: 2e-3, ..fibre(10, 20_000) });
    net.sources[0] = vec![Source::new(0, 5, 4096, false, 100_000)];
    net.finish(Duration::from_ms(2000));
    assert!(net.boxes[0].counters().parity_sent > 0);
    net.run_for(rtt.times(3));
    // The last two of a burst are lost; the datagram that flushes their group is not.
    let mut data = 0;
    net.loses = Some(Box::new(move |to, frame| {
        data += u32::from(to == 1 && kind(frame) == Some(DatagramKind::Data));
        kind(frame) == Some(DatagramKind::Data) && (49..=50).contains(&data)
    }));
    net.fibres[0] = Link::new(fibre(10, 20_000)).unwrap();
    let before = net.boxes[1].counters().repaired;
    net.sources[0] = vec![Source::new(0, 6, 4096, true, 50)];
    net.run_for(rtt.times(3).divided_by(4));
    assert_eq!(
        net.hosts[1].next.get(&6),
        Some(&50),
        "{:?}",
        net.boxes[0].sessions().next().unwrap().paths
    );
    assert_eq!(net.boxes[1].counters().repaired, before + 2);
    net.run_for(rtt.times(5));
    assert_eq!(net.boxes[0].counters().tail_probes, 0, "nothing is left to be asked for");
}

/// Frames as they were on the wire, with the box that they were for.
type Taken = Rc<RefCell<Vec<(usize, Vec<u8>)>>>;

/// PARITY datagrams in both directions.
fn tap(seed: u64, loss: f64) -> (Loses, Taken) {
    let taken = Rc::new(RefCell::new(Vec::new()));
    let (kept, mut inner) = (taken.clone(), bursts(seed, loss, 1.5));
    let loses: Loses = Box::new(move |to, frame| {
        if kind(frame) == Some(DatagramKind::Parity) {
            let mut bytes = vec![0; frame.len()];
            frame.write_to(&mut bytes);
            kept.borrow_mut().push((to, bytes));
        }
        inner(to, frame)
    });
    (loses, taken)
}

/// Corrects the datagram's lengths and check.
fn vouch(bytes: &mut [u8]) {
    let behind_ip = (bytes.len() - 34) as u16;
    bytes[16..18].copy_from_slice(&(behind_ip + 20).to_be_bytes());
    bytes[38..40].copy_from_slice(&behind_ip.to_be_bytes());
    let body_at = HEADER_AT + HEADER_LEN;
    if let Some(header) = Header::read(&bytes[HEADER_AT..]) {
        let checked = header.write(&bytes[body_at..]);
        bytes[HEADER_AT..body_at].copy_from_slice(&checked);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 16,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn everything_arrives_once_and_in_order_on_any_path(
        seed in any::<u64>(),
        loss in 0.0..0.1_f64,
        mean in 1.0..20.0_f64,
        late in 0.0..0.1_f64,
        late_us in 1..3000_u64,
        duplication in 0.0..0.1_f64,
        corruption in 0.0..0.05_f64,
        rtt_us in 200..8000_u64,
        streams in 1..5_u32,
    ) {
        let late_by = Duration::from_us(late_us);
        let impairments = Impairments { late, late_by, duplication, corruption };
        let mut net = net(Parity::Always, fibre(10, rtt_us));
        // Each box knows the other's hosts; traffic for unknown hosts passes.
        transfer(&mut net, 5, 1, 1);
        net.fibres[0] = Link::new(LinkConfig { impairments, seed, ..fibre(10, rtt_us) }).unwrap();
        net.loses = Some(bursts(seed, loss, mean));
        transfer(&mut net, 10, streams, 1500);
        for host in &net.hosts {
            prop_assert_eq!(host.frames, 1 + 1500 * u64::from(streams), "each once");
        }
    }

    /// PARITY with contents that no box would send and a valid check: no panic, no frame that was
    /// not sent, none twice, and bounded memory.
    #[test]
    fn parity_of_anything_does_no_harm(seed in any::<u64>()) {
        let mut rng = SplitMix64::new(seed);
        let mut net = net(Parity::Always, fibre(10, 1000));
        let (loses, taken) = tap(seed, 0.03);
        net.loses = Some(loses);
        transfer(&mut net, 10, 2, 10_000);
        for round in 0..20 {
            let from = net.sources.iter().map(Vec::len).max().unwrap_or(0) as u32;
            prop_assert!(from > 0);
            for end in 0..2 {
                net.sources[end] = vec![Source::new(end as u8, 100 + round, 500, true, 200)];
            }
            for _ in 0..10 {
                net.run_for(Duration::from_us(rng.below(300)));
                let kept = taken.borrow().len() as u64;
                let place = kept - 1 - rng.below(kept.min(200));
                let (to, mut bytes) = taken.borrow()[place as usize].clone();
                for _ in 0..rng.below(3) {
                    // Number, shape, head block, body; not path and session.
                    let at =
                        HEADER_AT + [8, 11, 12, 13, 14, 15, 24, 28, 40, 90][rng.below(10) as usize];
                    bytes[at] = if rng.chance(0.5) {
                        rng.next_u64() as u8
                    } else {
                        bytes[at].wrapping_add(1)
                    };
                }
                if rng.chance(0.3) {
                    let least = HEADER_AT + HEADER_LEN;
                    bytes.truncate(least + rng.below((bytes.len() - least) as u64) as usize);
                }
                vouch(&mut bytes);
                net.strange.push_back((to, 1, bytes));
            }
            net.finish(Duration::from_ms(2000));
        }
        prop_assert!(repaired(&net) > 0);
        for node in &net.boxes {
            prop_assert!(node.counters().parity_unused > 0, "{:?}", node.counters());
            let session = node.sessions().next().unwrap();
            prop_assert!(session.parity_bytes <= HELD_MAX);
            prop_assert!(node.intake(0) > 0);
        }
    }
}
