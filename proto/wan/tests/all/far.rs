//! Configured far boxes: one HELLO per site, none for unconfigured addresses, and traffic to
//! unreachable boxes passes.

use crate::net::{Net, Source, config, host_path};
use longhaul_link::LinkConfig;
use longhaul_node::{Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn};
use longhaul_wan::{Config, FarBox, INNER, Transport};
use longhaul_wire::{Bth, Head, Opcode, PathTemplate, Udp};
use std::net::IpAddr;

fn far(prefix: &str, via: Option<&str>) -> FarBox {
    FarBox { prefix: prefix.parse().unwrap(), via: via.map(|via| via.parse().unwrap()) }
}

/// A node that is given frames for hosts, with the destinations of its HELLOs and of the frames.
#[derive(Default)]
struct Seen {
    asked: Vec<IpAddr>,
    passed: Vec<IpAddr>,
}

impl Transmit for Seen {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }
    fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
        let udp = Udp::find(frame.head).unwrap();
        let to = udp.path(frame.head).destination_ip;
        let is_question = udp.destination_port(frame.head) == 4797;
        if is_question { self.asked.push(to) } else { self.passed.push(to) }
    }
}

fn give(node: &mut Transport, now: Instant, to: &str) -> Seen {
    let template = PathTemplate::new(&longhaul_wire::Path {
        destination_ip: to.parse().unwrap(),
        ..host_path(0)
    });
    let mut head =
        Head::begin(&template, &Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(9), Psn::new(0)));
    let pad_len = head.finish(&template, 64);
    let trailer = Trailer::Sealed { pad_len };
    node.handle_frame(
        now,
        INNER,
        &Frame { head: head.bytes(), payload: Payload::Bytes(&[1; 64]), trailer },
    );
    node.handle_timeout(now);
    let mut seen = Seen::default();
    node.poll_transmit(now, &mut seen);
    seen
}

#[test]
fn one_question_stands_for_a_site() {
    let far = vec![far("10.2.0.0/16", Some("192.0.2.7")), far("10.3.0.0/16", None)];
    let mut node =
        Transport::new(Config { far, asks_others: false, ..config(1, 1, None) }).unwrap();
    let now = Instant::ZERO;
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(give(&mut node, now, "10.2.0.1").asked, [ip("192.0.2.7")]);
    for host in ["10.2.0.1", "10.2.200.9"] {
        let seen = give(&mut node, now, host);
        assert_eq!(
            (seen.asked, seen.passed),
            (vec![], vec![ip(host)]),
            "it passes until there is an answer"
        );
    }
    assert_eq!(give(&mut node, now, "10.3.0.1").asked, [ip("10.3.0.1")]);
    assert_eq!(give(&mut node, now, "10.3.0.2").asked, [ip("10.3.0.2")], "each by itself");
    let seen = give(&mut node, now, "10.9.0.1");
    assert_eq!(
        (seen.asked, seen.passed),
        (vec![], vec![ip("10.9.0.1")]),
        "no far box is configured"
    );
    // Nobody answers.
    for tick in 1..20 {
        node.handle_timeout(now + Duration::from_ms(tick * 250));
    }
    let status = node.far();
    assert!(status.iter().all(|far| far.is_silent && far.reached.is_empty()), "{status:?}");
}

fn met(of_near: Vec<FarBox>) -> Net {
    let fibre = LinkConfig {
        delay: Duration::from_ms(1),
        rate: BitRate::from_gbps(10),
        ..LinkConfig::default()
    };
    let near = Config { far: of_near, asks_others: false, ..config(1, 1, fibre.rate) };
    let mut net = Net::new([near, config(2, 1, fibre.rate)], vec![fibre]);
    net.meet();
    net
}

#[test]
fn a_site_is_reached_by_the_answer_at_its_address() {
    let mut net = met(vec![far("10.0.0.0/16", Some("10.0.77.1"))]);
    net.sources[0] = vec![Source::new(0, 10, 1000, true, 500)];
    net.sources[1] = vec![Source::new(1, 10, 1000, true, 500)];
    net.finish(Duration::from_ms(500));
    assert_eq!(net.boxes[0].counters().hellos_sent, 2, "asked and opened");
    let status = net.boxes[0].far();
    assert_eq!((&status[0].reached[..], status[0].is_silent), (&[2][..], false));
}

#[test]
fn what_is_not_configured_passes_beside_a_session() {
    // The far box finds this one by a HELLO and opens a session, which still serves none of the
    // addresses that hosts here send to.
    let fibre = LinkConfig { delay: Duration::from_ms(1), ..LinkConfig::default() };
    let near =
        Config { far: vec![far("172.16.0.0/12", None)], asks_others: false, ..config(1, 1, None) };
    let mut net = Net::new([near, config(2, 1, None)], vec![fibre]);
    net.sources[1] = vec![Source::new(1, 10, 1000, true, 50).every(Duration::from_ms(2))];
    net.run_for(Duration::from_ms(200));
    assert!(net.boxes[0].sessions().any(|session| session.is_open));
    let before = *net.boxes[0].counters();
    net.sources[0] = vec![Source::new(0, 10, 1000, true, 50)];
    net.finish(Duration::from_ms(500));
    let after = net.boxes[0].counters();
    assert_eq!((after.tunnelled - before.tunnelled, after.passed - before.passed), (0, 50));
}
