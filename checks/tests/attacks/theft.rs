//! An attacker tries to take over the session of two boxes, or its traffic.

use crate::attacker::{OWN, Power, shared};
use crate::fleet::{Setup, address_of};
use crate::forge::{self, AT, control, header_of, path, tunnelled};
use crate::stage::{Keys, Stage, boxes, setup};
use crate::stranger::Stranger;
use longhaul_units::{Duration, Psn, Qpn};
use longhaul_wan::Seed;
use longhaul_wan::format::{DatagramKind, HEADER_LEN, Header, Ping};

/// The hosts start after the attacker has had time.
fn late(keys: Keys) -> Setup {
    Setup { stagger: Duration::from_ms(800), ..setup(LATE, boxes(keys)) }
}

/// In this run no queue pair starts in the first 50 ms.
const LATE: u64 = 5;

/// Waits until both boxes have sessions with the strangers.
fn let_in(stage: &mut Stage, strangers: &mut [Stranger]) {
    for _ in 0..40 {
        strangers.iter_mut().for_each(|stranger| stranger.turn(stage));
        stage.run_for(Duration::from_ms(1));
    }
    assert!(strangers.iter().all(|stranger| stranger.accepted.is_some()), "they were let in");
    assert!((0..2).all(|site| stage.transport(site).counters().inner_frames_in == 0), "first");
    for stranger in strangers {
        // A frame arrives by each session, to a QP that does not exist.
        let frame =
            forge::send(&path(OWN, address_of(stranger.target)), Qpn::new(0x99), Psn::new(1), &[7]);
        let header = Header::new(DatagramKind::Data, stranger.accepted.expect("let in"));
        let header = Header { stream: 9, number: 1000, ..header };
        let before = stage.transport(stranger.target).counters().delivered;
        stage.send(stranger.target, tunnelled(&frame, &header));
        stage.run_for(Duration::from_ms(5));
        assert_eq!(stage.transport(stranger.target).counters().delivered, before + 1);
    }
}

#[test]
fn who_uses_the_number_of_a_box_that_answers_gets_no_session() {
    let run = 1;
    let mut stage = Stage::with(Keys::Without, Power::Send);
    let mut stranger = Stranger::in_the_name_of_the_other(1, run);
    let outcome = stage.attacked(|stage| stranger.turn(stage));
    stage.assert_unharmed(&outcome);
    assert_eq!(stranger.accepted, None);
    assert!(stage.transport_dropped(1, longhaul_wan::DropReason::SessionStands) > 0);
    assert!((0..2).all(|site| stage.transport(site).counters().sessions_closed == 0));
}

#[test]
fn who_comes_first_in_the_name_of_a_box_loses_it_to_the_box() {
    for target in [0, 1] {
        let mut stage = Stage::new(&late(Keys::Without), Power::Send);
        let mut strangers = [Stranger::in_the_name_of_the_other(target, LATE)];
        let_in(&mut stage, &mut strangers);
        let outcome = stage.attacked_from_the_first(|stage| strangers[0].turn(stage));
        stage.assert_unharmed(&outcome);
        let counters = stage.transport(target).counters();
        assert!(counters.sessions_displaced > 0, "{counters:#?}");
    }
}

#[test]
fn who_has_a_session_of_his_own_serves_no_host_of_others() {
    for target in [0, 1] {
        let mut stage = Stage::new(&late(Keys::Without), Power::Send);
        let mut strangers = [Stranger::new(target, 666, Seed::of_scenario(666))];
        let_in(&mut stage, &mut strangers);
        // A frame by the attacker's session, from the host beyond the other box.
        let way = path(address_of(1 - target), address_of(target));
        let frame = forge::send(&way, Qpn::new(0x99), Psn::new(1), &[7; 64]);
        let header = Header::new(DatagramKind::Data, strangers[0].accepted.expect("let in"));
        let header = Header { stream: 8, number: 1001, ..header };
        let before = stage.transport(target).counters().delivered;
        stage.send(target, tunnelled(&frame, &header));
        stage.run_for(Duration::from_ms(5));
        let delivered = stage.transport(target).counters().delivered - before;
        assert_eq!(delivered, 1, "it came to the host, which has no such QP");
        let outcome = stage.attacked_from_the_first(|stage| strangers[0].turn(stage));
        stage.assert_unharmed(&outcome);
    }
}

#[test]
fn who_takes_all_sessions_of_a_box_gives_way_to_a_box_that_carries_something() {
    for target in [0, 1] {
        let mut setup = late(Keys::Without);
        setup.limits.transport = |transport| transport.sessions_max = 1;
        let mut stage = Stage::new(&setup, Power::Send);
        let mut strangers = [Stranger::new(target, 666, Seed::of_scenario(666))];
        let_in(&mut stage, &mut strangers);
        let outcome = stage.attacked_from_the_first(|stage| strangers[0].turn(stage));
        stage.assert_unharmed(&outcome);
        assert!(stage.transport(target).counters().sessions_displaced > 0);
    }
}

#[test]
fn without_the_key_of_a_peer_nobody_gets_a_session() {
    for has_key in [false, true] {
        let mut stage = Stage::with(Keys::With, Power::Send);
        let stranger = Stranger::in_the_name_of_the_other(1, 1);
        let mut stranger = if has_key { stranger.with_key() } else { stranger };
        let outcome = stage.attacked(|stage| stranger.turn(stage));
        stage.assert_unharmed(&outcome);
        stage.assert_closed();
        assert!(stage.transport(1).sessions().count() == 1 && stranger.accepted.is_none());
        let reason = match has_key {
            false => longhaul_seal::DropReason::ClearRefused,
            true => longhaul_seal::DropReason::HandshakeStranger,
        };
        assert!(stage.seal_dropped(1, reason) > 0);
    }
}

/// The attacker learns a session's numbers at both ends from the PINGs between the boxes.
#[test]
fn who_reads_ends_a_session_without_keys_and_no_flow() {
    let numbers = shared([None; 2]);
    let keeps = numbers.clone();
    let power = Power::Read(Box::new(move |_, crossing| {
        let header = header_of(&crossing.bytes).filter(|header| header.kind == DatagramKind::Ping);
        let ping = crossing.bytes.get(AT + HEADER_LEN..).and_then(Ping::read);
        if let (Some(header), Some(ping)) = (header, ping.filter(|ping| ping.session != 0)) {
            keeps.borrow_mut()[crossing.toward] = Some([header.session, ping.session]);
        }
    }));
    let mut stage = Stage::with(Keys::Without, power);
    let outcome = stage.attacked(|stage| {
        for toward in [0, 1] {
            let Some([to, from]) = numbers.borrow_mut()[toward].take() else { continue };
            let mut body = [0; 16];
            body[..4].copy_from_slice(&u32::to_be_bytes(from));
            let way = path(address_of(1 - toward), address_of(toward));
            stage.send(toward, control(&way, &Header::new(DatagramKind::Close, to), &body));
        }
    });
    stage.assert_unharmed(&outcome);
    for site in [0, 1] {
        let counters = stage.transport(site).counters();
        assert!(counters.sessions_closed > 0 && counters.passed > 0, "{counters:#?}");
    }
}
