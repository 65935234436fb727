//! ACKs and requests that no host has sent.

use crate::attacker::{Crossing, Power, Shared, shared};
use crate::fleet::boxes::Boxes;
use crate::fleet::plan::Mix;
use crate::forge::{self, opened, path, with_other_payload};
use crate::stage::{Keys, Stage, setup};
use longhaul_accel::FlowStatus;
use longhaul_units::{Duration, Psn, Qpn, Rng, SplitMix64};
use longhaul_wire::{Packet, Path};

/// Flows of the requesters' near boxes, with the requesters' sites.
fn flows(stage: &Stage) -> Vec<(usize, FlowStatus)> {
    let near = |site| stage.fleet.site(site).accelerators()[0];
    let of = |site| near(site).flows().map(move |flow| (site, flow)).collect::<Vec<_>>();
    let is_whole = |flow: &FlowStatus| flow.requester_qpn.is_some() && flow.stored_frames > 0;
    [0, 1].into_iter().flat_map(of).filter(|(_, flow)| is_whole(flow)).collect()
}

fn way(flow: &FlowStatus) -> Path {
    path(flow.key.requester, flow.key.responder)
}

fn ahead(psn: Psn, by: i32) -> Psn {
    Psn::new((psn.get() as i32).wrapping_add(by) as u32 & 0xff_ffff)
}

/// ACKs for the requester, `by` ahead of the last packet that it has sent.
fn acks(stage: &Stage, by: i32) -> Vec<(usize, Vec<u8>)> {
    let of = |(site, flow): (usize, FlowStatus)| {
        let to: Qpn = flow.requester_qpn.expect("it is whole");
        (site, forge::ack(&way(&flow).reversed(), to, ahead(flow.expected_psn, by - 1)))
    };
    flows(stage).into_iter().map(of).collect()
}

/// SENDs for the responder, `by` ahead of the packet that it expects.
fn requests(stage: &Stage, by: i32) -> Vec<(usize, Vec<u8>)> {
    let of = |(site, flow): (usize, FlowStatus)| {
        let psn = ahead(flow.undelivered_psn, by);
        (1 - site, forge::send(&way(&flow), flow.key.responder_qpn, psn, &[0x66; 256]))
    };
    flows(stage).into_iter().map(of).collect()
}

fn send_all(stage: &mut Stage, forged: Vec<(usize, Vec<u8>)>) {
    forged.into_iter().for_each(|(toward, bytes)| stage.send(toward, bytes));
}

#[test]
fn acks_of_a_sender_who_guesses_right_are_not_taken_with_keys() {
    let mut stage = Stage::with(Keys::With, Power::Send);
    let outcome = stage.attacked(|stage| send_all(stage, acks(stage, 0)));
    stage.assert_unharmed(&outcome);
    stage.assert_closed();
    for site in [0, 1] {
        assert!(stage.seal_dropped(site, longhaul_seal::DropReason::ClearRdmaIn) > 50);
    }
}

#[test]
fn requests_of_a_sender_who_guesses_right_are_not_taken_with_keys() {
    let mut stage = Stage::with(Keys::With, Power::Send);
    let outcome = stage.attacked(|stage| send_all(stage, requests(stage, 0)));
    stage.assert_unharmed(&outcome);
    stage.assert_closed();
    for site in [0, 1] {
        assert!(stage.seal_dropped(site, longhaul_seal::DropReason::ClearRdmaIn) > 50);
    }
}

#[test]
fn acks_of_a_sender_who_guesses_wrong_change_nothing() {
    let mut stage = Stage::with(Keys::Without, Power::Send);
    let outcome = stage.attacked(|stage| {
        for by in [1, 2, 1000, 1 << 20, 1 << 22, -(1 << 22)] {
            send_all(stage, acks(stage, by));
        }
    });
    stage.assert_unharmed(&outcome);
    for site in [0, 1] {
        assert!(stage.acks_unseen(site) > 50, "{}", stage.acks_unseen(site));
    }
}

#[test]
fn requests_of_a_sender_who_guesses_wrong_change_nothing() {
    let mut stage = Stage::with(Keys::Without, Power::Send);
    let outcome = stage.attacked(|stage| {
        for by in [5000, 1 << 20, 1 << 22, -(1 << 20)] {
            send_all(stage, requests(stage, by));
        }
    });
    stage.assert_unharmed(&outcome);
    // The far halves cannot distinguish them from another life of the QPs: they release the flows,
    // which then pass as without boxes, and the responders' NAKs name them as they do there.
    for site in [0, 1] {
        let accelerators = stage.fleet.site(site).accelerators();
        assert!(accelerators[0].counters().packet_seq_err > 50);
        assert!(accelerators[1].counters().flows_reset > 0);
    }
}

