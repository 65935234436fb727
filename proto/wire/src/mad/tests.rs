//! Tests of MADs: the Linux kernel's are read and written back byte for byte.

use super::*;
use crate::pcap;
use longhaul_units::Psn;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};

/// Ethernet 14, IPv4 20, UDP 8, BTH 12, DETH 8.
const MAD_AT: usize = 62;

fn captured(name: &str) -> Vec<Mad> {
    let path = format!("{}/../../checks/captures/{name}", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mads: Vec<Mad> = pcap::records(&file)
        .map(|record| record.unwrap().data)
        .filter(|frame| frame.len() == MAD_AT + MAD_LEN + 4 && frame[42] == 0x64)
        .map(|frame| array_of(&frame[MAD_AT..MAD_AT + MAD_LEN]))
        .collect();
    assert!(!mads.is_empty(), "{name} holds no MAD");
    mads
}

fn array_of(bytes: &[u8]) -> Mad {
    bytes.try_into().unwrap()
}

fn host(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 10, 0, last))
}

fn rewrite(mad: &Mad) -> Mad {
    let (header, message) = Message::read(mad).unwrap();
    // Previous contents must be overwritten.
    let mut again = [0xa5; MAD_LEN];
    message.write(&header, &mut again);
    again
}

mod linux_captures {
    use super::*;

    #[test]
    fn every_mad_is_written_back_byte_for_byte() {
        let mut seen = std::collections::BTreeSet::new();
        for name in [
            "cm_rc_perftest_write_5000B.pcap",
            "cm_rc_rping_100B.pcap",
            "cm_rc_reject_no_listener.pcap",
            "cm_ud_sidr_udaddy.pcap",
        ] {
            for mad in captured(name) {
                seen.insert(Message::read(&mad).unwrap().1.attribute().name());
                assert_eq!(rewrite(&mad), mad, "{name}");
            }
        }
        let expected = ["DREP", "DREQ", "REJ", "REP", "REQ", "RTU", "SIDR_REP", "SIDR_REQ"];
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn req_of_perftest_has_the_fields_that_tshark_shows() {
        let mads = captured("cm_rc_perftest_write_5000B.pcap");
        let (header, Message::Req(req)) = Message::read(&mads[0]).unwrap() else { panic!() };
        assert_eq!(header, Header::new(0x2_0365_ec1c));
        assert_eq!(req.local_comm_id, 0x1cec_6503);
        assert_eq!(ServiceId::parts(req.service_id), Some((ServiceId::TCP, 0x4853)));
        assert_eq!(req.ca_guid, 0x5054_00ff_fe00_0001);
        assert_eq!((req.qkey, req.qpn.get()), (0, 0x17));
        assert_eq!((req.responder_resources, req.initiator_depth), (0, 0));
        assert_eq!((req.remote_response_timeout, req.local_response_timeout), (20, 20));
        assert_eq!((req.transport, req.flow_control), (TransportService::Rc, false));
        assert_eq!(req.starting_psn, Psn::new(0x97_c31f));
        assert_eq!((req.retry_count, req.rnr_retry_count, req.max_cm_retries), (7, 7, 15));
        assert_eq!((req.pkey, req.path_mtu, req.srq), (0xffff, 5, false));
        let path = req.primary;
        assert_eq!((ip_of_gid(path.local_gid), ip_of_gid(path.remote_gid)), (host(1), host(2)));
        assert_eq!((path.local_lid, path.remote_lid), (0xffff, 0xffff));
        // The flow label of the RDMA connection manager: source port x 31 + destination port, 20
        // bits.
        assert_eq!(path.flow_label, (0xc707 * 31 + 0x4853) & 0xf_ffff);
        assert_eq!((path.packet_rate, path.traffic_class, path.hop_limit), (0, 0, 64));
        assert_eq!((path.service_level, path.subnet_local, path.ack_timeout), (0, false, 19));
        assert_eq!(req.alternate, ReqPath::default());
        let head = RdmaCmHeader::read(req.private_data).unwrap();
        assert_eq!(
            head,
            RdmaCmHeader { source_port: 0xc707, source: host(1), destination: host(2) }
        );
        assert_eq!(head.with_user_data(&[]).unwrap(), req.private_data);
    }

    #[test]
    fn the_rest_of_the_handshake_has_the_fields_that_tshark_shows() {
        let mads = captured("cm_rc_perftest_write_5000B.pcap");
        let (header, Message::Rep(rep)) = Message::read(&mads[1]).unwrap() else { panic!() };
        assert_eq!(header.transaction_id, 0x2_0365_ec1c);
        assert_eq!((rep.local_comm_id, rep.remote_comm_id), (0x4054_2aef, 0x1cec_6503));
        assert_eq!((rep.qpn.get(), rep.starting_psn), (0x16, Psn::new(0xc6_60d4)));
        assert_eq!((rep.target_ack_delay, rep.failover_accepted, rep.flow_control), (15, 0, false));
        assert_eq!((rep.rnr_retry_count, rep.srq), (7, false));
        assert_eq!(rep.ca_guid, 0x5054_00ff_fe00_0002);
        let (_, Message::Rtu(rtu)) = Message::read(&mads[2]).unwrap() else { panic!() };
        assert_eq!((rtu.local_comm_id, rtu.remote_comm_id), (0x1cec_6503, 0x4054_2aef));
        let dreq = mads.iter().find_map(|mad| match Message::read(mad).unwrap() {
            (_, Message::Dreq(dreq)) => {
                Some((dreq.local_comm_id, dreq.remote_comm_id, dreq.remote_qpn.get()))
            }
            _ => None,
        });
        assert_eq!(dreq, Some((0x1dec_6503, 0x4654_2aef, 0x17)));
    }

    #[test]
    fn rping_asks_for_one_read_each_way() {
        let mads = captured("cm_rc_rping_100B.pcap");
        let (_, Message::Req(req)) = Message::read(&mads[0]).unwrap() else { panic!() };
        assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
        let (_, Message::Rep(rep)) = Message::read(&mads[1]).unwrap() else { panic!() };
        assert_eq!((rep.responder_resources, rep.initiator_depth), (1, 1));
    }

    #[test]
    fn nobody_listening_is_reason_8() {
        let mads = captured("cm_rc_reject_no_listener.pcap");
        let (_, Message::Rej(rej)) = Message::read(&mads[1]).unwrap() else { panic!() };
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (0, 0x18ec_6503));
        assert_eq!(
            (rej.rejected, rej.reason),
            (MessageRejected::Req, RejectReason::INVALID_SERVICE_ID)
        );
        assert_eq!(rej.info_len, 0);
    }

