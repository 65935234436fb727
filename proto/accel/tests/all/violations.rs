//! What a NIC sends against the standard, or beyond it: each is passed and counted, or refused for
//! a reason that is counted, and the flow goes on.

use crate::script::frames::{RESPONDER_QPN, seal};
use crate::script::{Script, run};
use longhaul_accel::{DropReason, FlowState, LAN, PassReason, WAN};
use longhaul_units::{Psn, Qpn};
use longhaul_wire::mad::GSI_QKEY;
use longhaul_wire::{Bth, Deth, Head, Opcode, PathTemplate};

const RC_FLUSH: Opcode = Opcode(0x1c);
const RC_ATOMIC_WRITE: Opcode = Opcode(0x1d);

/// A connection with one packet that is stored, acknowledged and not delivered.
const ONE_STORED: &str = "connect psn=100
     lan: write_only 100 A
     > wan write_only 100 A
     > lan ack 100 msn=1";

fn dropped(script: &Script, reason: DropReason) -> u64 {
    script.accel.counters().drops.get(reason)
}

/// The flow stores, acknowledges and delivers further packets.
fn goes_on(script: &mut Script, psn: u32, msn: u32) {
    for n in 0..4 {
        let (psn, msn) = (psn + n, msn + n);
        script.go_on(&format!(
            "lan: write_only {psn} A
             > wan write_only {psn} A
             > lan ack {psn} msn={msn}
             wan: ack {psn} msn={msn}"
        ));
    }
    let flow = script.status();
    assert_eq!((flow.state, flow.stored_frames), (FlowState::Terminated, 0));
}

/// A request of the script's connection with `bth`'s opcode and bits.
fn request(script: &Script, bth: &Bth, payload: &[u8]) -> Vec<u8> {
    let template = PathTemplate::new(&script.wire.requester);
    let mut head = Head::begin(&template, bth);
    if bth.opcode.has_reth() {
        let len = payload.len() as u32;
        head.push_reth(&longhaul_wire::Reth {
            virtual_address: 0x1000,
            rkey: longhaul_units::RKey(7),
            len,
        });
    }
    seal(head, &template, payload)
}

mod acknowledgements {
    use super::*;

    #[test]
    fn of_what_was_never_sent_pass_and_release_nothing() {
        let mut script = run(ONE_STORED);
        script.go_on("wan: ack 163 msn=64\n > lan ack 163 msn=64");
        assert_eq!((script.accel.counters().acks_unseen, script.status().stored_frames), (1, 1));
        script.go_on("wan: ack 100 msn=1");
        goes_on(&mut script, 101, 2);
    }

    #[test]
    fn far_from_all_that_was_sent_are_absorbed_or_pass_and_release_nothing() {
        let mut script = run(ONE_STORED);
        script.go_on("wan: ack 9000000 msn=1");
        assert_eq!(dropped(&script, DropReason::AckAbsorbed), 1, "half the PSNs behind: old");
        script.go_on("wan: ack 5000000 msn=1\n > lan ack 5000000 msn=1");
        assert_eq!((script.accel.counters().acks_unseen, script.status().stored_frames), (1, 1));
        script.go_on("wan: ack 100 msn=1");
        goes_on(&mut script, 101, 2);
    }

    #[test]
    fn with_a_decreasing_msn_release_by_their_psn_and_the_requesters_msn_does_not_decrease() {
        let mut script = run(ONE_STORED);
        script.go_on("wan: ack 100 msn=1");
        script.go_on(
            "lan: write_only 101 A
             > wan write_only 101 A
             > lan ack 101 msn=2
             wan: ack 101 msn=0",
        );
        assert_eq!(script.status().stored_frames, 0);
        goes_on(&mut script, 102, 3);
    }

    #[test]
    fn with_an_msn_out_of_nowhere_release_by_their_psn() {
        let mut script = run(ONE_STORED);
        script.go_on("wan: ack 100 msn=8000000");
        assert_eq!(script.status().stored_frames, 0);
        goes_on(&mut script, 101, 2);
    }

    #[test]
    fn of_a_write_as_if_it_were_a_read_pass_and_release_nothing() {
        let mut script = run(ONE_STORED);
        script.go_on("wan: read_only 100 len=64 msn=1\n > lan read_only 100 msn=1");
        assert_eq!(script.status().stored_frames, 1);
        script.go_on("wan: ack 100 msn=1");
        goes_on(&mut script, 101, 2);
    }

