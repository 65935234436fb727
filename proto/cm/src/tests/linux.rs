//! Handshakes captured from Linux, replayed against the manager in either role.
//!
//! Its messages are compared byte for byte with those of Linux, except for ids.

use crate::*;
use longhaul_units::{Instant, Qpn};
use longhaul_wire::mad::{
    Attribute, Drep, Dreq, Header, MAD_LEN, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq,
};
use longhaul_wire::pcap;
use std::net::{IpAddr, Ipv4Addr};

const MAD_AT: usize = 62;
const NOW: Instant = Instant::from_ns(1);

fn host(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 10, 0, last))
}

/// The MADs of a capture in order, each with the last byte of its source address.
fn captured(name: &str) -> Vec<(u8, Mad)> {
    let path = format!("{}/../../checks/captures/{name}", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    pcap::records(&file)
        .map(|record| record.unwrap().data)
        .filter(|frame| frame.len() == MAD_AT + MAD_LEN + 4 && frame[42] == 0x64)
        .map(|frame| (frame[29], frame[MAD_AT..MAD_AT + MAD_LEN].try_into().unwrap()))
        .collect()
}

/// `mad` with other ids: of its sender, of its receiver, of its transaction.
fn with_ids(mad: &Mad, local: Option<u32>, remote: Option<u32>, transaction: Option<u64>) -> Mad {
    let (header, message) = Message::read(mad).unwrap();
    let header = Header { transaction_id: transaction.unwrap_or(header.transaction_id), ..header };
    macro_rules! ids {
        ($kind:ident, $m:expr) => {
            Message::$kind($kind {
                local_comm_id: local.unwrap_or($m.local_comm_id),
                remote_comm_id: remote.unwrap_or($m.remote_comm_id),
                ..$m
            })
        };
    }
    let message = match message {
        Message::Req(m) => {
            Message::Req(Req { local_comm_id: local.unwrap_or(m.local_comm_id), ..m })
        }
        Message::Rep(m) => ids!(Rep, m),
        Message::Rtu(m) => ids!(Rtu, m),
        Message::Dreq(m) => ids!(Dreq, m),
        Message::Drep(m) => ids!(Drep, m),
        Message::Rej(m) => ids!(Rej, m),
        Message::Mra(m) => ids!(Mra, m),
        Message::SidrReq(m) => {
            Message::SidrReq(SidrReq { request_id: local.unwrap_or(m.request_id), ..m })
        }
        Message::SidrRep(m) => {
            Message::SidrRep(SidrRep { request_id: remote.unwrap_or(m.request_id), ..m })
        }
        other => panic!("{other:?}"),
    };
    let mut out = [0; MAD_LEN];
    message.write(&header, &mut out);
    out
}

fn transaction(mad: &Mad) -> u64 {
    Header::read(mad).unwrap().0.transaction_id
}

fn sent(cm: &mut ConnectionManager) -> Vec<Mad> {
    let mut out = Vec::new();
    while cm.poll_mad(NOW, |_, mad| out.push(*mad)) {}
    out
}

fn find(mads: &[(u8, Mad)], attribute: Attribute, from: u8) -> Mad {
    let found = mads.iter().find(|(source, mad)| {
        *source == from && Header::read(mad).is_ok_and(|(_, a)| a == attribute)
    });
    found.unwrap_or_else(|| panic!("no {} from host {from}", attribute.name())).1
}

fn manager(last: u8) -> ConnectionManager {
    ConnectionManager::new(Config {
        ca_guid: 0x5054_00ff_fe00_0000 | u64::from(last),
        ..Config::default()
    })
}

fn req_fields(mad: &Mad) -> ConnectRequest<'_> {
    let (_, Message::Req(req)) = Message::read(mad).unwrap() else { panic!() };
    ConnectRequest {
        destination_ip: host(2),
        source_ip: host(1),
        service_id: req.service_id,
        transport: Transport::Rc,
        local_qpn: req.qpn,
        starting_psn: req.starting_psn,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        flow_control: req.flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        path_mtu_code: req.path_mtu,
        local_ack_timeout: req.primary.ack_timeout,
        srq: req.srq,
        traffic_class: req.primary.traffic_class,
        hop_limit: req.primary.hop_limit,
        flow_label: req.primary.flow_label,
        private_data: req.private_data,
    }
}

