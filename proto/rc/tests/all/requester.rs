//! The requester, rule by rule, as wire scripts.

use crate::script::Rc;
use longhaul_wire_script::scripts;

scripts! {
    Rc;
    segmentation {
        a_message_is_cut_at_the_path_mtu: "
            config mtu=1024
            post write len=2500 va=77
            out  write.first  psn=0 len=1024 va=77 dma=2500 !ackreq
            out  write.middle psn=1 len=1024 !ackreq
            out  write.last   psn=2 len=452 ackreq
            quiet
            in   ack psn=2 msn=1
            done 1 Success Write len=2500
        ";
        a_multiple_of_the_mtu_has_no_empty_last_packet: "
            config mtu=256
            post send len=512
            out  send.first psn=0 len=256
            out  send.last  psn=1 len=256 ackreq
            in   ack psn=1
            done 1 Success
        ";
        an_empty_message_is_one_packet: "
            post write len=0
            post send len=0
            out  write.only psn=0 len=0 dma=0 ackreq
            out  send.only psn=1 len=0 ackreq
            in   ack psn=1
            done 1 Success
            done 2 Success
        ";
        immediate_data_rides_on_the_last_packet: "
            config mtu=256
            post write len=300 imm solicited
            post send len=10 imm
            out  write.first psn=0 !solicited
            out  write.last.imm psn=1 len=44 solicited
            out  send.only.imm psn=2
            in   ack psn=2
            done 1 Success
            done 2 Success
        ";
        an_invalidation_rides_on_the_last_packet: "
            config mtu=256
            post send len=300 inv
            post send len=1 inv
            out  send.first psn=0
            out  send.last.inv psn=1
            out  send.only.inv psn=2
            in   ack psn=2
            done 1 Success
            done 2 Success
        ";
        a_read_takes_as_many_psns_as_it_has_responses: "
            config mtu=1024
            post read len=2500 va=5
            post write len=1
            out  read psn=0 len=0 va=5 dma=2500
            out  write.only psn=3
            in   resp.first psn=0 len=1024
            in   resp.middle psn=1 len=1024
            in   resp.last psn=2 len=452
            done 1 Success Read len=2500
            in   ack psn=3
            done 2 Success
            mem  at=1024 len=1024 is=01
            mem  at=2048 len=452 is=02
            mem  at=2500 len=1 is=ee
        ";
        inline_data_leaves_as_it_was_when_posted: "
            post write len=100 inline lkey=7
            out  write.only psn=0 len=100
            in   ack psn=0
            done 1 Success
        ";
    }
    ack_request {
        long_messages_ask_along_the_way: "
            config mtu=256 ack_request_every=3
            post write len=1280
            out write.first psn=0 !ackreq
            out write.middle psn=1 !ackreq
            out write.middle psn=2 ackreq
            out write.middle psn=3 !ackreq
            out write.last psn=4 ackreq
            in ack psn=4
            done 1 Success
        ";
        the_packet_that_fills_the_window_asks: "
            config mtu=256 window=2
            post write len=768
            out write.first psn=0 !ackreq
            out write.middle psn=1 ackreq
            quiet
            in ack psn=1
            out write.last psn=2 ackreq
            in ack psn=2
            done 1 Success
        ";
        without_that_rule_a_message_asks_along_the_way_alone: "
            config mtu=256 window=4 ack_request_every=3 window_end_unasked
            post write len=1792
            out write.first psn=0 !ackreq
            out write.middle psn=1 !ackreq
            out write.middle psn=2 ackreq
            out write.middle psn=3 !ackreq
            quiet
            in ack psn=2
            out write.middle psn=4 !ackreq
            out write.middle psn=5 ackreq
            out write.last psn=6 ackreq
            quiet
            in ack psn=6
            done 1 Success
        ";
        a_window_narrower_than_the_interval_is_asked_about_once: "
            config mtu=256 window=2 ack_request_every=66 window_end_unasked
            post write len=768
            out write.first psn=0 !ackreq
            out write.middle psn=1 ackreq
            quiet
            in ack psn=1
            out write.last psn=2 ackreq
            in ack psn=2
            done 1 Success
        ";
    }
    window {
        messages_outstanding_are_limited: "
            config messages=1
            post write len=1
            post write len=1
            out write.only psn=0
            quiet
            in ack psn=0
            done 1 Success
            out write.only psn=1
            in ack psn=1
            done 2 Success
        ";
        a_read_may_overshoot_the_packet_window: "
            config mtu=256 window=2
            post read len=1024
            post write len=1
            out read psn=0
            quiet
            in resp.first psn=0 len=256
            in resp.middle psn=1 len=256
            quiet
            in resp.middle psn=2 len=256
            out write.only psn=4
            in resp.last psn=3 len=256
            done 1 Success
            in ack psn=4
            done 2 Success
        ";
    }
    outstanding_reads {
        no_more_than_max_rd_atomic_are_asked_for: "
            config reads=1
            post read len=1
            post read len=1
            out read psn=0
            quiet
            in resp.only psn=0 len=1
            done 1 Success
            out read psn=1
            in resp.only psn=1 len=1
            done 2 Success
        ";
        a_fence_waits_for_reads: "
            post read len=1
            post write len=1 fence
            out read psn=0
            quiet
            in resp.only psn=0 len=1
            done 1 Success
            out write.only psn=1
            in ack psn=1
            done 2 Success
        ";
    }
    coalesced_ack {
        one_ack_completes_many: "
            post write len=1
            post send len=1
            post write len=1
            out write.only psn=0
            out send.only psn=1
            out write.only psn=2
            in ack psn=2 msn=3
            done 1 Success
            done 2 Success
            done 3 Success
        ";
        unsignaled_requests_complete_silently: "
            post write len=1 unsignaled
            post write len=1
            out write.only psn=0
            out write.only psn=1
            in ack psn=1
            done 2 Success
        ";
        an_ack_in_mid_message_completes_nothing: "
            config mtu=256
            post write len=512
            out write.first psn=0
            out write.last psn=1
            in ack psn=0
            in ack psn=1
            done 1 Success
        ";
        a_read_response_acknowledges_what_is_before_it: "
            post write len=1
            post read len=1
            out write.only psn=0
            out read psn=1
            in resp.only psn=1 len=1
            done 1 Success
            done 2 Success
        ";
    }
    ghost_acks {
        old_and_unsent_psns_change_nothing: "
            config psn=10
            post write len=1
            out write.only psn=10
            in ack psn=9
            in ack psn=5
            in ack psn=11
            in ack psn=4000000
            count rx_ghost_ack 2
            count rx_unsent_ack 2
            in ack psn=10
            done 1 Success
        ";
        a_repeated_ack_is_harmless: "
            post write len=1
            post write len=1
            out write.only psn=0
            out write.only psn=1
            in ack psn=0
            in ack psn=0
            done 1 Success
            in ack psn=1
            done 2 Success
        ";
        a_reserved_syndrome_is_dropped: "
            post write len=1
            out write.only psn=0
            in nak.reserved psn=0
            count rx_aeth_reserved 1
            in ack psn=0
            done 1 Success
        ";
    }
    sequence_nak {
        goes_back_to_the_psn_named_and_acknowledges_what_is_before: "
            config mtu=256
            post write len=1
            post write len=700
            out write.only psn=0
            out write.first psn=1
            out write.middle psn=2
            out write.last psn=3
            in nak.seq psn=2
            done 1 Success
            out write.middle psn=2 !ackreq
            out write.last psn=3 ackreq
            count packet_seq_err 1
            count tx_retransmits 2
            in ack psn=3
            done 2 Success
        ";
        an_echo_is_ignored_until_something_is_acknowledged: "
            config mtu=256
            post write len=512
            out write.first psn=0
            out write.last psn=1
            in nak.seq psn=0
            out write.first psn=0
            in nak.seq psn=0
            out write.last psn=1
            quiet
            count rx_nak_ignored 1
            in nak.seq psn=1
            out write.last psn=1
            in ack psn=1
            done 1 Success
        ";
        each_one_costs_a_retry: "
            config retry=0
            post write len=1
            post write len=1
            out write.only psn=0
            out write.only psn=1
            in nak.seq psn=0
            done 1 RetryExceeded
            done 2 WrFlush
            failed
        ";
        an_ack_while_going_back_saves_what_it_covers: "
            config mtu=256
            post write len=1024
            out write.first psn=0
            out write.middle psn=1
            out write.middle psn=2
            out write.last psn=3
            in nak.seq psn=0
            out write.first psn=0
            in ack psn=2
            out write.last psn=3
            in ack psn=3
            done 1 Success
        ";
    }
    implied_nak {
        an_ack_that_passes_a_read_repeats_the_read: "
            post read len=1
            post write len=1
            out read psn=0
            out write.only psn=1
            in ack psn=1
            count implied_nak_seq_err 1
            out read psn=0
            out write.only psn=1
            in resp.only psn=0 len=1
            done 1 Success
            in ack psn=1
            done 2 Success
        ";
        what_lies_before_the_read_is_acknowledged: "
            post write len=1
            post read len=1
            post write len=1
            out write.only psn=0
            out read psn=1
            out write.only psn=2
            in ack psn=2
            done 1 Success
            out read psn=1
            out write.only psn=2
            in resp.only psn=1 len=1
            in ack psn=2
            done 2 Success
            done 3 Success
        ";
        a_gap_inside_a_read_asks_for_the_rest: "
            config mtu=256
            post read len=1000 va=50
            out read psn=0 dma=1000
            in resp.first psn=0 len=256
            in resp.middle psn=2 len=256
            count implied_nak_seq_err 1
            in resp.last psn=3 len=232
            count implied_nak_seq_err 1
            out read psn=1 va=306 dma=744
            in resp.first psn=1 len=256
            in resp.middle psn=2 len=256
            in resp.last psn=3 len=232
            done 1 Success
            mem at=256 len=256 is=01
            mem at=768 len=232 is=03
        ";
        a_response_of_a_later_read_repeats_the_earlier: "
            post read len=1
            post read len=1
            out read psn=0
            out read psn=1
            in resp.only psn=1 len=1
            out read psn=0
            out read psn=1
            in resp.only psn=0 len=1
            in resp.only psn=1 len=1
            done 1 Success
            done 2 Success
        ";
    }
    read_retry {
        a_responder_may_continue_with_middle: "
            config mtu=256 timeout=1ms
            post read len=700
            out read psn=0
            in resp.first psn=0 len=256
            wait 1ms
            out read psn=1 va=256 dma=444
            in resp.middle psn=1 len=256
            in resp.last psn=2 len=188
            done 1 Success
        ";
        a_responder_may_begin_anew_with_only: "
            config mtu=256 timeout=1ms
            post read len=300
            out read psn=0
            in resp.first psn=0 len=256
            wait 1ms
            out read psn=1 va=256 dma=44
            in resp.only psn=1 len=44
            done 1 Success
        ";
        a_second_one_never_asks_for_what_has_arrived: "
            config mtu=256 timeout=1ms
            post read len=1000
            out read psn=0
            in resp.first psn=0 len=256
            in resp.middle psn=1 len=256
            wait 1ms
            out read psn=2 va=512 dma=488
            wait 1ms
            out read psn=2 va=512 dma=488
            in resp.middle psn=2 len=256
            in resp.last psn=3 len=232
            done 1 Success
        ";
        a_responder_that_cannot_send_its_first_response_is_waited_for: "
            config mtu=256
            post read len=300
            out read psn=0
            in rnr psn=0
            wait 10us
            out read psn=0 va=0 dma=300
            in resp.first psn=0 len=256
            in resp.last psn=1 len=44
            done 1 Success
        ";
        a_responder_that_cannot_send_a_later_response_is_asked_again_by_the_timer: "
            config mtu=256 timeout=1ms
            post read len=300
            out read psn=0
            in resp.first psn=0 len=256
            in rnr psn=0
            quiet
            count rx_ghost_ack 1
            wait 1ms
            out read psn=1 va=256 dma=44
            in resp.last psn=1 len=44
            done 1 Success
        ";
        late_responses_to_the_first_request_count_and_are_not_asked_for_again: "
            config mtu=256 timeout=1ms
            post read len=700
            out read psn=0
            wait 1ms
            in resp.first psn=0 len=256
            out read psn=1 va=256
            in resp.middle psn=1 len=256
            in resp.last psn=2 len=188
            done 1 Success
            in resp.first psn=1 len=256
            count rx_ghost_ack 1
        ";
    }
    atomics {
        carry_operands_and_bring_back_what_was_there: "
            post fetch_add at=16 va=800 value=5
            post cmp_swap at=32 va=808 value=7 compare=6
            out  fetch_add psn=0 len=0 va=800 rkey=1 value=5 ackreq
            out  cmp_swap psn=1 len=0 va=808 rkey=1 value=7 compare=6 ackreq
            quiet
            in   atomic.ack psn=0 found=100
            done 1 Success FetchAdd len=8
            in   atomic.ack psn=1 found=6
            done 2 Success CmpSwap len=8
            word at=16 is=100
            word at=32 is=6
            mem  at=24 len=8 is=ee
        ";
        an_unsignaled_one_fills_its_memory_all_the_same: "
            post fetch_add at=0 unsignaled
            post write len=1
            out  fetch_add psn=0
            out  write.only psn=1
            in   atomic.ack psn=0 found=9
            in   ack psn=1
            done 2 Success
            word at=0 is=9
        ";
        longer_segments_keep_their_rest: "
            post fetch_add at=0 len=24
            out  fetch_add psn=0
            in   atomic.ack psn=0 found=1
            done 1 Success len=8
            word at=0 is=1
            mem  at=8 len=16 is=ee
        ";
        operands_must_be_eight_aligned_bytes_and_not_inline: "
            refuse fetch_add len=7
            refuse cmp_swap len=0
            refuse fetch_add va=4
            refuse fetch_add inline
            quiet
        ";
        without_max_rd_atomic_none_is_taken: "
            config reads=0
            refuse fetch_add
            refuse cmp_swap
            quiet
        ";
        share_max_rd_atomic_with_reads: "
            config reads=2
            post read len=1
            post fetch_add
            post cmp_swap
            post read len=1
            out read psn=0
            out fetch_add psn=1
            quiet
            in resp.only psn=0 len=1
            done 1 Success
            out cmp_swap psn=2
            quiet
            in atomic.ack psn=1
            done 2 Success
            out read psn=3
            in atomic.ack psn=2
            in resp.only psn=3 len=1
            done 3 Success
            done 4 Success
        ";
        a_fence_waits_for_them: "
            post fetch_add
            post write len=1 fence
            post write len=1
            out fetch_add psn=0
            quiet
            in atomic.ack psn=0
            done 1 Success
            out write.only psn=1
            out write.only psn=2
            in ack psn=2
            done 2 Success
            done 3 Success
        ";
        a_fenced_one_waits_for_reads: "
            post read len=1
            post cmp_swap fence
            out read psn=0
            quiet
            in resp.only psn=0 len=1
            done 1 Success
            out cmp_swap psn=1
            in atomic.ack psn=1
            done 2 Success
        ";
        a_fence_holds_while_going_back: "
            config timeout=1ms
            post fetch_add
            post write len=1 fence
            out fetch_add psn=0
            wait 1ms
            out fetch_add psn=0
            quiet
            in atomic.ack psn=0
            done 1 Success
            out write.only psn=1
            in ack psn=1
            done 2 Success
        ";
        a_fence_does_not_wait_for_writes: "
            post write len=1
            post fetch_add fence
            out write.only psn=0
            out fetch_add psn=1
            in atomic.ack psn=1
            done 1 Success
            done 2 Success
        ";
        a_response_acknowledges_what_is_before_it: "
            post write len=1
            post fetch_add
            out write.only psn=0
            out fetch_add psn=1
            in atomic.ack psn=1
            done 1 Success
            done 2 Success
        ";
        an_ack_does_not_answer_one: "
            post fetch_add
            post write len=1
            out fetch_add psn=0
            out write.only psn=1
            in ack psn=0
            count implied_nak_seq_err 1
            out fetch_add psn=0
            out write.only psn=1
            in atomic.ack psn=0
            done 1 Success
            in ack psn=1
            done 2 Success
        ";
        an_ack_that_passes_one_repeats_it: "
            post fetch_add value=3
            post write len=1
            out fetch_add psn=0 value=3
            out write.only psn=1
            in ack psn=1
            count implied_nak_seq_err 1
            out fetch_add psn=0 value=3
            out write.only psn=1
            count tx_retransmits 2
            in atomic.ack psn=0
            in ack psn=1
            done 1 Success
            done 2 Success
        ";
        the_response_of_a_later_one_repeats_the_earlier: "
            post fetch_add at=0
            post fetch_add at=8
            out fetch_add psn=0
            out fetch_add psn=1
            in atomic.ack psn=1 found=2
            count implied_nak_seq_err 1
            count rx_read_response_gap 1
            out fetch_add psn=0
            out fetch_add psn=1
            in atomic.ack psn=0 found=1
            in atomic.ack psn=1 found=2
            done 1 Success
            done 2 Success
            word at=0 is=1
            word at=8 is=2
        ";
        a_response_that_passes_a_read_repeats_the_read: "
            config mtu=256
            post read len=300
            post fetch_add
            out read psn=0
            out fetch_add psn=2
            in resp.first psn=0 len=256
            in atomic.ack psn=2
            out read psn=1 va=256
            out fetch_add psn=2
            in resp.only psn=1 len=44
            in atomic.ack psn=2
            done 1 Success
            done 2 Success
        ";
        each_repetition_costs_a_retry: "
            config timeout=1ms retry=1
            post fetch_add
            out fetch_add psn=0
            wait 1ms
            out fetch_add psn=0
            wait 1ms
            done 1 RetryExceeded FetchAdd
            failed
        ";
        a_late_response_while_going_back_is_enough: "
            config timeout=1ms
            post fetch_add
            post write len=1
            out fetch_add psn=0
            out write.only psn=1
            wait 1ms
            in atomic.ack psn=0
            done 1 Success
            out write.only psn=1
            in ack psn=1
            done 2 Success
        ";
        a_repeated_response_is_a_ghost: "
            post fetch_add at=0
            post fetch_add at=8
            out fetch_add psn=0
            out fetch_add psn=1
            in atomic.ack psn=0 found=1
            in atomic.ack psn=0 found=5
            done 1 Success
            count rx_ghost_ack 1
            word at=0 is=1
            in atomic.ack psn=1
            done 2 Success
        ";
        a_response_never_asked_for_changes_nothing: "
            post write len=1
            out write.only psn=0
            in atomic.ack psn=1 found=5
            count rx_unsent_ack 1
            in ack psn=0
            done 1 Success
            mem at=0 len=8 is=ee
        ";
        not_ready_is_waited_out: "
            post fetch_add
            out fetch_add psn=0
            in rnr psn=0
            wait 10us
            out fetch_add psn=0
            in atomic.ack psn=0
            done 1 Success
        ";
        a_sequence_nak_repeats_from_the_psn_named: "
            post fetch_add
            post fetch_add
            out fetch_add psn=0
            out fetch_add psn=1
            in nak.seq psn=0
            out fetch_add psn=0
            out fetch_add psn=1
            in atomic.ack psn=0
            in atomic.ack psn=1
            done 1 Success
            done 2 Success
        ";
        can_be_refused: "
            post write len=1
            post cmp_swap
            post fetch_add
            out write.only psn=0
            out cmp_swap psn=1
            out fetch_add psn=2
            in nak.access psn=1
            done 1 Success
            done 2 RemoteAccess CmpSwap
            done 3 WrFlush
        ";
        a_misplaced_one_is_refused_as_invalid: "
            post fetch_add
            out fetch_add psn=0
            in nak.invalid psn=0
            done 1 RemoteInvalidRequest
        ";
        memory_that_is_not_ours_is_never_asked_for: "
            post fetch_add lkey=99
            quiet
            done 1 LocalProtection FetchAdd
            failed
        ";
        cross_the_psn_wrap: "
            config psn=16777215
            post fetch_add
            post fetch_add
            out fetch_add psn=16777215
            out fetch_add psn=0
            in atomic.ack psn=16777215
            in atomic.ack psn=0
            done 1 Success
            done 2 Success
        ";
        one_that_has_begun_is_finished_while_draining: "
            post fetch_add
            post fetch_add
            out fetch_add psn=0
            pause
            quiet
            in atomic.ack psn=0
            done 1 Success
            drained
            resume
            out fetch_add psn=1
            in atomic.ack psn=1
            done 2 Success
        ";
    }
    bad_response {
        a_read_response_to_an_atomic_is_fatal: "
            post fetch_add
            out fetch_add psn=0
            in resp.only psn=0 len=8
            done 1 BadResponse FetchAdd
            failed
            mem at=0 len=8 is=ee
        ";
        an_atomic_response_to_a_read_is_fatal: "
            post read len=8
            out read psn=0
            in atomic.ack psn=0
            done 1 BadResponse Read
            failed
            mem at=0 len=8 is=ee
        ";
        an_atomic_response_to_a_write_is_fatal: "
            post write len=1
            out write.only psn=0
            in atomic.ack psn=0
            done 1 BadResponse
            failed
        ";
        an_atomic_response_inside_a_read_is_fatal: "
            config mtu=256
            post read len=300
            out read psn=0
            in resp.first psn=0 len=256
            in atomic.ack psn=1
            done 1 BadResponse
            count req_bad_response 1
        ";
        a_response_to_a_write_is_fatal: "
            post write len=1
            out write.only psn=0
            in resp.only psn=0 len=1
            done 1 BadResponse
            failed
        ";
        a_middle_before_a_first_is_fatal: "
            config mtu=256
            post read len=700
            out read psn=0
            in resp.middle psn=0 len=256
            done 1 BadResponse
        ";
        a_wrong_length_is_a_local_length_error: "
            post read len=10
            out read psn=0
            in resp.only psn=0 len=9
            done 1 LocalLength
        ";
    }
    local_ack_timer {
        goes_back_to_the_oldest_unacknowledged: "
            config mtu=256 timeout=1ms
            post write len=700
            out write.first psn=0
            out write.middle psn=1
            out write.last psn=2
            in ack psn=0
            wait 999us
            quiet
            wait 1us
            out write.middle psn=1
            out write.last psn=2
            count local_ack_timeout_err 1
            in ack psn=2
            done 1 Success
        ";
        begins_with_the_packet_that_asks: "
            config mtu=256 timeout=1ms
            post write len=700
            out write.first psn=0 !ackreq
            wait 900us
            out write.middle psn=1 !ackreq
            wait 900us
            out write.last psn=2 ackreq
            wait 999us
            quiet
            count local_ack_timeout_err 0
            wait 1us
            count local_ack_timeout_err 1
            in ack psn=2
            done 1 Success
        ";
        waits_for_the_port_to_take_the_packet_that_asks: "
            config mtu=256 timeout=1ms retry=0
            post write len=500
            out write.first psn=0
            wait 50ms
            count local_ack_timeout_err 0
            out write.last psn=1 ackreq
            wait 999us
            count local_ack_timeout_err 0
            wait 1us
            done 1 RetryExceeded
        ";
        an_earlier_packet_that_asked_keeps_it_running: "
            config mtu=256 timeout=1ms
            post write len=10
            post write len=700
            out write.only psn=0 ackreq
            wait 600us
            out write.first psn=1
            wait 399us
            count local_ack_timeout_err 0
            wait 1us
            count local_ack_timeout_err 1
            out write.only psn=0
            out write.first psn=1
            out write.middle psn=2
            out write.last psn=3
        ";
        goes_by_progress_once_that_is_answered: "
            config mtu=256 timeout=1ms
            post write len=10
            post write len=700
            out write.only psn=0
            out write.first psn=1
            wait 600us
            in ack psn=0
            done 1 Success
            wait 900us
            out write.middle psn=2
            wait 900us
            out write.last psn=3 ackreq
            wait 999us
            count local_ack_timeout_err 0
            in ack psn=3
            done 2 Success
        ";
        starts_again_with_every_acknowledgement: "
            config timeout=1ms
            post write len=1
            post write len=1
            out write.only psn=0
            out write.only psn=1
            wait 600us
            in ack psn=0
            done 1 Success
            wait 600us
            quiet
            wait 400us
            out write.only psn=1
            in ack psn=1
            done 2 Success
        ";
        starts_again_when_going_back: "
            config timeout=1ms
            post write len=1
            post write len=1
            out write.only psn=0
            out write.only psn=1
            wait 600us
            in nak.seq psn=0
            out write.only psn=0
            out write.only psn=1
            wait 600us
            quiet
            count local_ack_timeout_err 0
            in ack psn=1
            done 1 Success
            done 2 Success
        ";
        stops_when_nothing_is_outstanding: "
            config timeout=1ms
            post write len=1
            out write.only psn=0
            in ack psn=0
            done 1 Success
            wait 5ms
            quiet
            count local_ack_timeout_err 0
        ";
        seven_retries_are_seven: "
            config timeout=1ms retry=7
            post write len=1
            post send len=1
            out write.only psn=0
            out send.only psn=1
            wait 1ms
            out write.only psn=0
            out send.only psn=1
            wait 1ms
            out write.only psn=0
            out send.only psn=1
            wait 1ms
            out write.only psn=0
            out send.only psn=1
            wait 1ms
            out write.only psn=0
            out send.only psn=1
            wait 1ms
            out write.only psn=0
            out send.only psn=1
            wait 1ms
            out write.only psn=0
            out send.only psn=1
            wait 1ms
            out write.only psn=0
            out send.only psn=1
            wait 1ms
            quiet
            done 1 RetryExceeded
            done 2 WrFlush
            count local_ack_timeout_err 8
            failed
        ";
        an_adaptive_one_doubles_up_to_the_timeout_and_fails_after_all_timeouts_together: "
            config timeout=4ms adaptive=1ms retry=2
            post write len=1
            out write.only psn=0
            wait 1ms
            out write.only psn=0
            wait 2ms
            out write.only psn=0
            wait 3ms
            quiet
            wait 1ms
            out write.only psn=0
            wait 4ms
            done 1 RetryExceeded
            failed
        ";
        an_adaptive_one_begins_short_and_doubles_until_there_is_progress: "
            config timeout=50ms adaptive=2ms retry=7
            post write len=1
            post write len=1
            out write.only psn=0
            out write.only psn=1
            wait 2ms
            out write.only psn=0
            out write.only psn=1
            wait 3ms
            quiet
            wait 1ms
            out write.only psn=0
            out write.only psn=1
            wait 8ms
            out write.only psn=0
            out write.only psn=1
            in ack psn=0
            done 1 Success
            wait 2ms
            out write.only psn=1
        ";
        progress_gives_all_retries_back: "
            config timeout=1ms retry=1
            post write len=1
            post write len=1
            out write.only psn=0
            out write.only psn=1
            wait 1ms
            out write.only psn=0
            out write.only psn=1
            in ack psn=0
            done 1 Success
            wait 1ms
            out write.only psn=1
            wait 1ms
            done 2 RetryExceeded
        ";
        without_timeout_it_waits_for_ever: "
            post write len=1
            out write.only psn=0
            wait 100000ms
            quiet
            in ack psn=0
            done 1 Success
        ";
    }
    probe {
        repeats_the_first_and_the_last_packet_alone: "
            config mtu=256 timeout=1ms probe_above=3
            post write len=1000
            post send len=300
            out write.first psn=0
            out write.middle psn=1
            out write.middle psn=2
            out write.last psn=3
            out send.first psn=4
            wait 1ms
            count local_ack_timeout_err 1
            out write.first psn=0 ackreq
            out send.first psn=4 ackreq
            count tx_retransmits 2
            out send.last psn=5
            quiet
            in ack psn=5
            done 1 Success
            done 2 Success
            count tx_retransmits 2
        ";
        a_window_that_costs_no_more_is_repeated_at_once: "
            config mtu=256 timeout=1ms probe_above=3
            post write len=700
            out write.first psn=0
            out write.middle psn=1
            out write.last psn=2
            wait 1ms
            out write.first psn=0
            out write.middle psn=1
            out write.last psn=2
            in ack psn=2
            done 1 Success
        ";
        a_late_ack_is_no_reason_to_go_back: "
            config mtu=256 timeout=1ms probe_above=1
            post write len=10
            post write len=10
            post write len=10
            out write.only psn=0
            out write.only psn=1
            out write.only psn=2
            wait 1ms
            out write.only psn=0
            out write.only psn=2
            in ack psn=0
            done 1 Success
            quiet
            in ack psn=2
            done 2 Success
            done 3 Success
            in ack psn=2
            count rx_ghost_ack 1
            count tx_retransmits 2
        ";
        a_late_ack_ends_one_that_has_not_left: "
            config mtu=256 timeout=1ms probe_above=1
            post write len=10
            post write len=10
            post write len=10
            out write.only psn=0
            out write.only psn=1
            out write.only psn=2
            wait 1ms
            in ack psn=0
            done 1 Success
            out write.only psn=2
            quiet
            in ack psn=2
            done 2 Success
            done 3 Success
        ";
        a_nak_tells_where_to_go_back_to: "
            config mtu=256 timeout=1ms probe_above=1 retry=1
            post write len=1000
            out write.first psn=0
            out write.middle psn=1
            out write.middle psn=2
            out write.last psn=3
            wait 1ms
            out write.first psn=0
            out write.last psn=3
            in nak.seq psn=2
            out write.middle psn=2
            out write.last psn=3
            in ack psn=3
            done 1 Success
        ";
        its_answer_costs_no_second_retry: "
            config mtu=256 timeout=1ms probe_above=1 retry=1
            post write len=500
            out write.first psn=0
            out write.last psn=1
            wait 1ms
            out write.first psn=0
            out write.last psn=1 ackreq
            in nak.seq psn=0
            out write.first psn=0
            out write.last psn=1
            in ack psn=1
            done 1 Success
        ";
        each_costs_a_retry: "
            config mtu=256 timeout=1ms probe_above=1 retry=2
            post write len=700
            out write.first psn=0
            out write.middle psn=1
            out write.last psn=2
            wait 1ms
            out write.first psn=0
            out write.last psn=2
            wait 1ms
            out write.first psn=0
            out write.last psn=2
            wait 1ms
            done 1 RetryExceeded
            count local_ack_timeout_err 3
        ";
        a_read_is_asked_for_from_where_responses_are_missing: "
            config mtu=256 timeout=1ms probe_above=1
            post read len=1000
            out read psn=0
            in resp.first psn=0 len=256
            wait 1ms
            out read psn=1 va=256 dma=744
            quiet
            in resp.first psn=1 len=256
            in resp.middle psn=2 len=256
            in resp.last psn=3 len=232
            done 1 Success
        ";
        the_first_and_last_of_several_reads_show_what_is_missing: "
            config mtu=256 timeout=1ms probe_above=1
            post read len=300
            post read len=300
            post read len=300
            out read psn=0
            out read psn=2
            out read psn=4
            in resp.first psn=0 len=256
            wait 1ms
            out read psn=1 va=256 dma=44
            out read psn=4
            quiet
            in resp.only psn=1 len=44
            done 1 Success
            in resp.first psn=4 len=256
            count implied_nak_seq_err 1
            out read psn=2
            out read psn=4
            in resp.first psn=2 len=256
            in resp.last psn=3 len=44
            done 2 Success
            in resp.first psn=4 len=256
            in resp.last psn=5 len=44
            done 3 Success
        ";
        an_atomic_is_repeated_like_a_read: "
            config mtu=256 timeout=1ms probe_above=1
            post fetch_add
            post write len=10
            out fetch_add psn=0
            out write.only psn=1
            wait 1ms
            out fetch_add psn=0
            out write.only psn=1
            in atomic.ack psn=0
            done 1 Success
            in ack psn=1
            done 2 Success
        ";
        without_credits_it_goes_back_instead: "
            config mtu=256 timeout=1ms probe_above=1
            post send len=1
            post send len=700
            out send.only psn=0
            out send.first psn=1
            out send.middle psn=2
            out send.last psn=3
            in ack psn=0 msn=1 credits=0
            done 1 Success
            wait 1ms
            out send.first psn=1 ackreq
            quiet
            in ack psn=3 msn=2
            done 2 Success
        ";
    }
    rnr_nak {
        waits_as_long_as_told_then_goes_back: "
            post send len=1
            post send len=1
            out send.only psn=0
            out send.only psn=1
            in rnr psn=0 timer=5
            quiet
            wait 59us
            quiet
            wait 1us
            out send.only psn=0
            out send.only psn=1
            count rx_rnr_nak 1
            in ack psn=1
            done 1 Success
            done 2 Success
        ";
        acknowledges_what_is_before_it: "
            post write len=1
            post send len=1
            out write.only psn=0
            out send.only psn=1
            in rnr psn=1
            done 1 Success
            wait 10us
            out send.only psn=1
            in ack psn=1
            done 2 Success
        ";
        a_sequence_nak_during_the_wait_is_ignored: "
            post send len=1
            post send len=1
            out send.only psn=0
            out send.only psn=1
            in rnr psn=0 timer=5
            in nak.seq psn=0
            quiet
            wait 60us
            out send.only psn=0
            out send.only psn=1
            in ack psn=1
            done 1 Success
            done 2 Success
        ";
        an_acknowledgement_ends_the_wait: "
            post send len=1
            post send len=1
            out send.only psn=0
            in rnr psn=0 timer=31
            quiet
            in ack psn=0
            done 1 Success
            out send.only psn=1
            in ack psn=1
            done 2 Success
        ";
        rnr_retries_are_counted: "
            config rnr_retry=1
            post send len=1
            post send len=1
            out send.only psn=0
            out send.only psn=1
            in rnr psn=0
            wait 10us
            out send.only psn=0
            out send.only psn=1
            in rnr psn=0
            done 1 RnrRetryExceeded
            done 2 WrFlush
            count rnr_nak_retry_err 1
        ";
        seven_means_for_ever: "
            config rnr_retry=7
            post send len=1
            out send.only psn=0
            in rnr psn=0
            wait 10us
            out send.only psn=0
            in rnr psn=0
            wait 10us
            out send.only psn=0
            in rnr psn=0
            wait 10us
            out send.only psn=0
            in rnr psn=0
            wait 10us
            out send.only psn=0
            in rnr psn=0
            wait 10us
            out send.only psn=0
            in rnr psn=0
            wait 10us
            out send.only psn=0
            in rnr psn=0
            wait 10us
            out send.only psn=0
            in rnr psn=0
            wait 10us
            out send.only psn=0
            in ack psn=0
            done 1 Success
        ";
        a_change_of_attributes_leaves_the_window_as_narrow: "
            config mtu=256 rnr_retry=7
            post send len=2304
            out send.first psn=0 !ackreq
            out send.middle psn=1 !ackreq
            out send.middle psn=2 !ackreq
            out send.middle psn=3 !ackreq
            out send.middle psn=4 !ackreq
            out send.middle psn=5 !ackreq
            out send.middle psn=6 !ackreq
            out send.middle psn=7 !ackreq
            out send.last psn=8 ackreq
            in rnr psn=0
            adjust rnr_retry=3
            wait 10us
            out send.first psn=0 !ackreq
            out send.middle psn=1 !ackreq
            out send.middle psn=2 !ackreq
            out send.middle psn=3 ackreq
            quiet
        ";
        each_one_halves_the_window_and_acknowledgements_widen_it: "
            config mtu=256 rnr_retry=7
            post send len=3072
            out send.first psn=0 !ackreq
            out send.middle psn=1 !ackreq
            out send.middle psn=2 !ackreq
            out send.middle psn=3 !ackreq
            out send.middle psn=4 !ackreq
            out send.middle psn=5 !ackreq
            out send.middle psn=6 !ackreq
            out send.middle psn=7 !ackreq
            out send.middle psn=8 !ackreq
            out send.middle psn=9 !ackreq
            out send.middle psn=10 !ackreq
            out send.last psn=11 ackreq
            in rnr psn=0
            wait 10us
            out send.first psn=0 !ackreq
            out send.middle psn=1 !ackreq
            out send.middle psn=2 !ackreq
            out send.middle psn=3 !ackreq
            out send.middle psn=4 !ackreq
            out send.middle psn=5 ackreq
            quiet
            in rnr psn=0
            wait 10us
            out send.first psn=0 !ackreq
            out send.middle psn=1 !ackreq
            out send.middle psn=2 !ackreq
            out send.middle psn=3 ackreq
            quiet
            in rnr psn=0
            wait 10us
            out send.first psn=0 !ackreq
            out send.middle psn=1 !ackreq
            out send.middle psn=2 !ackreq
            out send.middle psn=3 ackreq
            quiet
            in ack psn=3
            out send.middle psn=4 !ackreq
            out send.middle psn=5 !ackreq
            out send.middle psn=6 !ackreq
            out send.middle psn=7 !ackreq
            out send.middle psn=8 !ackreq
            out send.middle psn=9 !ackreq
            out send.middle psn=10 !ackreq
            out send.last psn=11 ackreq
            in ack psn=11
            done 1 Success
        ";
    }
    fatal_nak {
        ends_the_request_named_after_completing_those_before: "
            post write len=1
            post write len=1
            post send len=1
            out write.only psn=0
            out write.only psn=1
            out send.only psn=2
            in nak.access psn=1
            done 1 Success
            done 2 RemoteAccess
            done 3 WrFlush
            count req_remote_access_errors 1
            failed
        ";
        invalid_request: "
            post send len=1
            out send.only psn=0
            in nak.invalid psn=0
            done 1 RemoteInvalidRequest
        ";
        remote_operational_error: "
            post send len=1
            out send.only psn=0
            in nak.op psn=0
            done 1 RemoteOperation
        ";
        a_read_can_be_refused: "
            post read len=1
            out read psn=0
            in nak.access psn=0
            done 1 RemoteAccess Read
        ";
        flushes_unsignaled_requests_visibly: "
            post write len=1
            post write len=1 unsignaled
            out write.only psn=0
            out write.only psn=1
            in nak.access psn=0
            done 1 RemoteAccess
            done 2 WrFlush
        ";
    }
    local_protection {
        fails_once_everything_before_is_done: "
            post write len=1
            post write len=1 lkey=99
            post write len=1
            out write.only psn=0
            quiet
            in ack psn=0
            done 1 Success
            quiet
            done 2 LocalProtection
            done 3 WrFlush
        ";
        a_read_into_memory_that_is_not_ours_is_never_asked_for: "
            post read len=1 lkey=99
            quiet
            done 1 LocalProtection
        ";
    }
    credits {
        without_credits_one_packet_probes: "
            config mtu=256
            post send len=1
            out  send.only psn=0
            in   ack psn=0 msn=1 credits=0
            done 1 Success
            post send len=600
            post send len=1
            out  send.first psn=1 ackreq
            quiet
            in   ack psn=1 msn=1 credits=0
            out  send.middle psn=2
            out  send.last psn=3
            quiet
            in   ack psn=3 msn=2 credits=2
            done 2 Success
            out  send.only psn=4
            in   ack psn=4 msn=3 credits=31
            done 3 Success
        ";
        writes_need_none: "
            post write len=1
            out write.only psn=0
            in ack psn=0 msn=1 credits=0
            done 1 Success
            post write len=1
            post write len=1
            out write.only psn=1
            out write.only psn=2
            in ack psn=2
            done 2 Success
            done 3 Success
        ";
        the_latest_ack_again_may_bring_more: "
            post send len=1
            out send.only psn=0
            in ack psn=0 msn=1 credits=0
            done 1 Success
            post send len=1
            post send len=1
            out send.only psn=1
            quiet
            in ack psn=0 msn=1 credits=2
            out send.only psn=2
            in ack psn=2
            done 2 Success
            done 3 Success
        ";
        they_can_be_ignored: "
            config ignore_credits
            post send len=1
            out send.only psn=0
            in ack psn=0 msn=1 credits=0
            done 1 Success
            post send len=1
            post send len=1
            out send.only psn=1
            out send.only psn=2
            in ack psn=2
            done 2 Success
            done 3 Success
        ";
    }
    psn_wrap {
        a_message_crosses_it: "
            config psn=16777214 mtu=256
            post write len=1000
            out write.first psn=16777214
            out write.middle psn=16777215
            out write.middle psn=0
            out write.last psn=1
            in nak.seq psn=16777215
            out write.middle psn=16777215
            out write.middle psn=0
            out write.last psn=1
            in ack psn=0
            in ack psn=1
            done 1 Success
        ";
        a_read_crosses_it: "
            config psn=16777215 mtu=256
            post read len=512
            out read psn=16777215
            in resp.first psn=16777215 len=256
            in resp.last psn=0 len=256
            done 1 Success
        ";
    }
    draining {
        a_message_cut_by_the_window_is_not_drained: "
            config mtu=256 window=1
            post write len=512
            out write.first psn=0
            pause
            draining
            in ack psn=0
            draining
            out write.last psn=1
            in ack psn=1
            done 1 Success
            drained
        ";
        what_has_begun_is_finished_and_nothing_else_begins: "
            config mtu=256
            post write len=512
            post write len=1
            out write.first psn=0
            pause
            out write.last psn=1
            quiet
            in ack psn=1
            done 1 Success
            drained
            quiet
            resume
            out write.only psn=2
            in ack psn=2
            done 2 Success
        ";
    }
}