    #[test]
    fn of_a_read_as_if_it_were_a_write_leave_it_to_the_requester_to_ask_again() {
        let mut script = run("connect psn=100
             lan: read 100 A dma=64
             > wan read 100 A dma=64
             wan: ack 100 msn=1");
        assert_eq!(script.status().outstanding_reads, 1, "no data came");
        script.go_on("wan: read_only 100 msn=1\n > lan read_only 100 msn=1");
        goes_on(&mut script, 101, 2);
    }

    #[test]
    fn sequence_naks_of_what_was_acknowledged_are_absorbed() {
        let mut script = run(ONE_STORED);
        script.go_on("wan: ack 100 msn=1\n wan: nak 100 sequence msn=0");
        assert_eq!(script.accel.counters().packet_seq_err, 0, "an old one");
        assert_eq!(dropped(&script, DropReason::AckAbsorbed), 2);
        goes_on(&mut script, 101, 2);
    }
}

mod rnr_naks {
    use super::*;

    /// Each of the 32 timers is defined; the upper bits say that it is an RNR NAK.
    #[test]
    fn with_any_timer_are_waited_out() {
        for timer in 0..32 {
            let mut script = run(ONE_STORED);
            script.go_on(&format!("wan: rnr 100 timer={timer} msn=0"));
            assert_eq!(script.accel.counters().rnr_nak_absorbed, 1, "timer {timer}");
            script.go_on("wan: ack 100 msn=1");
            assert_eq!(script.status().stored_frames, 0, "timer {timer}");
        }
    }

    #[test]
    fn of_what_was_never_sent_pass() {
        let mut script = run(ONE_STORED);
        script.go_on("wan: rnr 120 timer=0 msn=1\n > lan rnr 120 msn=1");
        assert_eq!(script.accel.counters().acks_unseen, 1);
        script.go_on("wan: ack 100 msn=1");
        goes_on(&mut script, 101, 2);
    }
}

mod requests {
    use super::*;

    #[test]
    fn that_jump_ahead_are_refused_until_the_missing_ones_come() {
        let mut script = run(ONE_STORED);
        script.go_on("lan: write_only 120 A\n > lan nak 101 sequence msn=1");
        assert_eq!(dropped(&script, DropReason::PsnGap), 1);
        assert_eq!(script.accel.counters().out_of_sequence, 1);
        script.go_on("wan: ack 100 msn=1");
        goes_on(&mut script, 101, 2);
    }

    #[test]
    fn that_jump_far_ahead_pass_as_those_of_another_life() {
        let mut script = run(ONE_STORED);
        script.go_on("wan: ack 100 msn=1\n lan: write_only 900000 A\n > wan write_only 900000 A");
        assert_eq!(script.status().state, FlowState::Learning);
        assert_eq!(script.accel.counters().flows_reset, 1);
        script.go_on("wan: nak 101 sequence msn=1\n > lan nak 101 sequence msn=1");
    }

    #[test]
    fn with_reserved_bits_are_stored_and_delivered_bit_for_bit() {
        let mut script = run(ONE_STORED);
        script.go_on("wan: ack 100 msn=1");
        let bth = Bth {
            reserved_6: 0x3f,
            reserved_7: 0x7f,
            ack_request: true,
            ..Bth::new(Opcode::RC_WRITE_ONLY, Qpn::new(RESPONDER_QPN), Psn::new(101))
        };
        let bytes = request(&script, &bth, &[7; 64]);
        script.inject(LAN, &bytes);
        assert!(script.last.contains(&(WAN, bytes)));
        script.go_on(
            "> wan write_only 101 A
             > lan ack 101 msn=2
             wan: ack 101 msn=2",
        );
        goes_on(&mut script, 102, 3);
    }

    /// FLUSH and ATOMIC WRITE take a PSN, and their responders' answers are not those of a WRITE:
    /// a flow that went on storing would find a gap that nobody fills.
    #[test]
    fn with_an_unknown_opcode_make_their_flow_pass_and_what_was_acknowledged_is_delivered() {
        for opcode in [RC_FLUSH, RC_ATOMIC_WRITE, Opcode(0x15), Opcode(0x1f)] {
            let mut script = run(ONE_STORED);
            let bth = Bth::new(opcode, Qpn::new(RESPONDER_QPN), Psn::new(101));
            let bytes = request(&script, &bth, &[7; 24]);
            script.passes(LAN, &bytes);
            let flow = script.status();
            assert_eq!(flow.pass_reason, Some(PassReason::UnknownOpcode));
            assert_eq!(flow.stored_frames, 1, "what was promised");
            assert_eq!(script.accel.counters().flows_unknown_opcode, 1);
            script.go_on(
                "lan: write_only 102 A
                 > wan write_only 102 A
                 wan: nak 100 sequence msn=0
                 > wan write_only 100 A
                 wan: ack 100 msn=1
                 wan: read_only 101 msn=2
                 > lan read_only 101 msn=2
                 wan: ack 102 msn=3
                 > lan ack 102 msn=3",
            );
            // Nothing is held or acknowledged any more, however often it comes.
            for psn in [103, 104] {
                let bth = Bth::new(opcode, Qpn::new(RESPONDER_QPN), Psn::new(psn));
                let bytes = request(&script, &bth, &[7; 24]);
                script.passes(LAN, &bytes);
            }
            script.go_on("lan: write_only 105 A\n > wan write_only 105 A");
            assert_eq!(script.accel.counters().flows_unknown_opcode, 1);
            assert_eq!(script.status().stored_frames, 0);
        }
    }

