//! Two transports with seals before their paths: packets are delivered in order, and none of their
//! bytes cross readable.

use crate::line::{Line, packets, seal, transport};
use crate::net::give;
use longhaul_node::Chain;
use longhaul_seal::{Seal, Sealed};
use longhaul_units::Duration;
use longhaul_wan::{INNER, Transport};

type Both = Line<Sealed<Transport>, Sealed<Transport>>;

/// Which paths to the left box are up.
fn paths_up(line: &Both) -> Vec<bool> {
    let mut sessions = line.left.node().sessions();
    sessions
        .next()
        .map(|session| session.paths.iter().map(|path| path.is_up).collect())
        .unwrap_or_default()
}

#[test]
fn what_a_cut_path_carried_comes_by_the_other_while_keys_are_replaced() {
    let end = |n: u8| Sealed::new(transport(n, 2), seal(n, 0, 2));
    for cut in 0..2 {
        let mut line = Line::new(end(0), end(1), 2);
        line.meet(|line| paths_up(line) == [true, true]);
        let rekeys = |line: &Both| line.left.seal().unwrap().counters().rekeys;
        // Cut with frames in flight.
        for packet in &packets()[..200] {
            give(&mut line.left, line.now, INNER, packet);
        }
        line.run_for(Duration::from_us(500));
        line.is_cut[cut] = true;
        let before = rekeys(&line);
        line.run_for(Duration::from_ms(300));
        assert!(line.came == packets()[..200], "path {cut} is cut");
        assert_eq!(paths_up(&line), [cut == 1, cut == 0]);
        line.came.clear();
        line.send(&packets());
        assert!(rekeys(&line) > before + 1, "keys are replaced over the other path");
        // The path recovers without a handshake.
        line.is_cut[cut] = false;
        line.run_for(Duration::from_ms(300));
        assert_eq!(paths_up(&line), [true, true]);
        line.send(&packets());
        line.assert_sealed();
        let drops = line.right.seal().unwrap().counters().drops;
        assert_eq!(drops.get(longhaul_seal::DropReason::Unauthenticated), 0);
        assert_eq!(drops.get(longhaul_seal::DropReason::ClearRefused), 0);
    }
}

#[test]
fn boxes_find_each_other_by_whichever_path_works() {
    let end = |n: u8| Sealed::new(transport(n, 2), seal(n, 0, 2));
    let mut line = Line::new(end(0), end(1), 2);
    line.is_cut[0] = true;
    line.meet(|line| paths_up(line) == [false, true]);
    line.send(&packets());
    line.is_cut[0] = false;
    line.run_for(Duration::from_ms(500));
    assert_eq!(paths_up(&line), [true, true]);
    line.send(&packets());
    line.assert_sealed();
}

#[test]
fn several_paths_are_sealed_by_one() {
    let end = |n: u8| Sealed::new(transport(n, 2), seal(n, 0, 2));
    let mut line = Line::new(end(0), end(1), 2);
    let is_met = |line: &Both| {
        [&line.left, &line.right]
            .iter()
            .all(|end| end.node().sessions().any(|s| s.paths.iter().all(|p| p.is_up)))
    };
    line.carry(is_met);
    assert!(
        line.left.seal().unwrap().counters().rekeys >= 2,
        "{:#?}",
        line.left.seal().unwrap().counters()
    );
    // The far box restarts: both layers recover.
    line.right = Sealed::new(transport(1, 2), seal(1, 1, 2));
    line.run_for(Duration::from_ms(1000));
    line.carry(is_met);
    assert_eq!(
        line.left.seal().unwrap().counters().drops.get(longhaul_seal::DropReason::Unauthenticated),
        0
    );
}

#[test]
fn with_one_path_a_chain_does_the_same() {
    let end = |n: u8| Chain::new(Some(transport(n, 1)), Some(seal(n, 0, 1)));
    let mut line = Line::new(end(0), end(1), 1);
    type Row = Chain<Transport, Seal>;
    let is_met = |line: &Line<Row, Row>| {
        [&line.left, &line.right]
            .iter()
            .all(|end| end.left().unwrap().sessions().any(|s| s.is_open))
    };
    line.carry(is_met);
}