/// Changes the payload of a host's request, if the attacker can read it.
fn altered(crossing: &Crossing) -> Option<Vec<u8>> {
    let frame = opened(&crossing.bytes)?;
    let is_request = Packet::parse(&frame).ok()??.opcode().is_request();
    let changed = with_other_payload(&frame).filter(|_| is_request)?;
    Some(match forge::header_of(&crossing.bytes) {
        Some(header) => forge::tunnelled(&changed, &header),
        None => changed,
    })
}

/// An attacker on the path changes every tenth request, with all checks that need no key valid.
fn altering(boxes: Boxes) -> (Stage, Shared<u64>) {
    let changed = shared(0_u64);
    let (count, mut seen) = (changed.clone(), 0_u64);
    let power = Power::Write(Box::new(move |_, crossing| {
        seen += 1;
        let altered = if seen.is_multiple_of(10) { altered(&crossing) } else { None };
        *count.borrow_mut() += u64::from(altered.is_some());
        vec![match altered {
            Some(bytes) => Crossing { bytes, ..crossing },
            None => crossing,
        }]
    }));
    (Stage::new(&setup(1, boxes), power), changed)
}

#[test]
fn without_keys_a_writer_alters_what_boxes_carry_as_he_alters_roce() {
    for boxes in [Boxes::None, Boxes::Whole] {
        let (mut stage, changed) = altering(boxes);
        let outcome = stage.fleet.run();
        assert!(*changed.borrow() > 10, "{boxes:?}");
        assert!(!outcome.violations.is_empty(), "{boxes:?}");
        // Wrong bytes in the right places, with their consequences, and nothing else.
        let is_his = |what: &String| what.contains("other bytes");
        assert!(outcome.violations.iter().all(is_his), "{boxes:?}: {:?}", outcome.violations);
        assert!(outcome.failures.is_empty() && outcome.unfinished.is_empty(), "{boxes:?}");
        stage.assert_bounded();
    }
}

#[test]
fn what_a_writer_alters_is_not_taken_with_keys() {
    let (mut seen, changed) = (0_u64, shared(0_u64));
    let count = changed.clone();
    let mut rng = SplitMix64::new(5);
    // Any byte behind UDP, the UDP ports and the IP addresses.
    let power = Power::Write(Box::new(move |_, mut crossing| {
        seen += 1;
        if seen > 1000 && seen.is_multiple_of(20) {
            let at = 26 + rng.below(crossing.bytes.len() as u64 - 26) as usize;
            crossing.bytes[at] ^= 1 << rng.below(8);
            *count.borrow_mut() += 1;
        }
        vec![crossing]
    }));
    let mut stage = Stage::with(Keys::With, power);
    let outcome = stage.attacked(|_| {});
    stage.assert_unharmed(&outcome);
    let changed = *changed.borrow();
    let refused =
        [0, 1].map(|site| stage.seal_dropped(site, longhaul_seal::DropReason::Unauthenticated));
    assert!(changed > 100 && refused.iter().sum::<u64>() > changed / 2, "{refused:?} of {changed}");
}

/// For each request with an AckReq, an attacker on the path drops the request and forges the ACK.
/// Returns the number of messages acknowledged and never delivered.
fn acknowledged_falsely(boxes: Boxes) -> (Stage, usize) {
    let mut seen = 0_u64;
    let power = Power::Write(Box::new(move |_, crossing| {
        let forged = opened(&crossing.bytes).and_then(|frame| {
            let packet = Packet::parse(&frame).ok()??;
            let bth = packet.bth();
            let is_asking = bth.opcode.is_request() && packet.reth().is_none() && bth.ack_request;
            // The requester's QPN follows from the responder's in the fleet's numbering.
            let to = Qpn::new(bth.dest_qp.get() ^ 0x400);
            is_asking.then(|| forge::ack(&packet.path().reversed(), to, bth.psn))
        });
        seen += u64::from(forged.is_some());
        match forged {
            Some(ack) if seen.is_multiple_of(7) => vec![Crossing::new(1 - crossing.toward, ack)],
            _ => vec![crossing],
        }
    }));
    let mut setup = setup(1, boxes);
    (setup.mix, setup.time_max) = (Mix::SendsAndWrites, Duration::from_ms(3000));
    let mut stage = Stage::new(&setup, power);
    let outcome = stage.fleet.run();
    let false_ones = outcome.counts.iter().flatten();
    let false_ones = false_ones.map(|count| count.completed.saturating_sub(count.placed)).sum();
    stage.assert_bounded();
    (stage, false_ones)
}

#[test]
fn who_loses_requests_and_makes_their_acks_deceives_plain_roce_and_no_box_with_keys() {
    let (_, plain) = acknowledged_falsely(Boxes::None);
    let (_, without_keys) = acknowledged_falsely(Boxes::Whole);
    let (stage, with_keys) = acknowledged_falsely(Boxes::Sealed);
    stage.assert_closed();
    assert!(plain > 0);
    assert!(without_keys <= plain, "{without_keys} by boxes, {plain} by RoCE");
    assert_eq!(with_keys, 0);
}
