//! No received frame makes the accelerator panic, leak, or exceed its memory limits.

use crate::script::frames::Wire;
use crate::script::{Sink, deliver};
use longhaul_accel::{Accelerator, Config, LAN, WAN};
use longhaul_node::{Frame, Node, Payload, Trailer};
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use proptest::prelude::*;

const LINES: &[(usize, &str)] = &[
    (LAN, "req psn=100 mtu=1024"),
    (WAN, "rep psn=100 mtu=1024"),
    (LAN, "rtu"),
    (LAN, "dreq"),
    (WAN, "drep"),
    (LAN, "drep"),
    (LAN, "send_only PSN A"),
    (LAN, "write_only PSN A"),
    (LAN, "write_only PSN A len=0"),
    (LAN, "write_first PSN"),
    (LAN, "write_last PSN A"),
    (LAN, "read PSN A dma=3000"),
    (LAN, "read PSN A dma=4294967295"),
    (LAN, "atomic PSN A"),
    (WAN, "ack PSN msn=3"),
    (WAN, "ack PSN msn=1 credits=4"),
    (WAN, "nak PSN sequence msn=1"),
    (WAN, "nak PSN access msn=1"),
    (WAN, "rnr PSN timer=1 msn=1"),
    (WAN, "read_first PSN msn=1"),
    (WAN, "read_middle PSN"),
    (WAN, "read_last PSN msn=1"),
    (WAN, "read_only PSN msn=1"),
    (WAN, "atomic_ack PSN msn=1"),
    (WAN, "write_only PSN A"),
];

fn small() -> Config {
    Config {
        flow_bytes_max: 128 << 10,
        total_bytes_max: 256 << 10,
        passthrough_bytes_max: 64 << 10,
        flows_max: 4,
        connections_max: 2,
        give_up_after: Duration::from_ms(300),
        ..Config::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Valid frames in any order with any nearby PSN, some with flipped bits, some truncated, some
    /// on the wrong side.
    #[test]
    fn any_order_of_any_frames(seed in any::<u64>()) {
        let mut rng = SplitMix64::new(seed);
        let mut node = Accelerator::new(small()).expect("valid");
        let mut wire = Wire::default();
        let mut now = Instant::from_ns(1000);
        for _ in 0..400 {
            wire.responder_qpn = 0x22 + rng.below(6) as u32 / 5;
            let (mut side, line) = LINES[rng.below(LINES.len() as u64) as usize];
            let psn = if rng.chance(0.02) {
                rng.next_u64() as u32 & 0xff_ffff
            } else {
                100 + rng.below(40) as u32
            };
            let line = line.replace("PSN", &psn.to_string());
            let mut bytes =
                if side == LAN { wire.requester_frame(&line) } else { wire.responder_frame(&line) };
            if rng.chance(0.05) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << rng.below(8);
            }
            if rng.chance(0.05) {
                bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
            }
            if rng.chance(0.05) {
                side = 1 - side;
            }
            deliver(&mut node, now, side, &bytes);
            if rng.chance(0.5) {
                node.poll_transmit(
                    now,
                    &mut Sink { room: Some(rng.below(4) as usize), ..Sink::default() },
                );
            }
            if rng.chance(0.3) {
                now += Duration::from_us(rng.below(50_000));
                node.handle_timeout(now);
            }
            prop_assert!(node.stored_bytes() <= 256 << 10);
            prop_assert!(node.flows().count() <= 4);
            let sum: u64 = node.flows().map(|flow| flow.stored_bytes).sum();
            prop_assert_eq!(node.stored_bytes(), sum);
        }
    }

    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300), side in 0..2_usize) {
        let mut node = Accelerator::new(small()).expect("valid");
        deliver(&mut node, Instant::from_ns(1), side, &bytes);
        node.poll_transmit(Instant::from_ns(1), &mut Sink::default());
    }
}

#[test]
fn frames_too_long_to_keep_are_dropped_with_a_reason() {
    let mut node = Accelerator::new(small()).expect("valid");
    let payload = vec![0; (16 << 10) + 1];
    let frame = Frame { head: &[0; 14], payload: Payload::Bytes(&payload), trailer: Trailer::None };
    node.handle_frame(Instant::ZERO, LAN, &frame);
    assert_eq!(node.counters().drops.get(longhaul_accel::DropReason::Oversized), 1);
}

#[test]
fn a_configuration_out_of_range_is_refused_by_name() {
    let error = Accelerator::new(Config { ack_every: 0, ..Config::default() }).unwrap_err();
    assert_eq!(error.to_string(), "ack_every is 0; it must lie between 1 and 128");
}