    #[test]
    fn sidr_resolves_a_datagram_service() {
        let mads = captured("cm_ud_sidr_udaddy.pcap");
        let (_, Message::SidrReq(req)) = Message::read(&mads[0]).unwrap() else { panic!() };
        assert_eq!((req.request_id, req.pkey), (0x1fec_6503, 0xffff));
        assert_eq!(ServiceId::parts(req.service_id), Some((ServiceId::UDP, 0x1c06)));
        assert_eq!(RdmaCmHeader::read(req.private_data).unwrap().source_port, 0xc3c7);
        let (_, Message::SidrRep(rep)) = Message::read(&mads[1]).unwrap() else { panic!() };
        assert_eq!((rep.request_id, rep.status), (0x1fec_6503, SidrStatus::Valid));
        assert_eq!((rep.qpn.get(), rep.qkey), (0x15, 0x0123_4567));
    }
}

mod layout {
    use super::*;

    fn req() -> Req<'static> {
        let path = ReqPath {
            local_lid: 0x0102,
            remote_lid: 0x0304,
            local_gid: [0x11; 16],
            remote_gid: [0x22; 16],
            flow_label: 0xabcde,
            packet_rate: 0x2a,
            traffic_class: 0x33,
            hop_limit: 0x44,
            service_level: 9,
            subnet_local: true,
            ack_timeout: 0x15,
        };
        Req {
            local_comm_id: 1,
            service_id: 2,
            ca_guid: 3,
            qkey: 4,
            qpn: Qpn::new(0xfedcba),
            responder_resources: 5,
            initiator_depth: 6,
            remote_response_timeout: 17,
            transport: TransportService::Extended(1),
            flow_control: true,
            starting_psn: Psn::new(0x123456),
            local_response_timeout: 21,
            retry_count: 3,
            pkey: 0x7fff,
            path_mtu: 4,
            rdc_exists: true,
            rnr_retry_count: 5,
            max_cm_retries: 11,
            srq: true,
            primary: path,
            alternate: ReqPath { flow_label: 1, ack_timeout: 31, ..path },
            sap_supported: true,
            private_data: &[0x77; 92],
        }
    }

    #[test]
    fn req_stands_at_the_standards_offsets() {
        let mut mad = [0; MAD_LEN];
        Message::Req(req()).write(&Header::new(9), &mut mad);
        // Offsets from the end of the common header: IBTA, volume 1, table 106.
        let b = &mad[24..];
        assert_eq!(b[32..36], [0xfe, 0xdc, 0xba, 5]);
        assert_eq!(b[39], 6);
        assert_eq!(b[43], 17 << 3 | 3 << 1 | 1);
        assert_eq!(b[44..48], [0x12, 0x34, 0x56, 21 << 3 | 3]);
        assert_eq!(b[50..52], [4 << 4 | 8 | 5, 11 << 4 | 8 | 1]);
        assert_eq!(b[52..56], [1, 2, 3, 4]);
        assert_eq!(b[88..96], [0xab, 0xcd, 0xe0, 0x2a, 0x33, 0x44, 9 << 4 | 8, 0x15 << 3]);
        assert_eq!(b[139], 31 << 3 | 4);
        assert!(b[140..].iter().all(|&b| b == 0x77));
        assert_eq!(Message::read(&mad), Ok((Header::new(9), Message::Req(req()))));
    }

    #[test]
    fn values_too_large_for_their_bits_do_not_spill_over() {
        let wild = Req { retry_count: 0xff, rnr_retry_count: 0xff, path_mtu: 1, ..req() };
        let mut mad = [0; MAD_LEN];
        Message::Req(wild).write(&Header::new(0), &mut mad);
        let (_, Message::Req(read)) = Message::read(&mad).unwrap() else { panic!() };
        assert_eq!(read, Req { retry_count: 7, rnr_retry_count: 7, path_mtu: 1, ..req() });
    }

    #[test]
    fn mra_keeps_two_and_five_bits() {
        let mra = Mra {
            local_comm_id: 1,
            remote_comm_id: 2,
            received: MessageRejected::Rep,
            service_timeout: 24,
            private_data: &[1; 222],
        };
        let mut mad = [0; MAD_LEN];
        Message::Mra(mra).write(&Header::new(0), &mut mad);
        assert_eq!(mad[24 + 8..24 + 10], [0x40, 24 << 3]);
        assert_eq!(Message::read(&mad).unwrap().1, Message::Mra(mra));
    }

    #[test]
    fn private_data_is_padded_and_cut() {
        let mut mad = [0xff; MAD_LEN];
        let rtu =
            |data| Message::Rtu(Rtu { local_comm_id: 1, remote_comm_id: 2, private_data: data });
        rtu(&[7; 3]).write(&Header::new(0), &mut mad);
        assert_eq!(mad[32..36], [7, 7, 7, 0]);
        rtu(&[7; 1000]).write(&Header::new(0), &mut mad);
        assert_eq!(mad[32..], [7; 224]);
    }

    #[test]
    fn headers_of_others_are_named() {
        let mut mad = [0; MAD_LEN];
        Message::Req(req()).write(&Header::new(0), &mut mad);
        for (at, value, error) in [
            (0, 2, NotCm::BaseVersion(2)),
            (1, 0x03, NotCm::Class(3)),
            (2, 1, NotCm::ClassVersion(1)),
            (3, 0x81, NotCm::Method(0x81)),
            (17, 0x1b, NotCm::Attribute(0x1b)),
            (16, 0x01, NotCm::Attribute(0x110)),
        ] {
            let mut bad = mad;
            bad[at] = value;
            assert_eq!(Message::read(&bad), Err(error));
        }
    }
}

