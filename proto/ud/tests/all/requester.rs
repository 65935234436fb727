//! The requester, rule by rule, as wire scripts.

use crate::script::Ud;
use longhaul_wire_script::scripts;

scripts! {
    Ud;
    packets {
        one_datagram_is_one_packet_and_complete_when_it_left: "
            post len=300
            none_done
            out send.only psn=0 len=300 qpn=34 source=17 qkey=17 to=10.0.0.2 pkey=8001 !solicited \
                !migreq !imm is=ee
            done 1 Success Send len=300 peer=34
        ";
        an_empty_one_needs_no_memory: "
            post len=0 lkey=99
            out send.only len=0
            done 1 Success
        ";
        immediate_data_and_the_solicited_event_go_along: "
            config migreq
            post len=1 imm solicited
            out send.only.imm psn=0 len=1 imm solicited migreq
            done 1 Success
        ";
        several_segments_are_gathered: "
            post len=103 parts=4
            out send.only len=103 is=ee
            done 1 Success
        ";
        inline_data_is_copied_when_posted: "
            post len=50 inline lkey=99
            post len=50
            poke len=50
            out send.only len=50 is=ee
            out send.only len=50 !is=ee
            done 1 Success
            done 2 Success
        ";
        one_fills_the_mtu: "
            config mtu=256
            post len=256
            out send.only len=256
            done 1 Success len=256
        ";
    }
    destinations {
        each_work_request_names_its_own: "
            post ah=2 qpn=5 qkey=9
            post ah=1 qpn=16777215 qkey=17
            out send.only to=fd00::2 qpn=5 qkey=9
            out send.only to=10.0.0.2 qpn=16777215 qkey=17
            done 1 Success peer=5
            done 2 Success peer=16777215
        ";
        a_qkey_with_the_highest_bit_stands_for_that_of_the_qp: "
            config qkey=4008636142
            post qkey=2147483648
            post qkey=2147483647
            out send.only qkey=4008636142
            out send.only qkey=2147483647
            qkey 7
            post qkey=4294967295
            out send.only qkey=7
            done 1 Success
            done 2 Success
            done 3 Success
        ";
        an_address_handle_that_is_gone_is_an_error: "
            post ah=3 unsignaled
            post
            quiet
            failed
            done 1 LocalQpOperation Send peer=34
            done 2 WrFlush
        ";
        an_address_handle_of_another_number_too: "
            post ah=4294967295
            post ah=0
            quiet
            done 1 LocalQpOperation
            done 2 WrFlush
        ";
    }
    numbering {
        each_packet_takes_a_psn: "
            config psn=16777214
            post
            post
            post
            out send.only psn=16777214
            out send.only psn=16777215
            out send.only psn=0
            done 1 Success
            done 2 Success
            done 3 Success
        ";
    }
    completions {
        unsignaled_success_is_silent: "
            post unsignaled
            out send.only
            post unsignaled signal_all
            out send.only
            done 2 Success
        ";
        a_fence_has_nothing_to_wait_for: "
            post fence
            out send.only
            done 1 Success
        ";
    }
    too_long {
        what_exceeds_the_mtu_completes_and_never_leaves: "
            config mtu=256
            post len=257
            quiet
            done 1 Success len=257
            count tx_datagram_too_long 1
        ";
        the_next_leaves_in_its_stead_and_takes_the_psn: "
            config mtu=256
            post len=1
            post len=1073741824
            post len=300 unsignaled lkey=99 ah=9
            post len=2
            out send.only psn=0 len=1
            out send.only psn=1 len=2
            done 1 Success
            done 2 Success
            done 4 Success
            count tx_datagram_too_long 2
        ";
    }
    local_errors {
        memory_that_may_not_be_read_fails_the_queue: "
            post len=1
            post len=10 lkey=99 unsignaled
            post len=1 unsignaled
            out send.only psn=0
            quiet
            failed
            done 1 Success
            done 2 LocalProtection
            done 3 WrFlush
        ";
        nothing_leaves_when_a_later_segment_is_wrong: "
            post at=65530 len=12 parts=2
            quiet
            done 1 LocalProtection
        ";
        what_is_posted_to_a_failed_queue_waits_to_be_flushed: "
            post ah=9
            quiet
            post unsignaled
            quiet
            done 1 LocalQpOperation
            none_done
            flush
            done 2 WrFlush
        ";
        a_recovered_queue_goes_on_with_the_next_psn: "
            post
            out send.only psn=0
            post ah=9
            quiet
            recover
            post
            out send.only psn=1
            done 1 Success
            done 2 LocalQpOperation
            done 3 Success
        ";
    }
    refusals {
        only_datagrams_are_queued: "
            refuse send len=1
            refuse write len=1
            refuse read len=1
            refuse fetch_add len=8
        ";
        the_queue_has_its_limits: "
            config depth=2
            refuse len=257 inline
            refuse len=5 parts=5
            refuse len=4294967300 parts=4
            post len=256 inline
            post
            refuse
            out send.only len=256
            post
            out send.only
            out send.only
            done 1 Success
            done 2 Success
            done 3 Success
        ";
    }
    draining {
        a_paused_queue_begins_nothing: "
            post
            post
            out send.only psn=0
            pause
            drained
            quiet
            resume
            out send.only psn=1
            done 1 Success
            done 2 Success
        ";
        a_flush_completes_everything_in_order: "
            post
            post unsignaled
            flush
            quiet
            failed
            done 1 WrFlush
            done 2 WrFlush
        ";
    }
}