/// We are host 1, Linux is host 2.
fn as_active(name: &str) {
    let mads = captured(name);
    let mut cm = manager(1);
    let theirs = find(&mads, Attribute::Req, 1);
    let id = cm.connect(NOW, &req_fields(&theirs)).unwrap();
    let ours = sent(&mut cm)[0];
    assert_eq!(ours, with_ids(&theirs, Some(id.comm_id()), None, Some(transaction(&ours))), "REQ");

    let rep = with_ids(
        &find(&mads, Attribute::Rep, 2),
        None,
        Some(id.comm_id()),
        Some(transaction(&ours)),
    );
    assert_eq!(cm.handle_mad(NOW, host(2), &rep), None);
    let Some(Event::ConnectResponse { connection, info }) = cm.poll_event() else { panic!() };
    let (_, Message::Rep(fields)) = Message::read(&rep).unwrap() else { panic!() };
    assert_eq!((connection, info.peer_ip), (id, host(2)));
    assert_eq!((info.peer_qpn, info.peer_psn), (fields.qpn, fields.starting_psn));
    assert_eq!((info.ack_delay_code, info.rnr_retry_count), (15, 7));
    cm.ready_to_use(NOW, id).unwrap();
    let rtu = find(&mads, Attribute::Rtu, 1);
    assert_eq!(
        sent(&mut cm),
        [with_ids(&rtu, Some(id.comm_id()), None, Some(transaction(&ours)))],
        "RTU"
    );

    cm.disconnect(NOW, id).unwrap();
    let (_, Message::Rep(rep)) = Message::read(&rep).unwrap() else { panic!() };
    let theirs = find(&mads, Attribute::Dreq, 1);
    let out = sent(&mut cm);
    // The capture may hold several connections; the ids and the QPN are those of ours.
    let (_, Message::Dreq(dreq)) = Message::read(&out[0]).unwrap() else { panic!() };
    assert_eq!(dreq.remote_qpn, rep.qpn);
    let mut expected =
        with_ids(&theirs, Some(id.comm_id()), Some(rep.local_comm_id), Some(transaction(&ours)));
    expected[32..35].copy_from_slice(&rep.qpn.get().to_be_bytes()[1..]);
    assert_eq!(out, [expected], "DREQ");
    let drep = find(&mads, Attribute::Drep, 2);
    let drep =
        with_ids(&drep, Some(rep.local_comm_id), Some(id.comm_id()), Some(transaction(&ours)));
    assert_eq!(cm.handle_mad(NOW, host(2), &drep), None);
    assert_eq!(
        cm.poll_event(),
        Some(Event::Disconnected { connection: id, cause: DisconnectCause::ByUs })
    );
}

/// We are host 2, Linux is host 1.
fn as_passive(name: &str) {
    let mads = captured(name);
    let mut cm = manager(2);
    let req = find(&mads, Attribute::Req, 1);
    let fields = req_fields(&req);
    let listen = cm.listen(fields.service_id, 0).unwrap();
    assert_eq!(cm.handle_mad(NOW, host(1), &req), None);
    let Some(Event::ConnectRequest { listen: asked, connection: id, info }) = cm.poll_event()
    else {
        panic!()
    };
    assert_eq!(asked, listen);
    assert_eq!((info.peer_ip, info.local_ip), (host(1), host(2)));
    assert_eq!((info.peer_qpn, info.peer_psn), (fields.local_qpn, fields.starting_psn));
    assert_eq!((info.path_mtu_code, info.local_ack_timeout, info.hop_limit), (5, 19, 64));
    let header = info.header().unwrap();
    assert_eq!((header.source, header.destination), (host(1), host(2)));
    assert_eq!(info.user_data().len(), 56);

    let theirs = find(&mads, Attribute::Rep, 2);
    let (_, Message::Rep(rep)) = Message::read(&theirs).unwrap() else { panic!() };
    let accept = Accept {
        local_qpn: rep.qpn,
        starting_psn: rep.starting_psn,
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        flow_control: rep.flow_control,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        private_data: rep.private_data,
    };
    cm.accept(NOW, id, &accept).unwrap();
    assert_eq!(sent(&mut cm), [with_ids(&theirs, Some(id.comm_id()), None, None)], "REP");

    let rtu = with_ids(&find(&mads, Attribute::Rtu, 1), None, Some(id.comm_id()), None);
    assert_eq!(cm.handle_mad(NOW, host(1), &rtu), None);
    assert_eq!(cm.poll_event(), Some(Event::Established { connection: id }));

    let peer = cm.connection(id).unwrap().peer_comm_id;
    let mut dreq = with_ids(&find(&mads, Attribute::Dreq, 1), Some(peer), Some(id.comm_id()), None);
    dreq[32..35].copy_from_slice(&rep.qpn.get().to_be_bytes()[1..]);
    assert_eq!(cm.handle_mad(NOW, host(1), &dreq), None);
    assert_eq!(
        cm.poll_event(),
        Some(Event::Disconnected { connection: id, cause: DisconnectCause::ByPeer })
    );
    let drep = find(&mads, Attribute::Drep, 2);
    let expected = with_ids(&drep, Some(id.comm_id()), Some(peer), Some(transaction(&dreq)));
    assert_eq!(sent(&mut cm), [expected], "DREP");
}

#[test]
fn perftest_handshake_as_active_side() {
    as_active("cm_rc_perftest_write_5000B.pcap");
}

#[test]
fn perftest_handshake_as_passive_side() {
    as_passive("cm_rc_perftest_write_5000B.pcap");
}

#[test]
fn rping_handshake_as_active_side() {
    as_active("cm_rc_rping_100B.pcap");
}

#[test]
fn rping_handshake_as_passive_side() {
    as_passive("cm_rc_rping_100B.pcap");
}