mod ece {
    use super::*;

    const NVIDIA: Ece = Ece { vendor_id: 0x15b3, options: 0x2000_0001 };

    fn req_and_rep() -> [Mad; 2] {
        let mads = captured("cm_rc_perftest_write_5000B.pcap");
        [mads[0], mads[1]]
    }

    #[test]
    fn stands_in_the_header_and_in_bytes_that_were_reserved() {
        let [mut req, mut rep] = req_and_rep();
        for (mad, attribute) in [(&req, Attribute::Req), (&rep, Attribute::Rep)] {
            assert_eq!(Ece::read(mad, attribute), Some(Ece::NONE), "rxe has none");
        }
        let all = Ece { vendor_id: 0xa1b2c3, options: 0xd4e5_f607 };
        let [req_before, rep_before] = [req, rep];
        all.write(&mut req, Attribute::Req);
        all.write(&mut rep, Attribute::Rep);
        let changed = |before: &Mad, after: &Mad| -> Vec<(usize, u8)> {
            let bytes = before.iter().zip(after).enumerate();
            bytes.filter(|(_, (old, new))| old != new).map(|(at, (_, new))| (at, *new)).collect()
        };
        let options = [(20, 0xd4), (21, 0xe5), (22, 0xf6), (23, 0x07)];
        let of_req = [(24 + 5, 0xa1), (24 + 6, 0xb2), (24 + 7, 0xc3)];
        let of_rep = [(24 + 15, 0xa1), (24 + 19, 0xb2), (24 + 23, 0xc3)];
        assert_eq!(changed(&req_before, &req), [&options[..], &of_req].concat());
        assert_eq!(changed(&rep_before, &rep), [&options[..], &of_rep].concat());
    }

