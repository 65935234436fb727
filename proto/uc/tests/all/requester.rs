//! The requester, rule by rule, as wire scripts.

use crate::script::Uc;
use longhaul_wire_script::scripts;

scripts! {
    Uc;
    packets {
        a_send_of_several_packets: "
            config psn=16777215
            post send len=700 imm solicited
            out send.first psn=16777215 len=256 qpn=34 pkey=9234 is=ee migreq !ackreq !imm \
                !solicited
            out send.middle psn=0 len=256 !imm !solicited
            out send.last.imm psn=1 len=188 imm solicited !ackreq
            done 1 Success Send len=700
        ";
        a_write_names_its_memory_once: "
            post write len=600 va=77
            out write.first psn=0 len=256 va=77 dma=600 rkey=1
            out write.middle psn=1 len=256 !va=77
            out write.last psn=2 len=88
            done 1 Success Write len=600
        ";
        a_write_with_immediate_is_solicited_and_one_without_is_not: "
            post write len=4 va=8 imm solicited
            post write len=4 solicited
            post write len=257 imm solicited
            out write.only.imm psn=0 len=4 va=8 dma=4 imm solicited
            out write.only psn=1 len=4 !imm !solicited
            out write.first psn=2 len=256 !solicited
            out write.last.imm psn=3 len=1 imm solicited
            done 1 Success
            done 2 Success
            done 3 Success
        ";
        empty_messages_take_a_psn_each: "
            post send
            post write
            post send imm
            post send len=256
            out send.only psn=0 len=0
            out write.only psn=1 len=0 dma=0
            out send.only.imm psn=2 len=0 imm
            out send.only psn=3 len=256
            done 1 Success len=0
            done 2 Success len=0
            done 3 Success len=0
            done 4 Success len=256
        ";
        data_is_gathered_from_its_pieces: "
            post send len=300 parts=4 at=100
            in write.only psn=0 len=75 va=100
            in write.only psn=1 len=75 va=175
            in write.only psn=2 len=75 va=250
            out send.first psn=0 len=256 !is=00
            out send.last psn=1 len=44 is=ee
            done 1 Success len=300
        ";
        inline_data_is_that_of_the_post: "
            post send len=300 inline lkey=99
            in write.only psn=5 len=256
            out send.first psn=0 len=256 is=ee
            out send.last psn=1 len=44 is=ee
            done 1 Success len=300
        ";
    }
    completion {
        comes_with_the_last_packet: "
            post send len=257
            idle no
            out send.first
            idle no
            out send.last
            idle yes
            done 1 Success
        ";
        unsignaled_requests_end_in_silence: "
            post send len=1 unsignaled
            post send len=1 unsignaled signal_all
            out send.only psn=0
            out send.only psn=1
            done 2 Success
            idle yes
        ";
        a_fence_waits_for_nothing: "
            post write len=1
            post send len=1 fence
            out write.only psn=0
            out send.only psn=1
            done 1 Success
            done 2 Success
        ";
    }
    refusal {
        what_needs_an_answer_is_refused: "
            refuse read len=8
            refuse fetch_add len=8
            refuse cmp_swap len=8
            refuse send inv
            refuse datagram
            refuse send len=513 inline
            idle yes
        ";
    }
    local_protection {
        nothing_of_the_message_leaves: "
            post send len=1
            post write len=600 at=65200        # begins inside of the region
            post send len=1 unsignaled
            out send.only psn=0
            done 1 Success
            quiet
            done 2 LocalProtection Write
            done 3 WrFlush Send
            failed
            idle yes
        ";
        a_single_packet_is_checked_too: "
            post send len=1 lkey=7
            quiet
            done 1 LocalProtection
            failed
        ";
        a_region_that_goes_away_breaks_the_message: "
            post send len=600
            out send.first
            deny
            quiet
            done 1 LocalProtection
            failed
        ";
        a_failed_requester_sends_nothing_more: "
            flush
            failed
            post send len=1
            quiet
            flush
            done 1 WrFlush
        ";
        a_recovered_queue_goes_on_with_the_next_psn: "
            post send len=600
            post send len=1
            out send.first psn=0
            deny
            quiet
            allow
            done 1 LocalProtection
            done 2 WrFlush
            recover
            post send len=600
            out send.first psn=1
            out send.middle psn=2
            out send.last psn=3
            done 3 Success
        ";
        a_queue_that_failed_while_it_drained_is_not_paused_when_it_recovers: "
            post send len=600
            out send.first psn=0
            pause
            deny
            quiet
            allow
            done 1 LocalProtection
            recover
            post send len=1
            out send.only psn=1
            done 2 Success
        ";
    }
    pause {
        finishes_the_message_that_has_begun: "
            post send len=257
            post send len=1
            out send.first psn=0
            pause
            draining
            out send.last psn=1
            drained
            quiet
            idle no
            resume
            draining
            out send.only psn=2
            done 1 Success
            done 2 Success
        ";
    }
}

mod limits {
    use crate::script::Qp;
    use longhaul_units::{LKey, Psn};
    use longhaul_wire_script::{KEY, Line};
    use longhaul_work::{MESSAGE_MAX, SendOp, SendRefused, SendWr, Sge};

    fn post(qp: &mut Qp, segments: &[Sge]) -> Result<(), SendRefused> {
        let op = SendOp::Send { immediate: None, invalidate: None };
        let (inline, signaled, solicited, fence) = (false, true, false, false);
        let wr = SendWr { wr_id: 0, op, segments, inline, signaled, solicited, fence };
        qp.halves.requester.post(&wr, false, &qp.device.memory)
    }

    #[test]
    fn each_is_named_when_it_is_broken() {
        let mut qp = Qp::new(&Line::of("config mtu=256"));
        let piece = |len| Sge { address: 0, len, lkey: LKey(KEY) };
        let half = piece((MESSAGE_MAX / 2) as u32);
        let longer = MESSAGE_MAX + 1;
        assert_eq!(
            post(&mut qp, &[half, half, piece(1)]),
            Err(SendRefused::MessageTooLong { given: longer })
        );
        assert_eq!(
            post(&mut qp, &[piece(1); 5]),
            Err(SendRefused::TooManySegments { given: 5, max: 4 })
        );
        for _ in 0..16 {
            assert_eq!(post(&mut qp, &[half, half]), Ok(()));
        }
        assert_eq!(post(&mut qp, &[]), Err(SendRefused::Full(16)));
    }

    #[test]
    fn a_new_connection_starts_where_it_is_told() {
        let mut qp = Qp::new(&Line::of("config mtu=256"));
        post(&mut qp, &[]).unwrap();
        qp.halves.requester.flush(&mut qp.device);
        let config = *qp.halves.requester.config();
        qp.halves.requester.start(longhaul_uc::RequesterConfig { sq_psn: Psn::new(77), ..config });
        assert!(!qp.halves.requester.is_failed());
        post(&mut qp, &[]).unwrap();
        assert!(qp.transmit().is_some());
        assert_eq!(qp.halves.requester.snapshot().next, Psn::new(78));
    }
}