    #[test]
    fn with_an_unknown_opcode_of_nobody_or_damaged_pass() {
        let mut script = run(ONE_STORED);
        let bth = Bth::new(RC_FLUSH, Qpn::new(0x7777), Psn::new(101));
        let bytes = request(&script, &bth, &[7; 24]);
        script.passes(LAN, &bytes);
        let bth = Bth::new(RC_FLUSH, Qpn::new(RESPONDER_QPN), Psn::new(101));
        let mut bytes = request(&script, &bth, &[7; 24]);
        *bytes.last_mut().unwrap() ^= 1;
        script.passes(LAN, &bytes);
        assert_eq!(script.accel.counters().flows_unknown_opcode, 0);
        assert_eq!(script.accel.counters().rx_icrc_encapsulated, 1);
        script.go_on("wan: ack 100 msn=1");
        goes_on(&mut script, 101, 2);
    }

    /// Its responder drops it, so that the box must not acknowledge it.
    #[test]
    fn with_another_version_of_the_bth_make_their_flow_pass() {
        let mut script = run(ONE_STORED);
        let opcode = Opcode::RC_WRITE_ONLY;
        let bth = Bth { version: 1, ..Bth::new(opcode, Qpn::new(RESPONDER_QPN), Psn::new(101)) };
        let bytes = request(&script, &bth, &[7; 24]);
        script.passes(LAN, &bytes);
        assert_eq!(script.status().pass_reason, Some(PassReason::UnknownOpcode));
        assert_eq!(script.accel.counters().versions_unknown, 1);
        let bth = Bth { version: 15, ..Bth::new(opcode, Qpn::new(0x7777), Psn::new(101)) };
        let bytes = request(&script, &bth, &[7; 24]);
        script.passes(LAN, &bytes);
        assert_eq!(script.accel.counters().versions_unknown, 2);
        script.go_on("wan: ack 100 msn=1");
    }

    /// Another life of the QPs is a connection of its own.
    #[test]
    fn of_the_next_connection_are_accelerated_again() {
        let mut script = run(ONE_STORED);
        script.go_on("wan: ack 100 msn=1");
        let bth = Bth::new(RC_FLUSH, Qpn::new(RESPONDER_QPN), Psn::new(101));
        let bytes = request(&script, &bth, &[]);
        script.passes(LAN, &bytes);
        script.go_on("connect psn=7000 id=5 rid=6");
        goes_on(&mut script, 7000, 1);
    }
}

#[test]
fn responses_with_an_unknown_opcode_pass_and_change_nothing() {
    let mut script = run(ONE_STORED);
    let template = PathTemplate::new(&script.wire.responder);
    let bth = Bth::new(Opcode(0x1e), Qpn::new(script.wire.requester_qpn), Psn::new(100));
    let bytes = seal(Head::begin(&template, &bth), &template, &[7; 8]);
    script.passes(WAN, &bytes);
    assert_eq!(script.status().stored_frames, 1);
    script.go_on("wan: ack 100 msn=1");
    goes_on(&mut script, 101, 2);
}

/// Attributes, methods and classes that the connection manager does not have, on both sides.
#[test]
fn management_that_is_not_understood_passes_bit_for_bit() {
    let mut script = run(ONE_STORED);
    // Class version, method, attribute (0x77, and one beyond APR), attribute modifier.
    let strange = [(2, 9), (3, 0x81), (17, 0x77), (17, 0x1b), (1, 0x81), (23, 5)];
    for (at, value) in strange {
        let mut mad = [0; 256];
        let header = [1, 7, 2, 3];
        mad[..4].copy_from_slice(&header);
        mad[17] = 0x14;
        mad[at] = value;
        for (side, path) in [(LAN, script.wire.requester), (WAN, script.wire.responder)] {
            let template = PathTemplate::new(&path);
            let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(0));
            let mut head = Head::begin(&template, &bth);
            head.push_deth(&Deth { qkey: GSI_QKEY, reserved_8: 0, source_qp: Qpn::GSI });
            script.passes(side, &seal(head, &template, &mad));
        }
    }
    script.go_on("wan: ack 100 msn=1");
    goes_on(&mut script, 101, 2);
    assert_eq!(script.accel.counters().ece_cleared, 0);
}