#[test]
fn rejection_by_nobody_listening_as_active_side() {
    let mads = captured("cm_rc_reject_no_listener.pcap");
    let mut cm = manager(1);
    let id = cm.connect(NOW, &req_fields(&find(&mads, Attribute::Req, 1))).unwrap();
    sent(&mut cm);
    let rej = with_ids(&find(&mads, Attribute::Rej, 2), None, Some(id.comm_id()), None);
    assert_eq!(cm.handle_mad(NOW, host(2), &rej), None);
    let Some(Event::Rejected { connection, reason, .. }) = cm.poll_event() else { panic!() };
    assert_eq!((connection, reason), (id, RejectReason::INVALID_SERVICE_ID));
    assert_eq!(cm.connection(id), None);
}

#[test]
fn rejection_by_nobody_listening_as_passive_side_is_the_same_mad() {
    let mads = captured("cm_rc_reject_no_listener.pcap");
    let mut cm = manager(2);
    let dropped = cm.handle_mad(NOW, host(1), &find(&mads, Attribute::Req, 1));
    assert_eq!(dropped, Some(DropReason::NoListener));
    assert_eq!(sent(&mut cm), [find(&mads, Attribute::Rej, 2)]);
}

/// The first SIDR_REQ and its answer; captures also hold repetitions and other requests.
fn sidr_exchange() -> (Mad, Mad) {
    let mads = captured("cm_ud_sidr_udaddy.pcap");
    (find(&mads, Attribute::SidrReq, 1), find(&mads, Attribute::SidrRep, 2))
}

#[test]
fn udaddy_resolution_as_active_side() {
    let (theirs, rep) = sidr_exchange();
    let (_, Message::SidrReq(req)) = Message::read(&theirs).unwrap() else { panic!() };
    let mut cm = manager(1);
    let header = RdmaCmHeader::read(req.private_data).unwrap();
    assert_eq!(req.private_data, header.with_sidr_user_data(&req.private_data[36..]).unwrap());
    let request = SidrRequest {
        destination_ip: host(2),
        source_ip: host(1),
        service_id: req.service_id,
        private_data: req.private_data,
    };
    let id = cm.sidr_request(NOW, &request).unwrap();
    let ours = sent(&mut cm)[0];
    assert_eq!(
        ours,
        with_ids(&theirs, Some(id.comm_id()), None, Some(transaction(&ours))),
        "SIDR_REQ"
    );

    let rep = with_ids(&rep, None, Some(id.comm_id()), Some(transaction(&ours)));
    assert_eq!(cm.handle_mad(NOW, host(2), &rep), None);
    let Some(Event::SidrResponse { id: answered, status, qpn, qkey, private_data }) =
        cm.poll_event()
    else {
        panic!()
    };
    assert_eq!((answered, status, qpn, qkey), (id, SidrStatus::Valid, Qpn::new(0x15), 0x0123_4567));
    assert_eq!(private_data.as_slice().len(), 136);
    assert_eq!(cm.sidr_count(), 0);
}

#[test]
fn udaddy_resolution_as_passive_side() {
    let (req, theirs) = sidr_exchange();
    let mut cm = manager(2);
    let (_, Message::SidrReq(fields)) = Message::read(&req).unwrap() else { panic!() };
    let listen = cm.listen(fields.service_id, 0).unwrap();
    assert_eq!(cm.handle_mad(NOW, host(1), &req), None);
    let Some(Event::SidrRequest { listen: asked, id, info }) = cm.poll_event() else { panic!() };
    assert_eq!((asked, info.peer_ip, info.pkey), (listen, host(1), 0xffff));
    let header = info.header().unwrap();
    assert_eq!((header.source, header.destination, header.source_port), (host(1), host(2), 0xc3c7));
    assert_eq!(info.user_data().len(), 180);

    let (_, Message::SidrRep(rep)) = Message::read(&theirs).unwrap() else { panic!() };
    cm.sidr_accept(NOW, id, rep.qpn, rep.qkey, rep.private_data).unwrap();
    assert_eq!(sent(&mut cm), [theirs], "SIDR_REP");
}

#[test]
fn a_datagram_service_that_nobody_listens_to_is_not_supported() {
    let (request, _) = sidr_exchange();
    let mut cm = manager(2);
    assert_eq!(cm.handle_mad(NOW, host(1), &request), Some(DropReason::NoListener));
    let out = sent(&mut cm);
    let (header, Message::SidrRep(rep)) = Message::read(&out[0]).unwrap() else { panic!() };
    let (_, Message::SidrReq(req)) = Message::read(&request).unwrap() else { panic!() };
    assert_eq!(header.transaction_id, transaction(&request));
    let expected = SidrRep {
        request_id: req.request_id,
        status: SidrStatus::Unsupported,
        info_len: 0,
        qpn: Qpn::new(0),
        service_id: req.service_id,
        qkey: 0,
        info: &[0; 72],
        private_data: &[0; 136],
    };
    assert_eq!(rep, expected);
}
