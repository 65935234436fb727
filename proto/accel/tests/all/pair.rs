//! Both boxes of a pair between two unmodified RNICs.

use crate::host::{LOCAL, REMOTE};
use crate::row::{MTU, Op, Row, SLOT, Setup};
use longhaul_accel::{FlowState, FlowStatus, LAN, Learnt, Mode, Policy, Role, Rule, WAN};
use longhaul_rnic::{Counter, Status};
use longhaul_units::{Duration, Instant};

const MODES: [Mode; 4] = Mode::ALL;

/// Posts `ops` at once and waits until all are completed and delivered. Returns the time of each
/// completion since the start.
fn transfer(row: &mut Row, ops: &[Op]) -> Vec<Duration> {
    let start = row.now;
    ops.iter().enumerate().for_each(|(slot, op)| row.post(slot, *op, true));
    finish(row, ops, start)
}

fn finish(row: &mut Row, ops: &[Op], start: Instant) -> Vec<Duration> {
    let mut completed = Vec::new();
    let end = start + Duration::from_ms(60_000);
    while completed.len() < ops.len() || row.is_owed_anything() {
        for completion in row.completions(LOCAL) {
            assert_eq!(completion.status, Status::Success, "message {}", completion.wr_id);
            completed.push(completion.timestamp.since(start));
        }
        let done = completed.len() == ops.len() && !row.is_owed_anything();
        assert!(done || row.step(end), "{} of {} are completed", completed.len(), ops.len());
    }
    let writes = ops.iter().enumerate().filter(|(_, op)| !op.is_read());
    let chunks = writes.flat_map(|(slot, op)| {
        (0..op.len()).step_by(MTU).map(move |at| (slot * SLOT + at, MTU.min(op.len() - at)))
    });
    let chunks: Vec<(usize, usize)> = chunks.collect();
    assert_eq!(row.host(REMOTE).memory().writes, chunks, "each packet once, in order");
    for (slot, op) in ops.iter().enumerate() {
        let [local, remote] = [LOCAL, REMOTE].map(|host| row.bytes(host, slot, op.len()));
        assert!(local == remote, "message {slot}");
    }
    completed
}

fn mixture(count: usize) -> Vec<Op> {
    let kinds = [Op::Write(4000), Op::Send(1500), Op::Write(64), Op::Read(2500), Op::Send(100)];
    kinds.into_iter().cycle().take(count).collect()
}

fn setup(mode: Mode, slots: usize) -> Setup {
    Setup { slots, depth: 256, give_up_after: Duration::from_ms(20_000), ..Setup::new(mode) }
}

fn status(row: &mut Row, role: Role) -> FlowStatus {
    row.node(role).node.flows().next().expect("a flow")
}

/// Requests that the responder's NIC received behind a gap.
fn gaps(row: &mut Row) -> u64 {
    row.host(REMOTE).counters().get(Counter::OutOfSequence)
}

#[test]
fn a_completion_takes_as_long_as_what_it_says() {
    // One round trip is 10 ms.
    for (mode, write_us, read_us) in [
        (Mode::Early, 0..100, 10_000..10_200),
        (Mode::Far, 10_000..10_100, 10_000..10_200),
        (Mode::Tail, 10_000..10_200, 10_000..10_200),
        (Mode::Off, 10_000..10_200, 10_000..10_200),
    ] {
        let mut row = Row::new(&setup(mode, 4));
        let times = transfer(&mut row, &[Op::Write(4000), Op::Read(1000)]);
        let us = |at: Duration| at.as_ns() / 1000;
        assert!(write_us.contains(&us(times[0])), "{mode}: a WRITE took {}", times[0]);
        assert!(read_us.contains(&us(times[1])), "{mode}: a READ took {}", times[1]);
    }
}

#[test]
fn without_loss_nothing_is_sent_twice_in_any_mode() {
    for mode in MODES {
        for cm in [true, false] {
            let mut row = Row::new(&Setup { cm, ..setup(mode, 100) });
            transfer(&mut row, &mixture(100));
            assert_eq!(gaps(&mut row), 0, "{mode}");
            for role in [Role::Near, Role::Far] {
                let c = *row.node(role).node.counters();
                let again = c.retransmits_nak + c.retransmits_timeout + c.retransmits_read;
                assert_eq!(
                    (again, c.flows_reset, c.flows_failed, c.stored_lost),
                    (0, 0, 0, 0),
                    "{mode}"
                );
            }
        }
    }
}

#[test]
fn loss_anywhere_is_survived_in_every_mode() {
    for mode in MODES {
        for (cm, loss, seed) in
            [(true, [0.02, 0.0], 1), (false, [0.0, 0.02], 2), (true, [0.01, 0.01], 3)]
        {
            let mut row = Row::new(&Setup { cm, loss, seed, ..setup(mode, 200) });
            transfer(&mut row, &mixture(200));
            for role in [Role::Near, Role::Far] {
                assert_eq!(row.node(role).node.counters().flows_failed, 0, "{mode}, seed {seed}");
            }
        }
    }
}

/// Repair on the responder's LAN by the far box, without traffic on the long path.
mod far_lan {
    use super::*;

    /// Modes in which the far box stores.
    const STORING: [Mode; 3] = [Mode::Early, Mode::Far, Mode::Tail];

