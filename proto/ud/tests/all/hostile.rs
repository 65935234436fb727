//! For any arrivals and posts, memory outside the receives is unchanged, every request completes
//! once, and nothing panics.

use crate::script::{Device, KEY, LOCAL_QPN, MEMORY, device, template};
use longhaul_node::{Frame, Payload};
use longhaul_ud::*;
use longhaul_units::{LKey, Psn, Qpn};
use longhaul_wire::*;
use longhaul_wire_script::template_v6;
use longhaul_work::*;
use proptest::prelude::*;

struct Count(usize);

impl Emit for Count {
    fn emit(&mut self, frame: &Frame<'_>) {
        assert!(frame.payload.len() <= 256);
        self.0 += 1;
    }
}

#[derive(Clone, Debug)]
enum Event {
    Recv {
        at: u32,
        len: u32,
        forbidden: bool,
    },
    /// A packet with any opcode and any bytes behind the UDP header.
    Arrive {
        v6: bool,
        opcode: u8,
        bytes: Vec<u8>,
        right_qkey: bool,
        payload: Vec<u8>,
    },
    Post {
        len: u32,
        ah: u32,
        forbidden: bool,
        inline: bool,
        signaled: bool,
    },
    Transmit,
    Recover,
    Flush,
}

fn event() -> impl Strategy<Value = Event> {
    let opcode = prop_oneof![4 => Just(0x64_u8), 4 => Just(0x65), 1 => any::<u8>()];
    let bytes = prop::collection::vec(any::<u8>(), 48);
    let payload = prop::collection::vec(any::<u8>(), 0..300);
    prop_oneof![
        3 => (any::<u16>(), 0..400_u32, prop::bool::weighted(0.05))
            .prop_map(|(at, len, forbidden)| Event::Recv { at: at.into(), len, forbidden }),
        6 => (any::<bool>(), opcode, bytes, prop::bool::weighted(0.9), payload).prop_map(
            |(v6, opcode, bytes, right_qkey, payload)| {
                Event::Arrive { v6, opcode, bytes, right_qkey, payload }
            }
        ),
        3 => (0..300_u32, 0..4_u32, prop::bool::weighted(0.1), any::<bool>(), any::<bool>())
            .prop_map(|(len, ah, forbidden, inline, signaled)| {
                Event::Post { len, ah, forbidden, inline, signaled }
            }),
        4 => Just(Event::Transmit),
        1 => Just(Event::Recover),
        1 => Just(Event::Flush),
    ]
}

fn path(v6: bool) -> PathTemplate {
    if v6 { template_v6() } else { template() }
}

/// Arbitrary headers behind valid IP and UDP headers.
fn any_head(v6: bool, opcode: u8, bytes: &[u8], right_qkey: bool, qkey: u32) -> Vec<u8> {
    let mut head = path(v6).bytes().to_vec();
    head.push(opcode);
    head.extend_from_slice(bytes);
    if right_qkey {
        let deth = path(v6).bytes().len() + Bth::LEN;
        head[deth..deth + 4].copy_from_slice(&qkey.to_be_bytes());
    }
    head.truncate(HEAD_MAX);
    head
}

/// A QP with its outstanding work and its observed completions.
struct World {
    device: Device,
    requester: Requester,
    responder: Responder,
    queue: RecvQueue,
    /// Receives not yet completed, oldest first: `wr_id`, address and length.
    receives: Vec<(u64, u32, u32)>,
    /// Sends not yet completed, oldest first: `wr_id` and whether signaled.
    sends: Vec<(u64, bool)>,
    posted: u64,
}

const QKEY: u32 = 0x1234_5678;

impl World {
    fn new() -> Self {
        let (qpn, mtu) = (Qpn::new(LOCAL_QPN), Mtu::B256);
        let mut requester = Requester::new(4, 1, 64);
        requester.start(RequesterConfig {
            qpn,
            qkey: QKEY,
            sq_psn: Psn::new(u32::MAX),
            mtu,
            migreq: false,
            pkey: 0xffff,
        });
        World {
            device: device(),
            requester,
            responder: Responder::new(ResponderConfig { qpn, qkey: QKEY, mtu }),
            queue: RecvQueue::new(4, 1),
            receives: Vec::new(),
            sends: Vec::new(),
            posted: 0,
        }
    }

