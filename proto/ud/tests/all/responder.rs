//! The responder, rule by rule, as wire scripts.

use crate::script::Ud;
use longhaul_wire_script::scripts;

scripts! {
    Ud;
    placement {
        the_datagram_lies_behind_forty_bytes: "
            recv at=1000 len=4096
            in send.only psn=7 len=300
            done r1 Success Recv len=340 peer=34 grh !imm !solicited
            mem at=1000 len=20 is=00
            mem at=1040 len=300 is=07
            mem at=1340 is=ee
            count rx_send_requests 1
        ";
        an_ipv4_header_ends_the_forty_bytes: "
            recv at=1000
            in send.only
            header at=1000 from=10.0.0.1 to=10.0.0.2 class=104 hops=63 label=0
            mem at=1040 is=ee
            done r1 Success len=40 grh
        ";
        an_ipv6_header_fills_them: "
            recv at=1000
            in send.only len=1 v6
            header at=1000 from=fd00::1 to=fd00::2 class=104 hops=63 label=703710
            done r1 Success len=41
        ";
        immediate_data_and_the_solicited_event_come_along: "
            recv
            in send.only.imm len=2 solicited
            done r1 Success len=42 imm solicited
        ";
        both_are_scattered_over_the_segments: "
            recv at=1000 len=100 parts=4
            in send.only psn=3 len=60
            header at=1000 from=10.0.0.1
            mem at=1040 len=60 is=03
            mem at=1100 is=ee
            done r1 Success len=100
        ";
        one_fills_receive_and_mtu: "
            config mtu=256
            recv at=0 len=296
            in send.only len=256
            done r1 Success len=296
        ";
    }
    order {
        the_psn_is_not_looked_at: "
            recv
            recv
            recv
            in send.only psn=5
            in send.only psn=5
            in send.only psn=16777215
            done r1 Success
            done r2 Success
            done r3 Success
        ";
    }
    qkey {
        another_one_is_dropped_and_counted: "
            recv
            in send.only qkey=18
            count qkey_viol_cntr 1
            receives waiting=1
            in send.only qkey=17
            done r1 Success
        ";
        all_of_its_bits_count: "
            config qkey=2147483665
            recv
            in send.only qkey=17
            in send.only qkey=4294967295
            count qkey_viol_cntr 2
            in send.only qkey=2147483665
            done r1 Success
        ";
        it_can_be_changed: "
            recv
            qkey 18
            in send.only qkey=17
            in send.only qkey=18
            done r1 Success
            count qkey_viol_cntr 1
        ";
    }
    no_receive {
        the_datagram_is_dropped_and_counted: "
            in send.only
            recv
            in send.only psn=1
            done r1 Success
            count out_of_buffer 1
        ";
    }
    too_long {
        a_datagram_beyond_the_receive_leaves_it_to_the_next: "
            recv at=1000 len=100
            recv at=2000 len=200
            in send.only psn=1 len=61
            in send.only psn=2 len=61
            none_done
            mem at=1000 len=200 is=ee
            count rx_datagram_too_long 2
            receives waiting=1
            receives in_use=2
            in send.only psn=3 len=60
            done r1 Success len=100
            mem at=1040 len=60 is=03
            in send.only psn=4 len=61
            done r2 Success len=101
            receives in_use=0
        ";
        a_receive_without_room_for_the_header_takes_nothing: "
            recv len=39
            in send.only len=0
            count rx_datagram_too_long 1
            flush
            done r1 WrFlush
        ";
        a_datagram_beyond_the_mtu_touches_no_receive: "
            config mtu=256
            recv
            in send.only len=257
            count rx_datagram_too_long 1
            receives waiting=1
        ";
        a_receive_left_over_is_flushed_before_those_that_wait: "
            recv len=40
            recv
            in send.only len=1
            flush
            done r1 WrFlush Recv
            receives in_use=1
            receives waiting=1
        ";
        or_given_back_without_a_completion: "
            recv len=40
            in send.only len=1
            receives in_use=1
            release
            receives in_use=0
        ";
    }
    other_packets {
        no_other_opcode_is_taken: "
            recv
            in raw4 len=1
            count rx_opcode_unsupported 1
            receives waiting=1
        ";
    }
    local_errors {
        a_receive_in_forbidden_memory_is_a_fault: "
            recv lkey=99
            recv
            in send.only len=1
            done r1 LocalProtection Recv !grh
            fault LocalProtection
            in send.only len=1
            count rx_responder_halted 1
            receives waiting=1
            receives in_use=1
        ";
        so_is_one_of_which_only_the_rest_is_forbidden: "
            recv at=65436 len=200
            in send.only len=70
            done r1 LocalProtection
            fault LocalProtection
        ";
    }
    multicast {
        the_group_s_packet_is_taken_like_any_other: "
            recv
            in send.only qpn=16777215
            done r1 Success peer=34
        ";
    }
}