    #[test]
    fn what_is_written_is_read_and_clearing_it_restores_the_message() {
        for (before, attribute) in req_and_rep().into_iter().zip([Attribute::Req, Attribute::Rep]) {
            let mut mad = before;
            NVIDIA.write(&mut mad, attribute);
            assert_eq!(Ece::read(&mad, attribute), Some(NVIDIA));
            let (header, message) = Message::read(&mad).unwrap();
            assert_eq!(header.attribute_modifier, NVIDIA.options);
            assert_eq!(message, Message::read(&before).unwrap().1, "no field overlaps");
            Ece::NONE.write(&mut mad, attribute);
            assert_eq!(mad, before);
        }
    }

    #[test]
    fn other_messages_have_none() {
        let mads = captured("cm_rc_perftest_write_5000B.pcap");
        let mut rtu = mads[2];
        assert_eq!(Ece::read(&rtu, Attribute::Rtu), None);
        NVIDIA.write(&mut rtu, Attribute::Rtu);
        assert_eq!(rtu, mads[2]);
    }
}

mod rdma_cm_header {
    use super::*;

    #[test]
    fn carries_ipv6_in_full() {
        let head = RdmaCmHeader {
            source_port: 7,
            source: "2001:db8::1".parse().unwrap(),
            destination: "2001:db8::2".parse().unwrap(),
        };
        assert_eq!(RdmaCmHeader::read(&head.write()), Some(head));
        assert_eq!(head.write()[1], 0x60);
    }

    #[test]
    fn refuses_what_does_not_fit_or_parse() {
        let head = RdmaCmHeader { source_port: 7, source: host(1), destination: host(2) };
        assert!(head.with_user_data(&[0; 56]).is_some());
        assert!(head.with_user_data(&[0; 57]).is_none());
        assert_eq!(head.with_sidr_user_data(b"data").unwrap()[..36], head.write());
        assert!(head.with_sidr_user_data(&[0; 180]).is_some());
        assert!(head.with_sidr_user_data(&[0; 181]).is_none());
        assert_eq!(RdmaCmHeader::read(&head.write()[..35]), None);
        for (at, value) in [(0, 0x10), (1, 0x50), (1, 0)] {
            let mut bad = head.write();
            bad[at] = value;
            assert_eq!(RdmaCmHeader::read(&bad), None);
        }
    }

    #[test]
    fn service_ids_split_into_space_and_port() {
        assert_eq!(ServiceId::tcp(18515), 0x0000_0000_0106_4853);
        assert_eq!(ServiceId::parts(1 << 32), None);
        assert_eq!(ServiceId::udp(0x1c06), 0x0111_1c06);
        assert_eq!((ServiceId::ib(1), ServiceId::ipoib(2)), (0x013f_0001, 0x0002_0002));
    }

    #[test]
    fn the_port_space_says_what_can_be_asked_for_and_whether_addresses_are_sent_along() {
        for (service, header, connections, datagrams) in [
            (ServiceId::tcp(1), true, true, false),
            (ServiceId::udp(1), true, false, true),
            (ServiceId::ipoib(1), true, false, true),
            (ServiceId::ib(1), true, true, true),
            (0x1234_0000_0106_0001, false, true, true),
            (7, false, true, true),
        ] {
            assert_eq!(ServiceId::has_header(service), header, "{service:#x}");
            assert_eq!(ServiceId::has_connections(service), connections, "{service:#x}");
            assert_eq!(ServiceId::has_datagrams(service), datagrams, "{service:#x}");
        }
    }
}

mod reject_reason {
    use super::*;

    #[test]
    fn each_code_has_its_text_and_unknown_ones_survive() {
        let codes: Vec<u16> = RejectReason::ALL.iter().map(|r| r.0).collect();
        assert_eq!(codes, (1..=33).chain([35]).collect::<Vec<u16>>());
        assert!(RejectReason::ALL.iter().all(|r| r.text() != RejectReason(0).text()));
        assert_eq!(RejectReason::CONSUMER.to_string(), "rejected by the program (28)");
        assert_eq!(RejectReason(999).to_string(), "reserved reason (999)");
    }
}

proptest! {
    /// No bytes make reading or writing panic, and what was written once reads back alike.
    #[test]
    fn any_bytes_read_and_settle(
        mut bytes in prop::array::uniform32(any::<[u8; 8]>()),
        attribute in 0x0eu16..0x1d,
    ) {
        bytes[0][..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[2][..2].copy_from_slice(&attribute.to_be_bytes());
        let mad = array_of(bytes.as_flattened());
        match Message::read(&mad) {
            Err(error) => prop_assert_eq!(error, NotCm::Attribute(attribute)),
            Ok(read) => {
                let again = rewrite(&mad);
                prop_assert_eq!(Message::read(&again), Ok(read));
            }
        }
    }
}
