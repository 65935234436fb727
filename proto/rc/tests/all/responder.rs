//! The responder, rule by rule, as wire scripts.

use crate::script::Rc;
use longhaul_wire_script::scripts;

scripts! {
    Rc;
    placement {
        a_send_fills_the_receive: "
            config mtu=256
            recv at=1000 len=4096
            in send.first psn=0 len=256
            in send.middle psn=1 len=256
            in send.last.imm psn=2 len=10 ackreq solicited
            out ack psn=2 msn=1 credits=31
            done r1 Success Recv len=522 imm solicited
            mem at=1256 len=256 is=01
            mem at=1512 len=10 is=02
            mem at=1522 is=ee
        ";
        a_write_fills_memory_and_completes_nothing_here: "
            config mtu=256
            in write.first psn=0 len=256 va=100 dma=300
            in write.last psn=1 len=44 ackreq
            out ack psn=1 msn=1
            mem at=100 len=256 is=00
            mem at=356 len=44 is=01
            mem at=400 is=ee
        ";
        a_write_with_immediate_consumes_a_receive: "
            recv at=5000
            in write.only.imm psn=0 len=8 va=0 ackreq
            out ack psn=0 msn=1
            done r1 Success RecvWriteImmediate len=8 imm
            mem at=0 len=8 is=00
            mem at=5000 is=ee
        ";
        empty_messages_are_messages: "
            recv
            in write.only psn=0 len=0 dma=0 rkey=99
            in send.only psn=1 len=0 ackreq
            out ack psn=1 msn=2
            done r1 Success len=0
        ";
        a_send_with_invalidate_invalidates: "
            recv
            in send.only.inv psn=0 len=1 inv=1 ackreq
            out ack psn=0
            done r1 Success inv
        ";
        an_invalidation_of_nothing_is_an_access_error: "
            recv
            in send.only.inv psn=0 len=1 inv=5 ackreq
            out nak.access psn=0
            done r1 LocalAccess
            fault RemoteAccess
        ";
    }
    ack_coalescing {
        one_ack_covers_everything_so_far: "
            in write.only psn=0 len=1 ackreq
            in write.only psn=1 len=1 ackreq
            in write.only psn=2 len=1 ackreq
            out ack psn=2 msn=3
            count tx_acks 1
        ";
        unasked_it_acknowledges_every_so_often: "
            config mtu=256 ack_every=3
            in write.first psn=0 len=256 dma=1280
            in write.middle psn=1 len=256
            quiet
            in write.middle psn=2 len=256
            out ack psn=2 msn=0
            in write.middle psn=3 len=256
            quiet
            in write.last psn=4 len=256 ackreq
            out ack psn=4 msn=1
        ";
        without_being_asked_it_is_silent: "
            in write.only psn=0 len=1
            quiet
        ";
    }
    credits {
        the_receive_queue_is_reported_when_configured: "
            config report_credits mtu=256
            recv
            recv
            recv
            in send.only psn=0 len=1 ackreq
            out ack psn=0 credits=2 msn=1
            in send.first psn=1 len=256 ackreq
            out ack psn=1 credits=1 msn=1
            in send.last psn=2 len=1
            done r1 Success
            done r2 Success
        ";
    }
    psn_gap {
        sends_one_nak_until_recovered: "
            in write.only psn=0 len=1
            in write.only psn=2 len=1 ackreq
            out nak.seq psn=1 msn=1
            in write.only psn=3 len=1 ackreq
            in write.only psn=4 len=1 ackreq
            quiet
            count out_of_sequence 3
            count tx_psn_seq_nak 1
            in write.only psn=1 len=1
            in write.only psn=3 len=1 ackreq
            out nak.seq psn=2 msn=2
            in write.only psn=2 len=1
            in write.only psn=3 len=1 ackreq
            out ack psn=3 msn=4
        ";
        a_nak_that_has_not_left_names_the_psn_expected_by_then: "
            in write.only psn=1 len=1
            in write.only psn=3 len=1
            in write.only psn=0 len=1
            out nak.seq psn=1
        ";
        a_gap_that_closes_before_the_nak_leaves_needs_an_ack_only: "
            in write.only psn=1 len=1
            in write.only psn=0 len=1
            in write.only psn=1 len=1
            out ack psn=1
        ";
        an_ack_that_is_due_leaves_before_the_nak: "
            in write.only psn=0 len=1 ackreq
            in write.only psn=2 len=1
            out ack psn=0 msn=1
            out nak.seq psn=1 msn=1
            quiet
            in write.only psn=1 len=1 ackreq
            out ack psn=1 msn=2
        ";
        a_message_is_taken_up_in_its_middle: "
            config mtu=256
            in write.first psn=0 len=256 va=0 dma=700
            in write.last psn=2 len=188
            out nak.seq psn=1 msn=0
            in write.middle psn=1 len=256
            in write.last psn=2 len=188 ackreq
            out ack psn=2 msn=1
            mem at=256 len=256 is=01
        ";
        a_read_closes_a_gap_too: "
            in write.only psn=1 len=1
            out nak.seq psn=0
            in read psn=0 dma=1
            in write.only psn=2 len=1
            out resp.only psn=0
            out nak.seq psn=1
        ";
        a_gap_that_a_read_closes_needs_no_ack_of_the_read: "
            in write.only psn=0 len=1
            in read psn=2 dma=1
            in write.only psn=1 len=1
            in read psn=2 dma=1
            out resp.only psn=2 msn=3
            out ack psn=1 msn=3
        ";
        what_came_too_early_leaves_no_trace: "
            in write.only psn=1 len=4 va=0
            out nak.seq psn=0 msn=0
            mem at=0 len=4 is=ee
        ";
    }
    duplicates {
        a_write_is_acknowledged_again_with_the_latest_and_not_repeated: "
            in write.only psn=0 len=4 va=0
            in write.only psn=1 len=4 va=0 ackreq
            out ack psn=1 msn=2
            in write.only psn=0 len=4 va=0
            out ack psn=1 msn=2
            mem at=0 len=4 is=01
            count duplicate_request 1
        ";
        a_packet_from_the_middle_of_a_message_is_acknowledged_too: "
            config mtu=256
            in write.first psn=0 len=256 va=0 dma=700
            in write.middle psn=1 len=256
            in write.middle psn=1 len=256
            out ack psn=1 msn=0
            in write.last psn=2 len=188 ackreq
            out ack psn=2 msn=1
        ";
        a_write_before_a_read_is_acknowledged_without_the_read: "
            config mtu=256
            in write.only psn=0 len=1 va=0
            in read psn=1 va=512 dma=600
            out resp.first psn=1
            out resp.middle psn=2
            out resp.last psn=3 msn=2
            in write.only psn=0 len=1 va=0
            out ack psn=0 msn=2
            in read psn=3 va=1024 dma=88
            out resp.only psn=3 len=88
            quiet
        ";
        a_write_before_an_atomic_is_acknowledged_without_the_atomic: "
            set at=64 value=5
            in write.only psn=0 len=1 va=0
            in fetch_add psn=1 va=64 value=1
            out atomic.ack psn=1 found=5
            in write.only psn=0 len=1 va=0
            out ack psn=0 msn=2
        ";
        a_write_after_a_read_acknowledges_both: "
            in write.only psn=0 len=1 va=0
            in read psn=1 dma=1
            in write.only psn=2 len=1 va=0
            out resp.only psn=1
            in write.only psn=0 len=1 va=0
            out ack psn=2 msn=3
        ";
        a_send_consumes_one_receive: "
            recv
            recv
            in send.only psn=0 len=4 ackreq
            in send.only psn=0 len=4 ackreq
            out ack psn=0 msn=1
            done r1 Success
        ";
        they_do_not_disturb_a_message_under_way: "
            config mtu=256
            in write.first psn=0 len=256 va=0 dma=512
            in write.first psn=0 len=256 va=0 dma=512
            out ack psn=0 msn=0
            in write.last psn=1 len=256 ackreq
            out ack psn=1 msn=1
        ";
        a_read_is_executed_again: "
            in read psn=0 dma=5
            out resp.only psn=0 len=5 msn=1
            in read psn=0 dma=5
            out resp.only psn=0 len=5 msn=1
        ";
        the_rest_of_a_read_is_executed_again: "
            config mtu=256
            in read psn=0 va=0 dma=700
            out resp.first psn=0
            out resp.middle psn=1
            out resp.last psn=2
            in read psn=1 va=256 dma=444
            out resp.first psn=1 len=256
            out resp.last psn=2 len=188
        ";
        a_read_still_waiting_is_not_answered_twice: "
            config mtu=256
            in read psn=0 va=0 dma=300
            in read psn=0 va=0 dma=300
            out resp.first psn=0
            out resp.last psn=1
        ";
        a_read_under_way_goes_on_when_asked_for_what_is_still_to_come: "
            config mtu=256
            in read psn=0 va=0 dma=700
            out resp.first psn=0
            in read psn=2 va=512 dma=188
            out resp.middle psn=1
            out resp.last psn=2
        ";
        a_read_cannot_reach_beyond_what_was_asked_for: "
            config mtu=256
            in read psn=0 va=0 dma=10
            out resp.only psn=0
            in read psn=0 va=0 dma=5000
            quiet
            count rx_duplicate_read_invalid 1
        ";
        a_read_under_way_starts_again_where_asked: "
            config mtu=256
            in read psn=0 va=0 dma=700
            out resp.first psn=0
            out resp.middle psn=1
            in read psn=1 va=256 dma=444
            out resp.first psn=1 len=256
            out resp.last psn=2
        ";
        repeated_reads_are_answered_in_the_order_of_their_psns: "
            in read psn=0 dma=1
            in read psn=1 dma=1
            out resp.only psn=0
            in read psn=0 dma=1
            out resp.only psn=0
            out resp.only psn=1
        ";
        a_read_that_contradicts_the_first_is_dropped: "
            config mtu=256
            in read psn=0 va=0 dma=700
            out resp.first psn=0
            out resp.middle psn=1
            in read psn=1 va=256 dma=10
            in read psn=0 dma=5000
            out resp.last psn=2
            count rx_duplicate_read_invalid 2
        ";
    }
    opcode_order {
        a_message_begins_with_first_or_only: "
            in write.middle psn=0 len=1024 ackreq
            out nak.invalid psn=0
            fault InvalidRequest
        ";
        a_message_is_not_interrupted: "
            config mtu=256
            in write.first psn=0 len=256 dma=512
            in write.only psn=1 len=1
            out nak.invalid psn=1
            fault InvalidRequest
        ";
        a_message_does_not_change_its_kind: "
            config mtu=256
            in write.first psn=0 len=256 dma=512
            in send.last psn=1 len=256
            out nak.invalid psn=1
            fault InvalidRequest
        ";
        a_read_does_not_interrupt: "
            config mtu=256
            recv
            in send.first psn=0 len=256
            in read psn=1 dma=1
            out nak.invalid psn=1
        ";
        afterwards_it_is_deaf: "
            in write.last psn=0 len=4
            out nak.invalid psn=0
            in write.only psn=0 len=4 ackreq
            quiet
            count rx_responder_halted 1
            mem at=0 len=4 is=ee
        ";
    }
    lengths {
        a_first_is_exactly_one_mtu: "
            config mtu=256
            in write.first psn=0 len=255 dma=512
            out nak.invalid psn=0
        ";
        a_middle_is_exactly_one_mtu: "
            config mtu=256
            recv
            in send.first psn=0 len=256
            in send.middle psn=1 len=100
            out nak.invalid psn=1
        ";
        a_last_is_not_empty: "
            config mtu=256
            in write.first psn=0 len=256 dma=512
            in write.last psn=1 len=0
            out nak.invalid psn=1
        ";
        an_only_is_at_most_one_mtu: "
            config mtu=256
            in write.only psn=0 len=257
            out nak.invalid psn=0
        ";
        a_write_ends_where_its_reth_says: "
            config mtu=256
            in write.first psn=0 len=256 dma=300
            in write.last psn=1 len=45
            out nak.invalid psn=1
            mem at=256 is=ee
        ";
        a_write_does_not_go_on_beyond_its_reth: "
            config mtu=256
            in write.first psn=0 len=256 dma=512
            in write.middle psn=1 len=256
            out nak.invalid psn=1
        ";
        an_only_is_what_its_reth_says: "
            in write.only psn=0 len=4 dma=5
            out nak.invalid psn=0
            mem at=0 is=ee
        ";
    }
    access {
        a_wrong_rkey: "
            in write.only psn=0 len=4 rkey=99
            out nak.access psn=0 msn=0
            fault RemoteAccess
            mem at=0 len=4 is=ee
        ";
        the_whole_message_is_checked_at_its_beginning: "
            config mtu=256
            in write.first psn=0 len=256 va=1048000 dma=1000
            out nak.access psn=0
            mem at=1048000 len=256 is=ee
        ";
        a_range_that_wraps: "
            in write.only psn=0 len=4 va=18446744073709551615
            out nak.access psn=0
        ";
        a_read_outside: "
            in read psn=0 va=1048575 dma=2
            out nak.access psn=0
            fault RemoteAccess
        ";
        memory_that_forbids_it: "
            config access_off
            in read psn=0 va=0 dma=2
            out nak.access psn=0
        ";
        a_qp_that_forbids_it_finds_the_request_invalid: "
            config rdma_off
            in write.only psn=0 len=4
            out nak.invalid psn=0
        ";
        a_receive_whose_memory_is_not_ours: "
            recv lkey=99
            in send.only psn=0 len=4
            out nak.op psn=0
            done r1 LocalProtection
            fault RemoteOperational
        ";
    }
    receive_too_small {
        spoils_the_receive_and_the_request: "
            config mtu=256
            recv at=0 len=300
            in send.first psn=0 len=256
            in send.last psn=1 len=45
            out nak.invalid psn=1
            done r1 LocalLength
            fault InvalidRequest
            mem at=256 is=ee
        ";
    }
    receiver_not_ready {
        the_first_packet_of_a_send_needs_a_receive: "
            config mtu=256 min_rnr_timer=12
            in send.first psn=0 len=256
            out rnr psn=0 timer=12 msn=0
            in send.last psn=1 len=4 ackreq
            quiet
            recv
            in send.first psn=0 len=256
            in send.last psn=1 len=4 ackreq
            out ack psn=1 msn=1
            done r1 Success len=260
            count tx_rnr_nak 1
        ";
        a_nak_that_has_not_left_is_forgotten_when_the_receive_comes: "
            in send.only psn=0 len=1
            recv
            in send.only psn=0 len=1 ackreq
            out ack psn=0
            done r1 Success
        ";
        an_ack_that_is_due_leaves_before_the_nak: "
            in write.only psn=0 len=1 ackreq
            in send.only psn=1 len=1 ackreq
            out ack psn=0 msn=1
            out rnr psn=1 msn=1
            quiet
        ";
        each_further_try_is_told_again: "
            in send.only psn=0 len=1
            out rnr psn=0
            in send.only psn=0 len=1
            out rnr psn=0
        ";
        only_the_end_of_a_write_with_immediate_needs_one: "
            config mtu=256
            in write.first psn=0 len=256 va=0 dma=300
            in write.last.imm psn=1 len=44
            out rnr psn=1 msn=0
            mem at=256 len=44 is=ee
            recv
            in write.last.imm psn=1 len=44 ackreq
            out ack psn=1 msn=1
            done r1 Success RecvWriteImmediate len=300 imm
            mem at=256 len=44 is=01
        ";
    }
    reads {
        are_answered_in_packets_of_the_path_mtu: "
            config mtu=256
            in read psn=7 dma=1
            out nak.seq psn=0
            in read psn=0 va=10 dma=600
            out resp.first psn=0 len=256 msn=1
            out resp.middle psn=1 len=256
            out resp.last psn=2 len=88 msn=1
        ";
        an_empty_read_needs_no_key: "
            in read psn=0 dma=0 rkey=99
            out resp.only psn=0 len=0 msn=1
        ";
        an_ack_waits_for_the_responses_before_it: "
            config mtu=256
            in read psn=0 dma=512
            in write.only psn=2 len=1 ackreq
            out resp.first psn=0 msn=1
            out resp.last psn=1 msn=1
            out ack psn=2 msn=2
        ";
        a_nak_waits_for_the_responses_before_it: "
            in read psn=0 dma=1
            in write.only psn=2 len=1
            out resp.only psn=0
            out nak.seq psn=1 msn=1
        ";
        a_read_consumes_psns_at_once: "
            config mtu=256
            in read psn=0 dma=1000
            in write.only psn=4 len=1 ackreq
            out resp.first psn=0
            out resp.middle psn=1
            out resp.middle psn=2
            out resp.last psn=3
            out ack psn=4
        ";
        more_than_promised_are_refused: "
            config dest_reads=1
            in read psn=0 dma=1
            in read psn=1 dma=1
            out resp.only psn=0
            out nak.invalid psn=1
            fault InvalidRequest
        ";
        one_that_is_answered_makes_room: "
            config dest_reads=1
            in read psn=0 dma=1
            out resp.only psn=0
            in read psn=1 dma=1
            out resp.only psn=1
        ";
        a_payload_is_refused: "
            in read psn=0 len=4 dma=1
            out nak.invalid psn=0
        ";
    }
    atomics {
        add_and_give_back_what_was_there: "
            set at=64 value=40
            in fetch_add psn=0 va=64 value=2
            out atomic.ack psn=0 found=40 msn=1 credits=31
            word at=64 is=42
            in fetch_add psn=1 va=64 value=18446744073709551615
            out atomic.ack psn=1 found=42 msn=2
            word at=64 is=41
            count rx_atomic_requests 2
        ";
        swap_when_equal: "
            set at=64 value=40
            in cmp_swap psn=0 va=64 value=7 compare=41
            out atomic.ack psn=0 found=40 msn=1
            word at=64 is=40
            in cmp_swap psn=1 va=64 value=7 compare=40
            out atomic.ack psn=1 found=40 msn=2
            word at=64 is=7
        ";
        are_executed_in_the_order_of_arrival: "
            set at=64 value=0
            in fetch_add psn=0 va=64 value=1
            in write.only psn=1 va=64 len=8
            in fetch_add psn=2 va=64 value=1
            out atomic.ack psn=0 found=0 msn=1
            out atomic.ack psn=2 found=72340172838076673 msn=3
            word at=64 is=72340172838076674
        ";
        a_response_waits_for_those_of_reads_before_it: "
            config mtu=256
            set at=64 value=5
            in read psn=0 dma=300 va=512
            in fetch_add psn=2 va=64 value=1
            in read psn=3 dma=1
            out resp.first psn=0 msn=1
            out resp.last psn=1 msn=1
            out atomic.ack psn=2 found=5 msn=2
            out resp.only psn=3 msn=3
        ";
        an_ack_waits_for_the_response_before_it: "
            set at=0 value=0
            in fetch_add psn=0 value=1
            in write.only psn=1 va=64 len=1 ackreq
            out atomic.ack psn=0 msn=1
            out ack psn=1 msn=2
        ";
        a_response_acknowledges_everything_before_it: "
            in write.only psn=0 va=64 len=1 ackreq
            in fetch_add psn=1 value=1
            out atomic.ack psn=1 msn=2
            in write.only psn=2 va=64 len=1 ackreq
            in read psn=3 dma=1
            out resp.only psn=3 msn=4
            quiet
        ";
        a_nak_waits_for_the_response_before_it: "
            in fetch_add psn=0 value=1
            in write.only psn=2 len=1
            out atomic.ack psn=0
            out nak.seq psn=1 msn=1
        ";
        one_closes_a_gap: "
            in fetch_add psn=1
            out nak.seq psn=0
            in fetch_add psn=0
            in write.only psn=2 len=1
            out atomic.ack psn=0
            out nak.seq psn=1
        ";
        what_came_too_early_is_not_executed: "
            set at=64 value=1
            in fetch_add psn=1 va=64 value=1
            out nak.seq psn=0 msn=0
            word at=64 is=1
        ";
        share_what_was_promised_with_reads: "
            config dest_reads=2
            set at=64 value=1
            in read psn=0 dma=1
            in fetch_add psn=1 va=64 value=1
            in fetch_add psn=2 va=64 value=1
            out resp.only psn=0
            out atomic.ack psn=1 found=1
            out nak.invalid psn=2 msn=2
            fault InvalidRequest
            word at=64 is=2
        ";
        one_that_is_answered_makes_room: "
            config dest_reads=1
            in fetch_add psn=0 value=1
            out atomic.ack psn=0
            in read psn=1 dma=1
            out resp.only psn=1
            in fetch_add psn=2 value=1
            out atomic.ack psn=2
        ";
        none_are_taken_when_none_were_promised: "
            config dest_reads=0
            in fetch_add psn=0 value=1
            out nak.invalid psn=0
            mem at=0 len=8 is=ee
        ";
        a_misaligned_address_is_an_invalid_request: "
            in fetch_add psn=0 va=4 value=1
            out nak.invalid psn=0
            fault InvalidRequest
            mem at=0 len=16 is=ee
        ";
        a_misaligned_address_is_invalid_before_its_key_is_looked_at: "
            in cmp_swap psn=0 va=1 rkey=99
            out nak.invalid psn=0
        ";
        memory_that_is_not_aligned_as_its_address_is_refused: "
            config shift=4
            in fetch_add psn=0 va=8 value=1
            out nak.access psn=0
            fault RemoteAccess
            mem at=0 len=32 is=ee
        ";
        a_wrong_key_is_an_access_error: "
            in fetch_add psn=0 rkey=99 value=1
            out nak.access psn=0 msn=0
            fault RemoteAccess
            mem at=0 len=8 is=ee
        ";
        the_last_word_of_a_region_is_its_last: "
            set at=1048568 value=1
            in fetch_add psn=0 va=1048568 value=1
            out atomic.ack psn=0 found=1
            in fetch_add psn=1 va=1048576 value=1
            out nak.access psn=1
        ";
        a_range_that_wraps: "
            in fetch_add psn=0 va=18446744073709551608 value=1
            out nak.access psn=0
        ";
        a_region_that_forbids_them_is_an_access_error: "
            config atomic_access_off
            in write.only psn=0 len=1 va=100
            in fetch_add psn=1 value=1
            out nak.access psn=1
            mem at=0 len=8 is=ee
        ";
        a_qp_that_forbids_them_finds_them_invalid: "
            config atomics_off
            in read psn=0 dma=1
            in fetch_add psn=1 value=1
            out resp.only psn=0
            out nak.invalid psn=1
            mem at=0 len=8 is=ee
        ";
        a_payload_is_refused: "
            in fetch_add psn=0 len=8 value=1
            out nak.invalid psn=0
            mem at=0 len=8 is=ee
        ";
        do_not_interrupt_a_message: "
            config mtu=256
            in write.first psn=0 len=256 va=1024 dma=512
            in fetch_add psn=1 value=1
            out nak.invalid psn=1
            mem at=0 len=8 is=ee
        ";
    }
    repeated_atomics {
        get_the_first_result_and_are_not_executed_again: "
            set at=64 value=5
            in fetch_add psn=0 va=64 value=1
            out atomic.ack psn=0 found=5 msn=1
            in fetch_add psn=0 va=64 value=1
            out atomic.ack psn=0 found=5 msn=1
            in fetch_add psn=0 va=64 value=1
            out atomic.ack psn=0 found=5 msn=1
            word at=64 is=6
            count duplicate_request 2
            count rx_atomic_requests 1
        ";
        one_whose_answer_has_not_left_is_answered_once: "
            set at=64 value=5
            in fetch_add psn=0 va=64 value=1
            in fetch_add psn=0 va=64 value=1
            out atomic.ack psn=0 found=5
            quiet
            word at=64 is=6
        ";
        are_remembered_as_many_as_were_promised: "
            config dest_reads=2
            set at=64 value=5
            in fetch_add psn=0 va=64 value=1
            out atomic.ack psn=0
            in fetch_add psn=1 va=64 value=1
            out atomic.ack psn=1
            in fetch_add psn=2 va=64 value=1
            out atomic.ack psn=2
            in fetch_add psn=1 va=64 value=1
            in fetch_add psn=2 va=64 value=1
            out atomic.ack psn=1 found=6 msn=3
            out atomic.ack psn=2 found=7 msn=3
            in fetch_add psn=0 va=64 value=1
            quiet
            count rx_duplicate_read_invalid 1
            word at=64 is=8
        ";
        reads_and_writes_in_between_do_not_push_them_out: "
            config dest_reads=1
            set at=64 value=5
            in fetch_add psn=0 va=64 value=1
            out atomic.ack psn=0
            in read psn=1 dma=1
            out resp.only psn=1
            in write.only psn=2 va=64 len=8
            in fetch_add psn=0 va=64 value=1
            out atomic.ack psn=0 found=5 msn=3
            word at=64 is=144680345676153346
        ";
        are_answered_in_the_order_of_their_psns: "
            set at=64 value=5
            in fetch_add psn=0 va=64 value=1
            in read psn=1 dma=1 va=256
            in fetch_add psn=2 va=64 value=1
            out atomic.ack psn=0 found=5
            in fetch_add psn=0 va=64 value=1
            in read psn=1 dma=1 va=256
            in fetch_add psn=2 va=64 value=1
            out atomic.ack psn=0 found=5
            out resp.only psn=1
            out atomic.ack psn=2 found=6
            word at=64 is=7
        ";
        what_was_no_atomic_cannot_be_repeated_as_one: "
            set at=64 value=5
            in write.only psn=0 len=1 va=512
            in read psn=1 dma=1
            out resp.only psn=1
            in fetch_add psn=0 va=64 value=1
            in fetch_add psn=1 va=64 value=1
            quiet
            count rx_duplicate_read_invalid 2
            word at=64 is=5
        ";
        an_atomic_that_waits_is_not_replaced_by_a_read: "
            in fetch_add psn=0 va=64 value=1
            in read psn=0 dma=8
            count rx_duplicate_read_invalid 1
            out atomic.ack psn=0
            quiet
        ";
    }
    ending_with_a_receive_in_use {
        it_completes_with_a_flush_error: "
            config mtu=256
            recv
            recv
            in send.first psn=0 len=256
            receives in_use=2
            flush
            done r1 WrFlush Recv
            receives in_use=1
            flush
        ";
        a_fault_leaves_it_for_the_flush: "
            config mtu=256
            recv
            in send.first psn=0 len=256
            in write.only psn=1 len=1
            out nak.invalid psn=1
            receives in_use=1
            flush
            done r1 WrFlush
            receives in_use=0
        ";
        a_fault_of_the_receive_itself_completes_it_once: "
            config mtu=256
            recv len=10
            in send.first psn=0 len=256
            out nak.invalid psn=0
            done r1 LocalLength
            flush
            receives in_use=0
        ";
        a_reset_gives_it_back_silently: "
            config mtu=256
            recv
            in send.first psn=0 len=256
            release
            receives in_use=0
            release
            receives in_use=0
        ";
        a_write_holds_none: "
            config mtu=256
            recv
            in write.first psn=0 len=256 dma=300
            flush
            receives in_use=1
        ";
        responses_that_are_due_still_leave: "
            recv
            in read psn=0 dma=1
            flush
            out resp.only psn=0
        ";
    }
    psn_wrap {
        requests_cross_it: "
            config psn=16777215 mtu=256
            in write.first psn=16777215 len=256 dma=600
            in write.middle psn=0 len=256
            in write.last psn=1 len=88 ackreq
            out ack psn=1 msn=1
            in write.only psn=16777215 len=1
            count duplicate_request 1
            out ack psn=1 msn=1
            in write.only psn=3 len=1
            out nak.seq psn=2
        ";
    }
}
