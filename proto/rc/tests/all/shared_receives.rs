//! Several responders over one receive queue.

use crate::script::{Device, KEY, device, template};
use longhaul_node::Payload;
use longhaul_rc::{Fault, Responder, ResponderConfig};
use longhaul_units::{LKey, Psn, Qpn};
use longhaul_wire::{Bth, Head, Opcode, Packet};
use longhaul_wire_script::{Wire, describe};
use longhaul_work::*;

const MTU: usize = 256;

/// Responders with QPNs from 1, and the queue and memory that they share.
struct Shared {
    responders: Vec<Responder>,
    queue: RecvQueue,
    device: Device,
}

impl Shared {
    fn new(responders: u32, depth: u32) -> Self {
        let responder = |qpn| {
            Responder::new(ResponderConfig {
                qpn: Qpn::new(qpn),
                dest_qpn: Qpn::new(100 + qpn),
                rq_psn: Psn::new(0),
                mtu: Mtu::B256,
                max_dest_rd_atomic: 1,
                min_rnr_timer: 1,
                ack_every: 64,
                report_credits: false,
                migreq: false,
                pkey: 0xffff,
            })
        };
        Shared {
            responders: (1..=responders).map(responder).collect(),
            queue: RecvQueue::new(depth, 2),
            device: device(),
        }
    }

    /// Posts receive `wr_id`, of `len` bytes at `1000 * wr_id`.
    fn post(&mut self, wr_id: u64, len: u32) -> Result<(), RecvRefused> {
        self.queue.post(&RecvWr {
            wr_id,
            segments: &[Sge { address: 1000 * wr_id, len, lkey: LKey(KEY) }],
        })
    }

    /// A packet of `len` bytes `fill` for responder `at`.
    fn deliver(&mut self, at: usize, opcode: Opcode, psn: u32, fill: u8, len: usize) {
        let bth = Bth::new(opcode, Qpn::new(at as u32 + 1), Psn::new(psn));
        let mut head = Head::begin(&template(), &bth);
        if opcode.has_reth() {
            head.push_reth(&longhaul_wire::Reth {
                virtual_address: 500_000,
                rkey: longhaul_units::RKey(KEY),
                len: len as u32,
            });
        }
        if opcode.has_immediate() {
            head.push_immediate([0; 4]);
        }
        head.finish(&template(), len);
        let packet = Packet::parse(head.bytes()).unwrap().unwrap();
        let payload = vec![fill; len];
        self.responders[at].handle_request(
            &packet,
            &bth,
            &Payload::Bytes(&payload),
            &mut self.queue,
            &mut self.device,
        );
    }

    /// Next packet of responder `at`.
    fn sent(&mut self, at: usize) -> Option<String> {
        let mut wire = Wire::default();
        self.responders[at].transmit(&self.queue, &mut self.device, &template(), &mut wire);
        wire.0.pop().as_ref().map(describe)
    }

    /// The completions since the last call: LOCAL_QPN, `wr_id`, status, bytes.
    fn done(&mut self) -> Vec<(u32, u64, Status, u32)> {
        let all = self.device.completions.drain(..);
        all.map(|c| (c.qpn.get(), c.wr_id, c.status, c.byte_len)).collect()
    }

    fn holds(&self, at: usize, len: usize, fill: u8) -> bool {
        self.device.memory.0[at..at + len].iter().all(|&b| b == fill)
    }
}

#[test]
fn messages_that_interleave_fill_a_receive_each() {
    let mut shared = Shared::new(2, 4);
    for wr_id in 1..=3 {
        shared.post(wr_id, 900).unwrap();
    }
    shared.deliver(0, Opcode::RC_SEND_FIRST, 0, 0xa0, MTU);
    shared.deliver(1, Opcode::RC_SEND_FIRST, 0, 0xb0, MTU);
    shared.deliver(1, Opcode::RC_SEND_MIDDLE, 1, 0xb1, MTU);
    shared.deliver(0, Opcode::RC_SEND_LAST, 1, 0xa1, 10);
    assert_eq!(shared.done(), [(1, 1, Status::Success, 266)]);
    // The first QP begins another message while the second one's goes on.
    shared.deliver(0, Opcode::RC_SEND_ONLY, 2, 0xa2, 5);
    shared.deliver(1, Opcode::RC_SEND_LAST, 2, 0xb2, 20);
    assert_eq!(shared.done(), [(1, 3, Status::Success, 5), (2, 2, Status::Success, 532)]);
    assert!(shared.holds(1000, MTU, 0xa0) && shared.holds(1000 + MTU, 10, 0xa1));
    assert!(shared.holds(2000, MTU, 0xb0) && shared.holds(2000 + MTU, MTU, 0xb1));
    assert!(shared.holds(2000 + 2 * MTU, 20, 0xb2) && shared.holds(3000, 5, 0xa2));
    assert_eq!(shared.queue.in_use(), 0);
}

