//! With keys, no RDMA crosses the WAN in cleartext, whatever the path does, and none is accepted
//! from it.

use crate::line::{Line, is_to, packet_along, seal, transport};
use crate::net;
use crate::net::{config, drain, give, host_path, key};
use longhaul_seal::{
    Cleartext, Config, DropReason, NoKeys, PeerConfig, PresharedKey, Seal, Sealed, Seed, Trouble,
};
use longhaul_units::{Duration, Instant};
use longhaul_wan::{INNER, Transport};
use longhaul_wire::{Opcode, Path};

const ROCE: u16 = 4791;
const BOXES: u16 = 4797;

type Both = Line<Sealed<Transport>, Sealed<Transport>>;

fn line_of(boxes: [Config; 2]) -> Both {
    let [left, right] = boxes.map(|config| Seal::new(config).unwrap());
    Line::new(Sealed::new(transport(0, 1), left), Sealed::new(transport(1, 1), right), 1)
}

fn line() -> Both {
    let end = |n: u8| Sealed::new(transport(n, 1), seal(n, 0, 1));
    Line::new(end(0), end(1), 1)
}

/// A host behind the left box sends `count` packets along `path`, one per 100 µs.
fn talk(line: &mut Both, path: &Path, count: u64) {
    for place in 0..count {
        give(&mut line.left, line.now, INNER, &packet_along(path, Opcode::RC_SEND_ONLY, 9, place));
        line.run_for(Duration::from_us(100));
    }
}

fn in_the_clear(line: &Both) -> usize {
    line.crossed.iter().filter(|bytes| is_to(bytes, ROCE)).count()
}

fn dropped(node: &Sealed<Transport>, reason: DropReason) -> u64 {
    node.seal().unwrap().counters().drops.get(reason)
}

fn opened(node: &Sealed<Transport>) -> u64 {
    node.seal().unwrap().counters().opened
}

#[test]
fn the_first_packets_wait_for_the_keys_and_those_to_a_new_address_for_an_answer() {
    let mut line = line();
    line.fibres = vec![longhaul_link::Link::new(net::fibre()).unwrap()];
    let mut expected = Vec::new();
    for address in ["10.0.1.1", "10.0.1.9"] {
        let path = Path { destination_ip: address.parse().unwrap(), ..host_path(0) };
        let began = line.now;
        talk(&mut line, &path, 500);
        expected.extend((0..500).map(|place| packet_along(&path, Opcode::RC_SEND_ONLY, 9, place)));
        line.run_for(Duration::from_ms(20));
        assert!(
            line.came == expected,
            "{address}: {} of {} since {began:?}",
            line.came.len(),
            expected.len()
        );
        assert_eq!(in_the_clear(&line), 0, "{address}");
    }
    // Keys take two round trips of 2 ms, and the session as many; the second address takes one
    // round trip for each.
    let waited = line.left.node().counters().waited;
    assert!((80..=140).contains(&waited), "{waited} packets waited, one each 100 us");
    assert_eq!(line.left.seal().unwrap().counters().drops.total(), 0);
}

#[test]
fn who_drops_what_is_sealed_stops_a_flow_and_never_sees_it() {
    let mut line = line();
    line.meet(|line| line.left.node().sessions().any(|session| session.is_open));
    talk(&mut line, &host_path(0), 500);
    line.drops_port = Some(BOXES);
    line.crossed.clear();
    // Long after the end of the session.
    talk(&mut line, &host_path(0), 60_000);
    assert_eq!(in_the_clear(&line), 0);
    assert_eq!(line.left.node().sessions().count(), 0);
    assert!(dropped(&line.left, DropReason::ClearRdmaOut) > 10_000);
    // Sealed traffic resumes when the attack ends.
    line.drops_port = None;
    line.run_for(Duration::from_ms(11_000));
    line.came.clear();
    talk(&mut line, &host_path(0), 10_000);
    assert!(line.came.len() > 5000, "{}", line.came.len());
    assert_eq!(in_the_clear(&line), 0);
}

#[test]
fn nothing_leaves_while_the_port_of_the_boxes_is_blocked() {
    let mut line = line();
    line.drops_port = Some(BOXES);
    talk(&mut line, &host_path(0), 20_000);
    let back = packet_along(&host_path(1), Opcode(0x11), 9, 0);
    give(&mut line.right, line.now, INNER, &back);
    line.run_for(Duration::from_ms(2000));
    assert_eq!(in_the_clear(&line), 0);
    assert!(dropped(&line.left, DropReason::ClearRdmaOut) > 0);
    assert_eq!(dropped(&line.right, DropReason::ClearRdmaOut), 1);
}

#[test]
fn no_kind_of_rdma_leaves_in_the_clear_with_a_session_or_without() {
    // Opcodes of each transport, and a CNP.
    let opcodes = [0x00, 0x04, 0x0c, 0x11, 0x20, 0x24, 0x64, 0x65, 0x81, 0xff].map(Opcode);
    let mut line = line();
    for round in 0..200 {
        for opcode in opcodes {
            for qpn in [1, 9] {
                let packets = [0, 1].map(|from| packet_along(&host_path(from), opcode, qpn, round));
                give(&mut line.left, line.now, INNER, &packets[0]);
                give(&mut line.right, line.now, INNER, &packets[1]);
            }
        }
        line.run_for(Duration::from_ms(10));
    }
    assert!(line.left.node().sessions().any(|session| session.is_open));
    assert_eq!(in_the_clear(&line), 0);
    assert!(line.came.len() > 500);
}

