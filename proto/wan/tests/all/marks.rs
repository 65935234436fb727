//! Congestion marks across the tunnel, and streams that do not reach the far box.

use crate::net::{Net, Source, config, host_path};
use longhaul_link::LinkConfig;
use longhaul_node::{Frame, Node};
use longhaul_units::{BitRate, Duration, Instant};
use longhaul_wan::{Config, DropReason, Parity, Seed, Transport};
use longhaul_wire::{Ecn, Path, Udp};
use std::cell::RefCell;
use std::rc::Rc;

fn net(parity: Parity, loss: f64) -> Net {
    let rate = BitRate::from_gbps(1);
    let fibre =
        LinkConfig { delay: Duration::from_ms(2), rate, loss, seed: 3, ..LinkConfig::default() };
    let mut net = Net::new([1, 2].map(|id| Config { parity, ..config(id, 1, rate) }), vec![fibre]);
    net.meet();
    net
}

/// A congestion mark from before the tunnel is delivered with its frame, however the frame was
/// repaired, and does not count as the path's.
#[test]
fn a_mark_from_before_the_tunnel_is_the_frames_own() {
    for (parity, loss) in [(Parity::Off, 0.02), (Parity::Always, 0.02)] {
        let mut net = net(parity, loss);
        let (class, marked) =
            (host_path(0).traffic_class, Path { traffic_class: 3, ..host_path(0) });
        assert_eq!(Ecn::of_traffic_class(class), Ecn::Capable);
        let each = Duration::from_us(100);
        let source = |qpn| Source::new(0, qpn, 1024, true, 2000).every(each);
        net.sources[0] = vec![source(10).along(&marked), source(11)];
        net.finish(Duration::from_ms(2000));
        let counters = net.boxes[1].counters();
        assert_eq!((net.hosts[1].frames, net.hosts[1].marked, counters.congested), (4000, 2000, 0));
        assert!(counters.repaired + net.boxes[0].counters().repeated > 50, "{counters:?}");
    }
}

/// Two far boxes share a site by a hash of UDP ports: streams that reach the other box soon pass
/// untunnelled.
#[test]
fn streams_that_another_box_gets_pass() {
    let mut net = net(Parity::Adaptive, 0.001);
    let other = Rc::new(RefCell::new(
        Transport::new(Config { box_id: 3, seed: Seed::of_scenario(3), ..Config::default() })
            .unwrap(),
    ));
    let hashed = Rc::clone(&other);
    net.loses = Some(Box::new(move |to, frame: &Frame<'_>| {
        let is_other = to == 1
            && Udp::find(frame.head).is_some_and(|udp| {
                udp.destination_port(frame.head) == 4797
                    && frame.head[udp.udp..udp.udp + 2] == [0xc0, 1]
            });
        if is_other {
            hashed.borrow_mut().handle_frame(Instant::from_ns(1000), 1, frame);
        }
        is_other
    }));
    net.hosts[1].is_strict = false;
    let strayed = Path { udp_source_port: 0xc001, ..host_path(0) };
    let each = Duration::from_us(100);
    net.sources[0] = vec![
        Source::new(0, 10, 1024, true, u64::MAX).every(each),
        Source::new(0, 11, 1024, true, u64::MAX).along(&strayed).every(each),
    ];
    net.run_for(Duration::from_ms(500));
    let counters = net.boxes[0].counters();
    assert_eq!(counters.streams_astray, 1, "{counters:?}");
    assert!(other.borrow().counters().drops.get(DropReason::UnknownSession) >= 64);
    let before = net.hosts[1].next.clone();
    net.run_for(Duration::from_ms(500));
    for qpn in [10, 11] {
        let came = net.hosts[1].next[&qpn] - before[&qpn];
        assert!((4990..5010).contains(&came), "stream {qpn}: {came} of 5000");
    }
    let session = net.boxes[0].sessions().next().unwrap();
    assert!(session.send_bytes < 1 << 20, "{session:?}");
}
