//! The responder, rule by rule, as wire scripts.

use crate::script::Uc;
use longhaul_wire_script::scripts;

scripts! {
    Uc;
    placement {
        a_send_fills_the_receive: "
            config psn=16777214
            recv at=1000 len=4096
            in send.first psn=16777214 len=256
            in send.middle psn=16777215 len=256
            in send.last.imm psn=0 len=10 solicited
            done r1 Success Recv len=522 imm solicited
            mem at=1000 len=256 is=fe
            mem at=1256 len=256 is=ff
            mem at=1512 len=10 is=00
            mem at=1522 is=ee
            count rx_send_requests 1
            count rx_sequence_gaps 0
        ";
        a_write_fills_memory_and_completes_nothing_here: "
            in write.first psn=0 len=256 va=100 dma=300
            in write.last psn=1 len=44
            mem at=100 len=256 is=00
            mem at=356 len=44 is=01
            mem at=400 is=ee
            count rx_write_requests 1
        ";
        a_write_with_immediate_consumes_a_receive_at_its_end: "
            recv at=5000
            in write.first psn=0 len=256 dma=264
            receives waiting=1
            in write.last.imm psn=1 len=8 solicited
            done r1 Success RecvWriteImmediate len=264 imm solicited
            mem at=256 len=8 is=01
            mem at=5000 is=ee
            receives waiting=0 in_use=0
        ";
        empty_messages_are_messages: "
            recv
            recv
            in write.only psn=0 len=0 dma=0 rkey=99
            in send.only psn=1 len=0
            in write.only.imm psn=2 len=0 dma=0 rkey=99
            done r1 Success Recv len=0
            done r2 Success RecvWriteImmediate len=0 imm
        ";
    }
    psn_gap {
        drops_the_message_and_keeps_its_receive: "
            recv at=0 len=600
            in send.first psn=0 len=256
            in send.last psn=2 len=4
            receives waiting=0 in_use=1
            count rx_messages_broken_off 1
            count rx_broken_message 1
            count rx_sequence_gaps 1
            in send.only psn=3 len=9
            done r1 Success len=9
            mem at=0 len=9 is=03
            receives in_use=0
        ";
        nothing_is_taken_until_a_message_begins: "
            recv
            in send.middle psn=0 len=256
            in send.last psn=1 len=4
            in write.last psn=2 len=4
            count rx_broken_message 3
            count rx_sequence_gaps 0
            mem at=0 is=ee
            in send.first psn=3 len=256
            in send.last psn=4 len=4
            done r1 Success len=260
        ";
        a_message_that_begins_is_taken_whatever_its_psn: "
            recv
            recv
            recv
            in send.only psn=9000000 len=1
            in send.only psn=5 len=1
            in send.only psn=6 len=1
            done r1 Success
            done r2 Success
            done r3 Success
            count rx_sequence_gaps 2
        ";
        a_packet_that_comes_twice_breaks_its_message: "
            recv
            in send.first psn=0 len=256
            in send.middle psn=1 len=256
            in send.middle psn=1 len=256
            in send.last psn=2 len=1
            count rx_messages_broken_off 1
            count rx_broken_message 2
        ";
        a_write_leaves_what_had_come: "
            recv
            in write.first psn=0 len=256 dma=1024
            in write.middle psn=1 len=256
            in write.last.imm psn=3 len=256
            mem at=0 len=256 is=00
            mem at=256 len=256 is=01
            mem at=512 is=ee
            receives waiting=1
        ";
    }
    opcode_order {
        a_message_that_begins_ends_the_one_before: "
            recv at=0
            in send.first psn=0 len=256
            in send.first psn=1 len=256
            in send.last psn=2 len=1
            done r1 Success len=257
            mem at=0 len=256 is=01
            count rx_messages_broken_off 1
            count rx_send_requests 1
        ";
        a_write_in_between_leaves_the_receive_for_the_next_send: "
            recv at=1000
            recv at=2000
            in send.first psn=0 len=256
            in write.only psn=1 len=1
            in send.only psn=2 len=2
            done r1 Success len=2
            mem at=1000 len=2 is=02
            receives waiting=1
        ";
        a_kept_receive_goes_before_those_that_wait: "
            recv
            recv
            in send.first psn=0 len=256
            in write.only.imm psn=1 len=1
            in send.only psn=2 len=1
            done r1 Success RecvWriteImmediate
            done r2 Success Recv
            receives in_use=0
        ";
        verbs_do_not_mix_in_a_message: "
            recv
            in send.first psn=0 len=256
            in write.last psn=1 len=1
            in send.last psn=2 len=1
            count rx_broken_message 2
            in write.first psn=3 len=256 va=4096 dma=300
            in send.last psn=4 len=44
            in write.last psn=5 len=44
            count rx_broken_message 4
            mem at=4352 is=ee
        ";
        other_opcodes_are_as_if_they_had_not_come: "
            recv
            in send.first psn=0 len=256
            in raw4 psn=1 len=1
            in raw44 psn=1 len=0
            in raw10 psn=1 len=1
            in send.last psn=1 len=1
            done r1 Success len=257
            count rx_opcode_unsupported 3
        ";
    }
    lengths {
        a_packet_of_the_wrong_size_breaks_the_message: "
            recv
            in send.first psn=0 len=255
            in send.last psn=1 len=4
            in send.first psn=2 len=256
            in send.middle psn=3 len=4
            in send.last psn=4 len=4
            in send.first psn=5 len=256
            in send.last psn=6 len=0
            in send.only psn=7 len=257
            in send.first psn=8 len=256
            in send.last psn=9 len=257
            count rx_malformed 5
            receives in_use=1
        ";
        a_write_must_be_as_long_as_it_said: "
            in write.only psn=0 len=8 dma=9
            in write.only psn=1 len=8 dma=7
            in write.first psn=2 len=256 dma=256
            in write.first psn=3 len=256 va=1000 dma=300
            in write.last psn=4 len=45
            in write.first psn=5 len=256 va=1000 dma=300
            in write.middle psn=6 len=256
            in write.first psn=7 len=256 dma=2147483649
            count rx_malformed 6
            mem at=0 len=1000 is=ee
            mem at=1256 len=300 is=ee
            count rx_write_requests 0
        ";
        a_send_longer_than_its_receive_is_an_error: "
            recv at=100 len=300
            recv
            in send.first psn=0 len=256
            in send.last psn=1 len=45
            done r1 LocalLength
            fault LocalLength
            mem at=356 is=ee
            count resp_local_length_error 1
            in send.only psn=2 len=1
            count rx_responder_halted 1
            receives waiting=1 in_use=1
        ";
    }
    remote_access {
        a_write_to_a_wrong_place_vanishes: "
            in write.only psn=0 len=8 rkey=9
            in write.only psn=1 len=8 va=65530
            in write.only psn=2 len=8 va=18446744073709551612
            in write.first psn=3 len=256 va=65024 dma=513
            in write.middle psn=4 len=256
            in write.last psn=5 len=1
            count rx_write_refused 4
            count rx_broken_message 2
            mem at=65024 len=512 is=ee
            in write.only psn=6 len=8
            mem at=0 len=8 is=06
        ";
        a_qp_that_allows_no_writes_takes_none: "
            forbid
            recv
            in write.only psn=0 len=8
            in write.only.imm psn=1 len=0 dma=0
            count rx_write_refused 2
            receives waiting=1
        ";
        a_region_that_goes_away_breaks_the_message: "
            in write.first psn=0 len=256 dma=600
            deny
            in write.middle psn=1 len=256
            allow
            in write.last psn=2 len=88
            mem at=0 len=256 is=00
            mem at=256 is=ee
            count rx_write_refused 1
            count rx_broken_message 1
        ";
    }
    receive_queue {
        a_send_without_a_receive_vanishes: "
            in send.only psn=0 len=1
            in send.first psn=1 len=256
            recv
            in send.last psn=2 len=1
            count out_of_buffer 2
            count rx_broken_message 1
            in send.only psn=3 len=1
            done r1 Success
            count rx_sequence_gaps 0
        ";
        so_does_a_write_with_immediate: "
            in write.only.imm psn=0 len=8
            in write.first psn=1 len=256 dma=264
            in write.last.imm psn=2 len=8
            count out_of_buffer 2
            mem at=0 len=256 is=01
            mem at=256 is=ee
        ";
        memory_that_may_not_be_written_is_an_error: "
            recv
            deny
            in send.only psn=0 len=1
            done r1 LocalProtection
            fault LocalProtection
        ";
    }
    stopping {
        a_message_under_way_ends_with_a_flush: "
            recv
            in send.first psn=0 len=256
            flush
            done r1 WrFlush
            in send.last psn=1 len=1
            receives in_use=0
        ";
        so_does_a_receive_that_was_kept: "
            recv
            in send.first psn=0 len=256
            in send.middle psn=7 len=256
            flush
            done r1 WrFlush
            flush
            receives in_use=0
        ";
        a_reset_gives_the_receive_back_in_silence: "
            recv
            recv
            in send.first psn=0 len=256
            release
            receives waiting=1 in_use=1
            in send.first psn=1 len=256
            in write.first psn=2 len=256 dma=300
            release
            receives in_use=0
        ";
    }
}