#[test]
fn rdma_in_the_clear_is_taken_from_nobody() {
    let mut line = line();
    line.meet(|line| line.left.node().sessions().any(|session| session.is_open));
    talk(&mut line, &host_path(0), 100);
    line.run_for(Duration::from_ms(100));
    line.came.clear();
    // The packet that the responder expects, an ACK for the requester, and one from a stranger.
    let stranger = Path { source_ip: "10.0.7.1".parse().unwrap(), ..host_path(0) };
    for path in [host_path(0), stranger] {
        give(&mut line.right, line.now, 1, &packet_along(&path, Opcode::RC_SEND_ONLY, 9, 100));
    }
    give(&mut line.left, line.now, 1, &packet_along(&host_path(1), Opcode(0x11), 9, 99));
    let to_hosts =
        drain(&mut line.left, line.now).into_iter().filter(|(side, _)| *side == INNER).count();
    line.run_for(Duration::from_ms(10));
    assert_eq!((line.came.len(), to_hosts), (0, 0));
    assert_eq!(dropped(&line.right, DropReason::ClearRdmaIn), 2);
    assert_eq!(dropped(&line.left, DropReason::ClearRdmaIn), 1);
}

/// Whether a box with this rule passes a packet in each direction, while no far box answers.
fn passes(cleartext: Cleartext) -> [bool; 2] {
    let transport = longhaul_wan::Config { box_id: 1, ..Default::default() };
    let sealing = Seal::new(Config { cleartext, ..config(0, 0) }).unwrap();
    let mut node = Sealed::new(Transport::new(transport).unwrap(), sealing);
    let (out, back) =
        ([0, 1].map(|n| packet_along(&host_path(n), Opcode::RC_SEND_ONLY, 9, 0))).into();
    give(&mut node, Instant::ZERO, INNER, &out);
    give(&mut node, Instant::ZERO, 1, &back);
    let seen = drain(&mut node, Instant::ZERO);
    [seen.contains(&(1, out)), seen.contains(&(INNER, back))]
}

#[test]
fn rdma_passes_where_the_configuration_allows_it() {
    let of = |prefix: &str| Cleartext::Of(vec![prefix.parse().unwrap()]);
    assert_eq!(passes(Cleartext::Of(vec![])), [false; 2]);
    assert_eq!(passes(of("10.0.1.0/24")), [true; 2]);
    // Prefixes of this site allow nothing.
    assert_eq!(passes(of("10.0.0.0/24")), [false; 2]);
    assert_eq!(passes(Cleartext::Any), [true; 2]);
}

/// Configurations of two boxes, and the exact troubles that each then reports.
fn troubles(boxes: [Config; 2]) -> [Vec<Trouble>; 2] {
    let mut line = line_of(boxes);
    for round in 0..300 {
        for from in [0, 1] {
            let bytes = packet_along(&host_path(from), Opcode::RC_SEND_ONLY, 9, round);
            if from == 0 {
                give(&mut line.left, line.now, INNER, &bytes);
            } else {
                give(&mut line.right, line.now, INNER, &bytes);
            }
        }
        line.run_for(Duration::from_ms(100));
    }
    assert_eq!(in_the_clear(&line), 0);
    assert_eq!(opened(&line.left) + opened(&line.right) > 0, line.came.len() > 100);
    [&line.left, &line.right].map(|node| node.seal().unwrap().troubles(line.now))
}

fn with_peer(n: u8, change: impl Fn(&mut PeerConfig)) -> Config {
    let mut config = config(n, 0);
    change(&mut config.peers[0]);
    config
}

#[test]
fn a_wrong_key_is_one_trouble_at_either_end_and_right_ones_are_none() {
    let of_peer = |n: u8, why| vec![Trouble::Peer { name: format!("box {n}"), why }];
    assert_eq!(troubles([config(0, 0), config(1, 0)]), [vec![], vec![]]);
    let wrong = with_peer(0, |peer| peer.public_key = key(50).public());
    let address = "10.0.1.1".parse().unwrap();
    assert_eq!(
        troubles([wrong, config(1, 0)]),
        [vec![Trouble::UnknownKey { address }], of_peer(0, NoKeys::Unanswered)]
    );
}

#[test]
fn another_preshared_key_is_one_trouble_at_either_end() {
    let shared = |n: u8, secret: u8| {
        let config = with_peer(n, |peer| {
            peer.preshared_key = Some(PresharedKey::generate(&Seed::new([secret; 32])));
        });
        // Another handshake starts before the last one's keys have expired.
        Config { ask_pause: Duration::from_ms(1000), ..config }
    };
    assert_eq!(troubles([shared(0, 60), shared(1, 60)]), [vec![], vec![]]);
    for boxes in [[shared(0, 60), shared(1, 61)], [shared(0, 60), config(1, 0)]] {
        for (n, told) in (0..).zip(troubles(boxes)) {
            let [Trouble::Peer { name, why }] = &told[..] else { panic!("{told:?}") };
            assert_eq!(*name, format!("box {}", 1 - n));
            assert!(
                matches!(why, NoKeys::PresharedKey | NoKeys::Unfinished | NoKeys::Unanswered),
                "{why:?}"
            );
        }
    }
}
