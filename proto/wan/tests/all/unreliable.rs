//! UC, UD and CNPs between two boxes: delivered in order and once, within bounds, and never in
//! cleartext.

use crate::net::{Net, Source, config, host_path};
use longhaul_link::{Impairments, LinkConfig};
use longhaul_node::Node;
use longhaul_units::{BitRate, Duration};
use longhaul_wan::{Config, DropReason, INNER, Parity};
use longhaul_wire::{Opcode, Path, ROCEV2_PORT, Udp};
use std::cell::Cell;
use std::rc::Rc;

const UC_WRITE: &[Opcode] =
    &[Opcode::UC_WRITE_FIRST, Opcode::UC_WRITE_MIDDLE, Opcode::UC_WRITE_LAST];
const UC_SEND: &[Opcode] = &[Opcode::UC_SEND_FIRST, Opcode::UC_SEND_LAST, Opcode::UC_SEND_ONLY];
const UD_SEND: &[Opcode] = &[Opcode::UD_SEND_ONLY];
const RATE: Option<BitRate> = BitRate::from_gbps(1);

fn fibre(loss: f64) -> LinkConfig {
    let delay = Duration::from_ms(2);
    LinkConfig { delay, rate: RATE, loss, seed: 3, ..LinkConfig::default() }
}

/// Counts RoCE frames in cleartext between the boxes.
fn watch(net: &mut Net) -> Rc<Cell<u64>> {
    let seen = Rc::new(Cell::new(0));
    let count = Rc::clone(&seen);
    net.loses = Some(Box::new(move |_, frame| {
        let is_roce = Udp::find(frame.head)
            .is_some_and(|udp| udp.destination_port(frame.head) == ROCEV2_PORT);
        count.set(count.get() + u64::from(is_roce));
        false
    }));
    seen
}

#[test]
fn everything_arrives_once_and_in_order_whatever_the_path_does() {
    let impairments = Impairments {
        late: 0.02,
        late_by: Duration::from_ms(1),
        duplication: 0.02,
        corruption: 0.01,
    };
    for (parity, mtu_max) in [(Parity::Off, 4352), (Parity::Adaptive, 4352), (Parity::Always, 1500)]
    {
        let mut boxes = [1, 2].map(|id| Config { parity, ..config(id, 1, RATE) });
        boxes.iter_mut().for_each(|config| config.paths[0].mtu_max = mtu_max);
        let mut net = Net::new(boxes, vec![LinkConfig { impairments, ..fibre(0.03) }]);
        net.meet();
        let in_clear = watch(&mut net);
        for from in 0..2 {
            let source = |qpn, opcodes, len| Source::new(from, qpn, len, true, 2000).of(opcodes);
            net.sources[usize::from(from)] = vec![
                source(10, UC_WRITE, 4096),
                source(11, UC_SEND, 1000),
                source(12, UD_SEND, 2048),
                source(13, &[Opcode::RC_SEND_ONLY], 1024),
                source(14, &[Opcode::RC_SEND_ONLY, Opcode::CNP], 16),
            ];
            let each = Duration::from_us(200);
            let sources = std::mem::take(&mut net.sources[usize::from(from)]);
            net.sources[usize::from(from)] =
                sources.into_iter().map(|source| source.every(each)).collect();
        }
        net.finish(Duration::from_ms(10_000));
        assert_eq!(net.hosts.each_ref().map(|host| host.frames), [10_000; 2]);
        for node in &net.boxes {
            let counters = node.counters();
            assert!(counters.repeated + counters.repaired > 300, "{counters:?}");
            assert_eq!((counters.unpaced, counters.drops.get(DropReason::ShareFull)), (6000, 0));
        }
        assert!(in_clear.get() == 0, "{} frames in the clear", in_clear.get());
    }
}

#[test]
fn a_flood_is_bounded_and_takes_nothing_from_others() {
    let bytes_max = 1 << 20;
    let small = |id| Config {
        passthrough_bytes_max: bytes_max / 4,
        send_bytes_max: 4 * bytes_max,
        queue_bytes_max: 64 << 10,
        ..config(id, 1, RATE)
    };
    let mut net = Net::new([small(1), small(2)], vec![fibre(0.001)]);
    net.meet();
    net.hosts[1].is_strict = false;
    let other = Path { source_ip: [10, 0, 0, 77].into(), ..host_path(0) };
    net.sources[0] = vec![
        // 4 Gbit/s of UC into 1 Gbit/s.
        Source::new(0, 10, 4096, false, u64::MAX).of(UC_WRITE).every(Duration::from_us(8)),
        // 80 Mbit/s of UD from another host.
        Source::new(0, 11, 1000, false, 2000)
            .of(UD_SEND)
            .along(&other)
            .every(Duration::from_us(100)),
        Source::new(0, 12, 4096, false, u64::MAX).every(Duration::from_us(100)),
    ];
    net.run_for(Duration::from_ms(250));
    let counters = net.boxes[0].counters();
    assert!(counters.drops.get(DropReason::ShareFull) > 10_000, "{counters:?}");
    let session = net.boxes[0].sessions().next().unwrap();
    assert!(session.send_bytes_peak < 3 * bytes_max, "{session:?}");
    let next = &net.hosts[1].next;
    assert_eq!(next[&11], 2000, "the other host");
    assert!(next[&12] > 2300, "RC: {}", next[&12]);
    assert_eq!(net.hosts[1].went_back, 0, "none twice or out of order");
    // Of the flood itself, as much as the path has room for.
    assert!(net.hosts[1].frames > 6500, "{}", net.hosts[1].frames);
}

#[test]
fn multicast_and_what_has_no_far_box_pass() {
    let mut net = Net::of(fibre(0.0));
    net.meet();
    let (passed, asked) = (net.boxes[0].counters().passed, net.boxes[0].counters().hellos_sent);
    net.hosts[1].is_strict = false;
    for group in ["239.1.2.3", "255.255.255.255", "ff12::1"] {
        let group = group.parse::<std::net::IpAddr>().unwrap();
        let source_ip =
            if group.is_ipv4() { host_path(0).source_ip } else { "fd00::1".parse().unwrap() };
        let path = Path { source_ip, destination_ip: group, ..host_path(0) };
        let mut source = Source::new(0, 0xff_ffff, 512, true, 1).of(UD_SEND).along(&path);
        let (now, node) = (net.now, &mut net.boxes[0]);
        source.send(|frame| node.handle_frame(now, INNER, frame));
        net.run_for(Duration::from_ms(20));
    }
    let counters = net.boxes[0].counters();
    assert_eq!((counters.passed, counters.hellos_sent), (passed + 3, asked));
    assert_eq!(net.hosts[1].frames, 3);
    let mut alone = Net::of(fibre(0.0));
    alone.sources[0] = vec![Source::new(0, 10, 512, true, 1).of(UD_SEND)];
    alone.run_for(Duration::from_ms(5));
    assert_eq!((alone.hosts[1].frames, alone.boxes[0].counters().passed), (1, 1));
    assert!(alone.boxes[0].counters().hellos_sent > 0, "the far box is asked for");
}
