//! Two devices without a wire between them, for measurements.
#![allow(dead_code, reason = "each measurement uses its part")]

use longhaul_node::{Frame, Gather, Node, Payload, Side, Transmit};
use longhaul_rnic::*;
use longhaul_units::Instant;
use longhaul_wire::{Head, MacAddr};
use std::net::IpAddr;

pub struct VecMemory(pub Vec<u8>);

impl Gather for VecMemory {
    #[inline]
    fn gather(&self, address: u64, out: &mut [u8]) {
        let at = address as usize;
        out.copy_from_slice(&self.0[at..at + out.len()]);
    }
}

impl Memory for VecMemory {
    #[inline]
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        let at = address as usize;
        payload.copy_to(&mut self.0[at..at + payload.len()]);
    }

    fn fetch_add(&mut self, _address: u64, _add: u64) -> u64 {
        unreachable!("nothing here is atomic")
    }

    fn compare_swap(&mut self, _address: u64, _compare: u64, _swap: u64) -> u64 {
        unreachable!("nothing here is atomic")
    }
}

/// Frames per batch.
pub const BATCH: usize = 64;
const FRAME_MAX: usize = 4300;

/// Copies frames and computes their ICRC, as a port does.
pub struct Ring {
    bytes: Vec<u8>,
    lens: Vec<usize>,
}

impl Ring {
    pub fn new() -> Self {
        Ring { bytes: vec![0; BATCH * FRAME_MAX], lens: Vec::with_capacity(BATCH) }
    }

    pub fn clear(&mut self) {
        self.lens.clear();
    }

    pub fn len(&self) -> usize {
        self.lens.len()
    }

    pub fn deliver(&self, now: Instant, to: &mut Rnic<VecMemory>) {
        for (i, &len) in self.lens.iter().enumerate() {
            let bytes = &self.bytes[i * FRAME_MAX..i * FRAME_MAX + len];
            let head = Head::copy_of(bytes);
            if let Ok(frame) = Frame::received(&head, bytes) {
                to.handle_frame(now, 0, &frame);
            }
        }
    }
}

impl Transmit for Ring {
    fn room(&mut self, _side: Side) -> usize {
        BATCH - self.lens.len()
    }
    fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
        let at = self.lens.len() * FRAME_MAX;
        let len = frame.len();
        frame.write_to(&mut self.bytes[at..at + len]);
        self.lens.push(len);
    }
}

/// Discards frames: what remains is the device's own work.
pub struct Null {
    pub frames: usize,
    pub room: usize,
}

impl Transmit for Null {
    fn room(&mut self, _side: Side) -> usize {
        self.room
    }
    fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
        std::hint::black_box(frame);
        self.frames += 1;
        self.room -= 1;
    }
}

pub struct Pair {
    pub a: Rnic<VecMemory>,
    pub b: Rnic<VecMemory>,
    pub qp: longhaul_units::Qpn,
    pub cq: CqId,
    pub mr: [MrKeys; 2],
}

const MEMORY: usize = 1 << 20;

fn device(n: u8) -> (Rnic<VecMemory>, PdId, CqId, MrKeys) {
    let config = Config::new(MacAddr([2, 0, 10, 77, 0, n]), IpAddr::from([10, 77, 0, n]));
    let mut rnic = Rnic::new(config, VecMemory(vec![7; MEMORY]));
    let pd = rnic.alloc_pd().expect("PD");
    let cq = rnic.create_cq(1024).expect("CQ");
    let mr = rnic.reg_mr(pd, 0, MEMORY as u64, 0, Access::ALL).expect("MR");
    (rnic, pd, cq, mr)
}

impl Pair {
    /// `idle` further QPs exist beside the one in use.
    pub fn new(idle: usize) -> Self {
        let (mut a, pd_a, cq_a, mr_a) = device(1);
        let (mut b, pd_b, cq_b, mr_b) = device(2);
        let init = |pd, cq, depth| QpInit { rq_depth: 1, ..QpInit::new(QpKind::Rc, pd, cq, depth) };
        for _ in 0..idle {
            a.create_qp(&init(pd_a, cq_a, 1)).expect("QP");
        }
        let qa = a.create_qp(&init(pd_a, cq_a, 256)).expect("QP");
        let qb = b.create_qp(&init(pd_b, cq_b, 256)).expect("QP");
        for (node, own, peer, peer_ip) in
            [(&mut a, qa, qb, [10, 77, 0, 2]), (&mut b, qb, qa, [10, 77, 0, 1])]
        {
            let one_read = BringUp {
                max_rd_atomic: 1,
                max_dest_rd_atomic: 1,
                ..BringUp::to(IpAddr::from(peer_ip), peer)
            };
            node.bring_up_qp(Instant::ZERO, own, &one_read).expect("transitions");
        }
        Pair { a, b, qp: qa, cq: cq_a, mr: [mr_a, mr_b] }
    }

    /// Posts one WRITE of `len` bytes.
    pub fn post(&mut self, now: Instant, len: u32) {
        let segments = [Sge { address: 0, len, lkey: self.mr[0].lkey }];
        let op = SendOp::Write { remote_address: 0, rkey: self.mr[1].rkey, immediate: None };
        let wr = SendWr {
            wr_id: 1,
            op,
            segments: &segments,
            inline: false,
            signaled: true,
            solicited: false,
            fence: false,
        };
        self.a.post_send(now, self.qp, &wr).expect("room in the queue");
    }

    pub fn poll(&mut self) -> usize {
        self.a.poll_cq(self.cq, BATCH, |c| assert_eq!(c.status, Status::Success))
    }
}
