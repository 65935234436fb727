//! An attacker tries to make the boxes continue in cleartext, or with weaker protection.

use crate::attacker::{Crossing, Power, shared};
use crate::fleet::plan::Mix;
use crate::forge::{AT, BOX_PORT};
use crate::stage::{Keys, Stage, boxes, setup};
use longhaul_seal::DropReason;
use longhaul_units::{Duration, Instant};
use longhaul_wire::Udp;

fn is_for_boxes(crossing: &Crossing) -> bool {
    let bytes = &crossing.bytes;
    Udp::find(bytes).is_some_and(|udp| udp.destination_port(bytes) == BOX_PORT)
}

/// Nothing to the boxes' port passes between the two times.
fn blocked(keys: Keys, from_ms: u64, to_ms: u64) -> Stage {
    let [from, to] = [from_ms, to_ms].map(|ms| Instant::ZERO + Duration::from_ms(ms));
    let power = Power::Drop(Box::new(move |now, crossing| {
        is_for_boxes(crossing) && now >= from && now < to
    }));
    let mut setup = setup(2, boxes(keys));
    // NICs with longer timeouts than the attack: otherwise they would fail by themselves.
    setup.nic.timeout = 18;
    setup.mix = Mix::SendsAndWrites;
    setup.messages = 1000;
    Stage::new(&setup, power)
}

#[test]
fn who_drops_what_is_sealed_gets_nothing_in_the_clear() {
    let mut stage = blocked(Keys::With, 300, 4300);
    let outcome = stage.fleet.run();
    stage.assert_closed();
    stage.assert_unharmed(&outcome);
    assert!(outcome.ended > Duration::from_ms(4300), "{}", outcome.ended);
    let dropped = [0, 1].map(|site| stage.seal_dropped(site, DropReason::ClearRdmaOut));
    assert!(dropped.iter().all(|dropped| *dropped > 0), "{dropped:?}");
}

#[test]
fn who_blocks_the_port_from_the_first_gets_nothing_in_the_clear() {
    let mut stage = blocked(Keys::With, 0, 3000);
    stage.run_for(Duration::from_ms(3000));
    stage.assert_closed();
    for site in [0, 1] {
        assert!(stage.seal_dropped(site, DropReason::ClearRdmaOut) > 10);
        assert!(stage.transport(site).counters().delivered == 0);
    }
    stage.assert_bounded();
}

/// Equal to RoCE without boxes: nothing stops for it.
#[test]
fn without_keys_who_drops_what_is_tunnelled_gets_what_he_would_without_boxes() {
    let mut stage = blocked(Keys::Without, 300, 4300);
    let outcome = stage.fleet.run();
    stage.assert_unharmed(&outcome);
    assert!(stage.tally.borrow().in_the_clear > 100);
    for site in [0, 1] {
        let counters = stage.transport(site).counters();
        assert!(counters.path_outages > 0 && counters.sessions_closed > 0 && counters.passed > 100);
    }
}

/// Number of handshake messages that the attacker changes.
const CHANGES: usize = 24;

/// Another version, cipher, cookie or key: the attacker changes one byte of each handshake message
/// for a while, at every position.
#[test]
fn who_changes_handshakes_gets_no_keys_and_no_lesser_ones() {
    let changed = shared(0_usize);
    let count = changed.clone();
    let power = Power::Write(Box::new(move |_, mut crossing| {
        let kind = crossing.bytes.get(AT + 1).map(|byte| byte >> 4);
        let mut changed = count.borrow_mut();
        // ANSWER, INIT and RESPONSE, with a different byte changed in each.
        if is_for_boxes(&crossing) && matches!(kind, Some(3..=5)) && *changed < CHANGES {
            *changed += 1;
            let body = crossing.bytes.len() - AT - 16;
            crossing.bytes[AT + 16 + *changed * 7 % body] ^= 1;
        }
        vec![crossing]
    }));
    let mut setup = setup(4, boxes(Keys::With));
    setup.nic.timeout = 18;
    setup.limits.seal = |seal| {
        (seal.ask_every, seal.ask_pause) = (Duration::from_ms(20), Duration::from_ms(50));
    };
    let mut stage = Stage::new(&setup, power);
    for _ in 0..1000 {
        stage.run_for(Duration::from_ms(5));
        if *changed.borrow() < CHANGES {
            assert!((0..2).all(|site| stage.transport(site).counters().delivered == 0));
        }
    }
    assert_eq!(*changed.borrow(), CHANGES);
    stage.assert_closed();
    let outcome = stage.fleet.run();
    stage.assert_unharmed(&outcome);
    let by = |reason| [0, 1].map(|site| stage.seal_dropped(site, reason)).iter().sum::<u64>();
    let named =
        [DropReason::HandshakeForged, DropReason::HandshakeCookie, DropReason::NoPeer].map(by);
    assert!(named.iter().sum::<u64>() > 10, "{named:?}");
}
