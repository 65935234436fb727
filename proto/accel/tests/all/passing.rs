//! Traffic that passes through a box whose path is slower than its LAN.

use longhaul_accel::{Accelerator, Config, DropReason, LAN, WAN};
use longhaul_node::{Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn};
use longhaul_wire::{Bth, Ecn, Head, MacAddr, Opcode, Path, PathTemplate};
use std::collections::VecDeque;

const RTT: Duration = Duration::from_ms(10);
const TCP_LEN: usize = 1514;
const PORT_BULK: u16 = 1;
const PORT_SPARSE: u16 = 2;

/// A TCP packet from `port` that carries the time `now`.
fn tcp(port: u16, ecn: u8, now: Instant, len: usize) -> Vec<u8> {
    let mut bytes = vec![2; len];
    bytes[12..24].copy_from_slice(&[8, 0, 0x45, ecn, 5, 220, 0, 1, 0x40, 0, 64, 6]);
    bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[34..36].copy_from_slice(&port.to_be_bytes());
    bytes[54..62].copy_from_slice(&now.as_ps().to_be_bytes());
    bytes
}

/// The WAN: what arrives there, with the time that each packet waited.
#[derive(Default)]
struct Path1G {
    now: Instant,
    bulk: VecDeque<(Instant, Ecn)>,
    sojourn_max: [Duration; 3],
    roce: u64,
}

impl Transmit for Path1G {
    fn room(&mut self, _: Side) -> usize {
        usize::MAX
    }
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        assert_eq!(side, WAN);
        if !frame.trailer.is_empty() {
            assert_ne!(Ecn::of(frame.head), Some(Ecn::Congested), "RoCE is not marked");
            self.roce += 1;
            return;
        }
        let port = u16::from_be_bytes([frame.head[34], frame.head[35]]);
        let stamp = frame.head[54..62].try_into().unwrap();
        let sojourn = self.now.since(Instant::from_ps(u64::from_be_bytes(stamp)));
        let max = &mut self.sojourn_max[usize::from(port)];
        if self.now > Instant::ZERO + Duration::from_ms(3000) {
            *max = sojourn.max(*max);
        }
        if port == PORT_BULK {
            self.bulk.push_back((self.now + RTT, Ecn::of(frame.head).unwrap()));
        }
    }
}

struct Outcome {
    /// Bulk packets delivered, as a share of the path's.
    bulk: f64,
    path: Path1G,
    roce_sent: u64,
    late: [u64; 2],
}

/// Lets a greedy TCP-like sender share a box at 1 Gbit/s with a sparse flow and, if `with_roce`,
/// with a burst of 4 MB of plain RoCE every 100 ms, for 10 s.
fn run(ecn: u8, with_roce: bool) -> Outcome {
    let wan_pacing = BitRate::from_gbps(1).into();
    let mut accelerator = Accelerator::new(Config { wan_pacing, ..Config::default() }).unwrap();
    let template = PathTemplate::new(&Path {
        source_mac: MacAddr([2; 6]),
        destination_mac: MacAddr([4; 6]),
        vlan: None,
        source_ip: [10, 0, 0, 1].into(),
        destination_ip: [10, 0, 0, 2].into(),
        traffic_class: Ecn::ECT_0,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc000,
    });
    let payload = [7; 1024];
    let mut path = Path1G::default();
    let (mut window, mut in_flight, mut reduced_at) = (10.0_f64, 0_u64, Instant::ZERO);
    let (mut delivered, mut roce_sent) = (0_u64, 0_u64);
    let drops =
        |accelerator: &Accelerator| accelerator.counters().drops.get(DropReason::QueueDelay);
    for tick in 0..100_000_u64 {
        let now = Instant::ZERO + Duration::from_us(100 * tick);
        path.now = now;
        let mut signalled = false;
        while path.bulk.front().is_some_and(|(at, _)| *at <= now) {
            let (_, mark) = path.bulk.pop_front().unwrap();
            signalled |= mark == Ecn::Congested;
            in_flight -= 1;
            delivered += 1;
            window += if reduced_at == Instant::ZERO { 1.0 } else { 0.01 };
        }
        while in_flight < window as u64 {
            let packet = tcp(PORT_BULK, ecn, now, TCP_LEN);
            accelerator.handle_frame(now, LAN, &Frame::opaque(&packet));
            in_flight += 1;
        }
        if tick % 100 == 0 {
            let packet = tcp(PORT_SPARSE, 0, now, 100);
            accelerator.handle_frame(now, LAN, &Frame::opaque(&packet));
        }
        if with_roce && tick % 1000 == 0 {
            for _ in 0..4000 {
                let bth = Bth::new(Opcode::UC_SEND_ONLY, Qpn::new(7), Psn::new(1));
                let mut head = Head::begin(&template, &bth);
                head.finish(&template, payload.len());
                let (payload, trailer) = (Payload::Bytes(&payload), Trailer::Sealed { pad_len: 0 });
                accelerator.handle_frame(now, LAN, &Frame { head: head.bytes(), payload, trailer });
                roce_sent += 1;
            }
        }
        let before = drops(&accelerator);
        accelerator.handle_timeout(now);
        accelerator.poll_transmit(now, &mut path);
        let dropped = drops(&accelerator) - before;
        in_flight -= dropped;
        if (signalled || dropped > 0) && now.since(reduced_at) > RTT {
            (window, reduced_at) = ((window * 0.7).max(2.0), now);
        }
    }
    // Everything that still waits leaves.
    path.now = Instant::ZERO + Duration::from_ms(10_000);
    while let Some(deadline) = accelerator.poll_timeout() {
        path.now = deadline.at.max(path.now + Duration::from_ps(1));
        accelerator.handle_timeout(path.now);
        accelerator.poll_transmit(path.now, &mut path);
    }
    let counters = accelerator.counters();
    assert_eq!(counters.drops.get(DropReason::QueueFull), 0);
    let late = [counters.drops.get(DropReason::QueueDelay), counters.passed_marked];
    let bulk = (delivered * (TCP_LEN as u64 + 24)) as f64 / 1.25e9;
    Outcome { bulk, path, roce_sent, late }
}

#[test]
fn a_greedy_sender_fills_the_path_without_a_long_queue() {
    for ecn in [0, Ecn::ECT_0] {
        let Outcome { bulk, path, late: [dropped, marked], .. } = run(ecn, false);
        assert!(bulk > 0.9, "{bulk}");
        let max = path.sojourn_max[usize::from(PORT_BULK)];
        assert!(max < Duration::from_ms(25), "{max:?}");
        let sparse = path.sojourn_max[usize::from(PORT_SPARSE)];
        assert!(
            sparse < Duration::from_ms(2),
            "a flow that sends little does not wait: {sparse:?}"
        );
        assert!((dropped > 0) == (ecn == 0) && (marked > 0) == (ecn != 0), "{dropped} {marked}");
    }
}

#[test]
fn plain_roce_loses_nothing_and_delays_no_other_traffic() {
    let Outcome { bulk, path, roce_sent, .. } = run(0, true);
    assert_eq!(path.roce, roce_sent);
    let sparse = path.sojourn_max[usize::from(PORT_SPARSE)];
    assert!(sparse < Duration::from_ms(2), "{sparse:?}");
    // RoCE needs a third of the path.
    assert!(bulk > 0.5, "{bulk}");
}