#[test]
fn a_receive_posted_meanwhile_does_not_disturb_those_in_use() {
    let mut shared = Shared::new(2, 2);
    shared.post(1, 900).unwrap();
    shared.post(2, 900).unwrap();
    shared.deliver(0, Opcode::RC_SEND_FIRST, 0, 1, MTU);
    shared.deliver(1, Opcode::RC_SEND_ONLY, 0, 2, 1);
    // Receives in use count against the depth.
    shared.post(3, 900).unwrap();
    assert_eq!(shared.post(4, 900), Err(RecvRefused::Full(2)));
    shared.deliver(1, Opcode::RC_SEND_ONLY, 1, 3, 1);
    shared.deliver(0, Opcode::RC_SEND_LAST, 1, 4, 1);
    assert_eq!(
        shared.done(),
        [(2, 2, Status::Success, 1), (2, 3, Status::Success, 1), (1, 1, Status::Success, 257)]
    );
    assert!(shared.holds(1000, MTU, 1) && shared.holds(1256, 1, 4) && shared.holds(3000, 1, 3));
}

#[test]
fn an_empty_queue_is_not_ready_for_those_that_begin_only() {
    let mut shared = Shared::new(2, 4);
    shared.post(1, 900).unwrap();
    shared.deliver(0, Opcode::RC_SEND_FIRST, 0, 1, MTU);
    shared.deliver(1, Opcode::RC_SEND_ONLY, 0, 2, 1);
    assert!(shared.sent(1).unwrap().starts_with("rnr psn=0"));
    shared.deliver(1, Opcode::RC_WRITE_ONLY_IMM, 0, 2, 1);
    assert!(shared.sent(1).unwrap().starts_with("rnr psn=0"));
    shared.deliver(0, Opcode::RC_SEND_LAST, 1, 1, 1);
    assert_eq!(shared.sent(0), None);
    assert_eq!(shared.done(), [(1, 1, Status::Success, 257)]);
    shared.post(2, 900).unwrap();
    shared.deliver(1, Opcode::RC_WRITE_ONLY_IMM, 0, 2, 1);
    assert_eq!(shared.done(), [(2, 2, Status::Success, 1)]);
    assert_eq!(shared.queue.in_use(), 0);
}

#[test]
fn a_flush_ends_the_receive_in_use_and_leaves_the_others() {
    let mut shared = Shared::new(2, 4);
    for wr_id in 1..=3 {
        shared.post(wr_id, 900).unwrap();
    }
    shared.deliver(0, Opcode::RC_SEND_FIRST, 0, 1, MTU);
    shared.deliver(1, Opcode::RC_SEND_FIRST, 0, 2, MTU);
    let Shared { responders, queue, device } = &mut shared;
    responders[0].flush(queue, device);
    assert_eq!(shared.done(), [(1, 1, Status::WrFlush, 0)]);
    assert_eq!((shared.queue.len(), shared.queue.in_use()), (1, 2));
    shared.deliver(1, Opcode::RC_SEND_LAST, 1, 2, 1);
    shared.deliver(1, Opcode::RC_SEND_ONLY, 2, 3, 1);
    assert_eq!(shared.done(), [(2, 2, Status::Success, 257), (2, 3, Status::Success, 1)]);
}

#[test]
fn a_release_gives_the_receive_back_without_a_completion() {
    let mut shared = Shared::new(2, 2);
    shared.post(1, 900).unwrap();
    shared.post(2, 900).unwrap();
    shared.deliver(0, Opcode::RC_SEND_FIRST, 0, 1, MTU);
    shared.deliver(1, Opcode::RC_SEND_FIRST, 0, 2, MTU);
    let Shared { responders, queue, .. } = &mut shared;
    responders[0].release(queue);
    assert_eq!(shared.done(), []);
    shared.post(3, 900).unwrap();
    shared.deliver(1, Opcode::RC_SEND_LAST, 1, 2, 1);
    assert_eq!(shared.done(), [(2, 2, Status::Success, 257)]);
    assert!(shared.holds(3000, 256, 0xee), "the slot's new receive was written to");
}

#[test]
fn a_message_too_long_for_its_receive_is_its_own_qps_fault() {
    let mut shared = Shared::new(2, 4);
    shared.post(1, 10).unwrap();
    shared.post(2, 900).unwrap();
    shared.deliver(0, Opcode::RC_SEND_ONLY, 0, 1, 11);
    assert!(shared.sent(0).unwrap().starts_with("nak.invalid psn=0"));
    assert_eq!(shared.responders[0].fault(), Some(Fault::InvalidRequest));
    shared.deliver(1, Opcode::RC_SEND_ONLY, 0, 2, 11);
    assert_eq!(shared.done(), [(1, 1, Status::LocalLength, 0), (2, 2, Status::Success, 11)]);
    assert!(shared.holds(1000, 11, 0xee));
}

#[test]
fn emptying_the_queue_leaves_receives_in_use_alone() {
    let mut shared = Shared::new(1, 4);
    shared.post(1, 900).unwrap();
    shared.post(2, 900).unwrap();
    shared.deliver(0, Opcode::RC_SEND_FIRST, 0, 1, MTU);
    shared.queue.clear();
    for wr_id in 3..=5 {
        shared.post(wr_id, 900).unwrap();
    }
    shared.deliver(0, Opcode::RC_SEND_LAST, 1, 1, 1);
    assert_eq!(shared.done(), [(1, 1, Status::Success, 257)]);
}
