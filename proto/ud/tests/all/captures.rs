//! Replays captures of the Linux kernel: our responder must place every datagram, and our
//! requester, given the same work, must send the same bytes.

use crate::script::{KEY, device};
use longhaul_node::{Frame, Payload};
use longhaul_ud::*;
use longhaul_units::{LKey, Qpn};
use longhaul_wire::{Head, Packet, PathTemplate, mad, pcap};
use longhaul_work::*;
use std::collections::HashMap;

/// All frames of a capture that carry datagrams.
fn datagrams(name: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/../../checks/captures/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let capture = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let records = pcap::records(&capture).map(|r| r.unwrap().data.to_vec());
    let is_datagram = |f: &Vec<u8>| matches!(Packet::parse(f), Ok(Some(p)) if p.deth().is_some());
    records.filter(is_datagram).collect()
}

/// QKeys of the QPs in the captures: the programs', and QP1's.
fn qkey(qpn: Qpn) -> u32 {
    match qpn.get() {
        1 => mad::GSI_QKEY,
        0x15 | 0x16 => 0x0123_4567,
        _ => 0x1111_1111,
    }
}

const CAPTURES: [(&str, usize); 2] = [("ud_pingpong", 10), ("cm_ud_sidr_udaddy", 8)];

#[test]
fn every_datagram_is_received_by_the_qp_that_it_is_for() {
    for (name, count) in CAPTURES {
        let frames = datagrams(name);
        assert_eq!(frames.len(), count, "{name}");
        let mut device = device();
        let mut responders = HashMap::<Qpn, (Responder, RecvQueue)>::new();
        for frame in &frames {
            let head = Head::copy_of(frame);
            let frame = Frame::received(&head, frame).unwrap();
            let packet = Packet::parse(frame.head).unwrap().unwrap();
            let bth = packet.bth();
            let (responder, queue) = responders.entry(bth.dest_qp).or_insert_with(|| {
                let config =
                    ResponderConfig { qpn: bth.dest_qp, qkey: qkey(bth.dest_qp), mtu: Mtu::B1024 };
                (Responder::new(config), RecvQueue::new(4, 1))
            });
            let segments = [Sge { address: 0, len: 4096, lkey: LKey(KEY) }];
            queue.post(&RecvWr { wr_id: 5, segments: &segments }).unwrap();
            responder.handle_datagram(&packet, &bth, &frame.payload, queue, &mut device);

            let done = device.completions.pop().expect("a completion");
            let sent = frame.payload.as_bytes().unwrap();
            assert_eq!(
                (done.status, done.wr_id, done.grh.is_some()),
                (Status::Success, 5, true),
                "{name}"
            );
            assert_eq!(done.byte_len as usize, GRH_LEN + sent.len());
            assert_eq!(done.peer_qpn, packet.deth().unwrap().source_qp);
            assert_eq!((done.immediate, done.solicited), (packet.immediate(), bth.solicited));
            let memory = &device.memory.0;
            assert_eq!(&memory[GRH_LEN..GRH_LEN + sent.len()], sent);
            assert_eq!(&memory[20..40], &frame.head[14..34]);
            let from =
                NetworkHeader::read(memory[..GRH_LEN].try_into().unwrap()).expect("a header");
            let path = packet.path();
            assert_eq!((from.source, from.destination), (path.source_ip, path.destination_ip));
            assert_eq!((from.traffic_class, from.hop_limit), (path.traffic_class, path.hop_limit));
            if bth.dest_qp == Qpn::GSI {
                let mad: &mad::Mad = memory[GRH_LEN..done.byte_len as usize].try_into().unwrap();
                let (_, message) = mad::Message::read(mad).unwrap();
                let sidr = [mad::Attribute::SidrReq, mad::Attribute::SidrRep];
                assert!(sidr.contains(&message.attribute()), "{name}: {message:?}");
            }
        }
        assert_eq!(device.counters.drops(), 0);
    }
}

#[derive(Default)]
struct Bytes(Vec<Vec<u8>>);

impl Emit for Bytes {
    fn emit(&mut self, frame: &Frame<'_>) {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        self.0.push(bytes);
    }
}

#[test]
fn every_datagram_is_sent_as_the_kernel_sends_it_to_the_last_byte() {
    let mut same = 0;
    for (name, _) in CAPTURES {
        let mut requesters = HashMap::<Qpn, Requester>::new();
        for theirs in &datagrams(name) {
            let head = Head::copy_of(theirs);
            let frame = Frame::received(&head, theirs).unwrap();
            let packet = Packet::parse(frame.head).unwrap().unwrap();
            let (bth, deth) = (packet.bth(), packet.deth().unwrap());
            if bth.ack_request {
                // The kernel sets AckReq in its MADs, but no UD responder sends ACKs.
                assert_eq!(bth.dest_qp, Qpn::GSI);
                continue;
            }
            let mut device = device();
            let template = PathTemplate::new(&packet.path());
            device.paths =
                vec![template.with_ipv4_fragmentation(packet.ipv4_fragmentation().unwrap())];
            let sent = frame.payload.as_bytes().unwrap();
            device.memory.0[..sent.len()].copy_from_slice(sent);
            let requester = requesters.entry(deth.source_qp).or_insert_with(|| {
                let mut requester = Requester::new(4, 1, 0);
                requester.start(RequesterConfig {
                    qpn: deth.source_qp,
                    qkey: 0,
                    sq_psn: bth.psn,
                    mtu: Mtu::B1024,
                    migreq: bth.migreq,
                    pkey: bth.pkey,
                });
                requester
            });
            let destination = Destination { ah: AhId(1), qpn: bth.dest_qp, qkey: deth.qkey };
            let wr = SendWr {
                wr_id: 0,
                op: SendOp::Datagram { destination, immediate: packet.immediate() },
                segments: &[Sge { address: 0, len: sent.len() as u32, lkey: LKey(KEY) }],
                inline: false,
                signaled: true,
                solicited: bth.solicited,
                fence: false,
            };
            requester.post(&wr, false, &device.memory).unwrap();
            let mut ours = Bytes::default();
            assert!(requester.transmit(&mut device, &mut ours));
            assert_eq!(&ours.0[0], theirs, "{name}");
            same += 1;
        }
    }
    assert_eq!(same, 16);
}

#[test]
fn one_packet_serves_every_qp_of_a_group() {
    let frame = &datagrams("ud_pingpong")[0];
    let head = Head::copy_of(frame);
    let frame = Frame::received(&head, frame).unwrap();
    let packet = Packet::parse(frame.head).unwrap().unwrap();
    let Payload::Bytes(sent) = frame.payload else { panic!("a received payload is bytes") };
    let mut device = device();
    for member in 0..3_u64 {
        let mut queue = RecvQueue::new(1, 1);
        let segments = [Sge { address: member * 4096, len: 4096, lkey: LKey(KEY) }];
        queue.post(&RecvWr { wr_id: member, segments: &segments }).unwrap();
        let qpn = Qpn::new(0x100 + member as u32);
        let mut responder =
            Responder::new(ResponderConfig { qpn, qkey: 0x1111_1111, mtu: Mtu::B1024 });
        responder.handle_datagram(&packet, &packet.bth(), &frame.payload, &mut queue, &mut device);
        let done = device.completions.pop().unwrap();
        assert_eq!((done.status, done.wr_id, done.qpn), (Status::Success, member, qpn));
        let at = member as usize * 4096 + GRH_LEN;
        assert_eq!(&device.memory.0[at..at + sent.len()], sent);
    }
}