    #[test]
    fn loss_is_repaired_from_the_far_store_without_a_round_trip() {
        for mode in STORING {
            let mut row = Row::new(&setup(mode, 10));
            // The third request, on the responder's LAN; the packets behind it show the gap.
            row.far().lost_behind.push((WAN, 3));
            let times = transfer(&mut row, &[Op::Write(4000); 10]);
            let far = *row.far().node.counters();
            assert!(far.packet_seq_err == 1 && far.retransmits_nak > 0, "{mode}");
            let near = *row.near().node.counters();
            assert_eq!(
                near.packet_seq_err + near.retransmits_nak + near.retransmits_timeout,
                0,
                "{mode}"
            );
            assert!(times[9] < Duration::from_us(10_200), "{mode}: {}", times[9]);
        }
    }

    #[test]
    fn a_responder_that_is_not_ready_is_waited_for_at_the_far_box() {
        for mode in STORING {
            let mut row = Row::new(&setup(mode, 2));
            let ops = [Op::Write(100), Op::Send(1500)];
            let start = row.now;
            ops.iter().enumerate().for_each(|(slot, op)| row.post(slot, *op, false));
            row.run_until(start + Duration::from_ms(9));
            row.post_receive(1);
            finish(&mut row, &ops, start);
            let (near, far) = (*row.near().node.counters(), *row.far().node.counters());
            assert!(far.rnr_nak_absorbed > 1 && far.retransmits_rnr > 1, "{mode}");
            assert_eq!((near.rnr_nak_absorbed, near.retransmits_rnr), (0, 0), "{mode}");
        }
    }

    #[test]
    fn loss_of_the_last_packet_is_found_out_by_the_far_boxs_own_timer() {
        for mode in STORING {
            let mut row = Row::new(&setup(mode, 8));
            // By then the RTT over the LAN is known.
            row.far().lost_behind.push((WAN, 8));
            let times = transfer(&mut row, &[Op::Write(100); 8]);
            assert_eq!(row.far().node.counters().local_ack_timeout_err, 1, "{mode}");
            // The near box could not have helped before its timer expired.
            assert!(times[7] < Duration::from_us(10_000 + 12_600), "{mode}: {}", times[7]);
        }
    }
}

/// The requester sees the responder's credits, whichever node acknowledges.
#[test]
fn credits_hold_end_to_end() {
    for mode in MODES {
        let mut row = Row::new(&Setup { report_credits: true, ..setup(mode, 24) });
        let ops = [Op::Send(500); 24];
        let start = row.now;
        (0..4).for_each(|slot| row.post_receive(slot));
        ops.iter().enumerate().for_each(|(slot, op)| row.post(slot, *op, false));
        for slot in 4..24 {
            row.run_until(row.now + Duration::from_ms(4));
            row.post_receive(slot);
        }
        finish(&mut row, &ops, start);
        let limited =
            |status: FlowStatus| status.state != FlowState::Terminated || status.credits.is_some();
        assert!(
            limited(status(&mut row, Role::Near)) && limited(status(&mut row, Role::Far)),
            "{mode}"
        );
    }
}

/// Both boxes count the same PSNs and MSNs, from the connection manager and from traffic.
#[test]
fn both_boxes_count_alike() {
    for mode in [Mode::Early, Mode::Tail] {
        for cm in [true, false] {
            let mut row = Row::new(&Setup { cm, ..setup(mode, 60) });
            transfer(&mut row, &mixture(30));
            for (slot, op) in mixture(60).into_iter().enumerate().skip(30) {
                row.post(slot, op, true);
            }
            row.run_until(row.now + Duration::from_ms(500));
            let (near, far) = (status(&mut row, Role::Near), status(&mut row, Role::Far));
            let learnt = if cm { Learnt::ConnectionManager } else { Learnt::Traffic };
            for flow in [&near, &far] {
                assert_eq!(
                    (flow.state, flow.learnt, flow.mode),
                    (FlowState::Terminated, learnt, mode)
                );
                assert_eq!(flow.msn, flow.responder_msn);
            }
            assert_eq!(
                (near.msn, near.expected_psn, near.requester_qpn),
                (far.msn, far.expected_psn, far.requester_qpn)
            );
        }
    }
}

#[test]
fn a_rule_holds_in_both_boxes() {
    let rule = Rule { source: Some("10.77.0.1".parse().unwrap()), ..Rule::new(Mode::Off) };
    let policy = Policy::new(vec![rule], Mode::Early).unwrap();
    let mut row = Row::new(&Setup { policy, ..setup(Mode::Early, 4) });
    transfer(&mut row, &[Op::Write(1000)]);
    for role in [Role::Near, Role::Far] {
        assert_eq!(status(&mut row, role).state, FlowState::Passing);
    }
}

#[test]
fn a_requests_loss_on_the_near_lan_does_not_wait_for_the_distance() {
    for mode in [Mode::Early, Mode::Tail] {
        let mut row = Row::new(&setup(mode, 10));
        row.near().lost.push((LAN, 2));
        let times = transfer(&mut row, &[Op::Write(4000); 10]);
        assert_eq!(gaps(&mut row), 0, "{mode}: the responder sees no gap");
        assert!(times[9] < Duration::from_us(10_300), "{mode}: {}", times[9]);
    }
}