    fn step(&mut self, event: &Event) {
        let before = self.device.memory.0.clone();
        self.posted += 1;
        let wr_id = self.posted;
        let lkey = |forbidden: bool| LKey(if forbidden { KEY + 1 } else { KEY });
        match *event {
            Event::Recv { at, len, forbidden } => {
                let segments = [Sge { address: at.into(), len, lkey: lkey(forbidden) }];
                if self.queue.post(&RecvWr { wr_id, segments: &segments }).is_ok() {
                    self.receives.push((wr_id, at, len));
                }
            }
            Event::Arrive { v6, opcode, ref bytes, right_qkey, ref payload } => {
                let head = any_head(v6, opcode, bytes, right_qkey, QKEY);
                if let Ok(Some(packet)) = Packet::parse(&head) {
                    let payload = Payload::Bytes(payload);
                    let (bth, queue) = (packet.bth(), &mut self.queue);
                    self.responder.handle_datagram(
                        &packet,
                        &bth,
                        &payload,
                        queue,
                        &mut self.device,
                    );
                }
            }
            Event::Post { len, ah, forbidden, inline, signaled } => {
                let destination = Destination { ah: AhId(ah), qpn: Qpn::new(1), qkey: QKEY };
                let wr = SendWr {
                    wr_id,
                    op: SendOp::Datagram { destination, immediate: None },
                    segments: &[Sge { address: 0, len, lkey: lkey(forbidden) }],
                    inline,
                    signaled,
                    solicited: false,
                    fence: false,
                };
                if self.requester.post(&wr, false, &self.device.memory).is_ok() {
                    self.sends.push((wr_id, signaled));
                }
            }
            Event::Transmit => {
                let (psn, mut emitted) = (self.requester.snapshot().next, Count(0));
                let sent = self.requester.transmit(&mut self.device, &mut emitted);
                assert_eq!(emitted.0, usize::from(sent));
                assert_eq!(self.requester.snapshot().next, psn.plus(emitted.0 as u32));
            }
            Event::Recover => self.requester.recover(),
            Event::Flush => {
                self.requester.flush(&mut self.device);
                self.responder.flush(&mut self.queue, &mut self.device);
            }
        }
        self.check(&before);
    }

    /// Checks that completions are for the oldest requests, and that memory changed only where a
    /// receive completed.
    fn check(&mut self, before: &[u8]) {
        let mut allowed = 0..0;
        for done in std::mem::take(&mut self.device.completions) {
            if done.op == CompletionOp::Recv {
                let (wr_id, at, len) = self.receives.remove(0);
                assert_eq!(done.wr_id, wr_id);
                assert!(done.byte_len <= len);
                assert_eq!(done.grh.is_some(), done.status == Status::Success);
                allowed = at as usize..(at + len) as usize;
            } else {
                let at = self
                    .sends
                    .iter()
                    .position(|s| s.0 == done.wr_id)
                    .expect("posted and not complete");
                let silent = self.sends.drain(..=at).rev().skip(1);
                silent.for_each(|(_, signaled)| assert!(!signaled, "one was passed over"));
            }
        }
        let queued = self.requester.snapshot().queued as usize;
        self.sends.drain(..self.sends.len() - queued).for_each(|s| assert!(!s.1, "lost"));
        assert_eq!(self.queue.in_use() as usize, self.receives.len());
        let after = &self.device.memory.0;
        for at in (0..MEMORY).filter(|at| !allowed.contains(at)) {
            assert_eq!(before[at], after[at], "memory at {at}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_sequence_keeps_the_rules(events in prop::collection::vec(event(), 1..60)) {
        let mut world = World::new();
        for event in &events {
            world.step(event);
        }
        world.responder.release(&mut world.queue);
        world.queue.clear();
        prop_assert_eq!(world.queue.in_use(), 0);
    }

    #[test]
    fn any_forty_bytes_are_a_network_header_or_none(
        area in prop::array::uniform32(any::<u8>()),
        rest: u64,
    ) {
        let mut forty = [0; GRH_LEN];
        forty[..32].copy_from_slice(&area);
        forty[32..].copy_from_slice(&rest.to_ne_bytes());
        if let Some(header) = NetworkHeader::read(&forty) {
            prop_assert_eq!(header.source.is_ipv6(), header.destination.is_ipv6());
            prop_assert!(header.flow_label < 1 << 20);
        }
    }
}

/// The area of a datagram on a template's path.
fn received(v6: bool) -> [u8; GRH_LEN] {
    let mut area = [0; GRH_LEN];
    let template = path(v6);
    let ip = if v6 { &template.bytes()[14..54] } else { &template.bytes()[14..34] };
    area[GRH_LEN - ip.len()..].copy_from_slice(ip);
    if !v6 {
        // A template leaves length and checksum unset.
        let mut head =
            Head::begin(&template, &Bth::new(Opcode::UD_SEND_ONLY, Qpn::new(1), Psn::new(0)));
        head.finish(&template, 0);
        area[20..].copy_from_slice(&head.bytes()[14..34]);
    }
    area
}

mod network_header {
    use super::*;

    #[test]
    fn every_bit_of_an_ipv4_header_is_covered_by_its_checksum() {
        let area = received(false);
        assert!(NetworkHeader::read(&area).is_some());
        for bit in 160..320 {
            let mut wrong = area;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(NetworkHeader::read(&wrong), None, "bit {bit}");
        }
    }

    #[test]
    fn what_stands_before_an_ipv4_header_does_not_matter_unless_it_says_ipv6() {
        let mut area = received(false);
        let header = NetworkHeader::read(&area);
        area[..20].fill(0x45);
        assert_eq!(NetworkHeader::read(&area), header);
        area[0] = 0x60;
        assert_ne!(NetworkHeader::read(&area), header);
    }

    #[test]
    fn an_ipv6_sender_cannot_pass_for_an_ipv4_one() {
        let mut area = received(true);
        let ipv4 = received(false);
        area[20..].copy_from_slice(&ipv4[20..]);
        assert!(NetworkHeader::read(&area).unwrap().source.is_ipv6());
    }

    #[test]
    fn nothing_but_udp_is_taken() {
        let mut area = received(true);
        area[6] = 0x1b;
        assert_eq!(NetworkHeader::read(&area), None);
        assert_eq!(NetworkHeader::read(&[0; GRH_LEN]), None);
        assert_eq!(NetworkHeader::read(&[0xff; GRH_LEN]), None);
    }
}
