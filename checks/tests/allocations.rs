//! Memory of the device, counted by the allocator: none per packet once warm, and little per idle
//! queue pair. Only one test may read the counts, so there is only one here.

use longhaul_checks::counting::Counting;
use longhaul_node::{Frame, Gather, Node, Payload, Side, Transmit};
use longhaul_rnic::{
    Access, AddressVector, AhId, BringUp, Config, CqId, Destination, Memory, MrKeys, PdId, QpInit,
    QpKind, RecvWr, Rnic, SendOp, SendWr, Sge, SrqInit,
};
use longhaul_units::{Duration, Instant, Qpn};
use longhaul_wire::{Head, MacAddr};
use std::net::IpAddr;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

const MEMORY_LEN: usize = 1 << 20;
const QKEY: u32 = 5;

struct Flat(Vec<u8>);

impl Gather for Flat {
    fn gather(&self, address: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.0[address as usize..][..out.len()]);
    }
}

impl Memory for Flat {
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        payload.copy_to(&mut self.0[address as usize..][..payload.len()]);
    }

    fn fetch_add(&mut self, _address: u64, _add: u64) -> u64 {
        0
    }

    fn compare_swap(&mut self, _address: u64, _compare: u64, _swap: u64) -> u64 {
        0
    }
}

/// Frames between two devices, in preallocated buffers.
struct Ring {
    bytes: Vec<u8>,
    lens: Vec<usize>,
}

const SLOT: usize = 4400;
const SLOTS: usize = 64;

impl Transmit for Ring {
    fn room(&mut self, _side: Side) -> usize {
        SLOTS - self.lens.len()
    }

    fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
        let (at, len) = (self.lens.len() * SLOT, frame.len());
        frame.write_to(&mut self.bytes[at..at + len]);
        self.lens.push(len);
    }
}

struct End {
    device: Rnic<Flat>,
    pd: PdId,
    cq: CqId,
    mr: MrKeys,
}

fn ip(n: u8) -> IpAddr {
    IpAddr::from([10, 77, 0, n])
}

fn end(n: u8) -> End {
    let mut device =
        Rnic::new(Config::new(MacAddr([2, 0, 10, 77, 0, n]), ip(n)), Flat(vec![n; MEMORY_LEN]));
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(4096).unwrap();
    let mr = device.reg_mr(pd, 0, MEMORY_LEN as u64, 0, Access::ALL).unwrap();
    End { device, pd, cq, mr }
}

impl End {
    fn create(&mut self, kind: QpKind, depth: u32) -> Qpn {
        let init = QpInit { inline_max: 64, ..QpInit::new(kind, self.pd, self.cq, depth) };
        self.device.create_qp(&init).unwrap()
    }

    fn connect(&mut self, qpn: Qpn, peer: u8, peer_qpn: Qpn) {
        let to = BringUp { qkey: QKEY, ..BringUp::to(ip(peer), peer_qpn) };
        self.device.bring_up_qp(Instant::ZERO, qpn, &to).unwrap();
    }

    fn segment(&self, len: u32) -> [Sge; 1] {
        [Sge { address: 0, len, lkey: self.mr.lkey }]
    }

    fn send(&mut self, now: Instant, qpn: Qpn, op: SendOp, len: u32) {
        let segments = self.segment(len);
        let request = SendWr {
            wr_id: 1,
            op,
            segments: &segments,
            inline: false,
            signaled: true,
            solicited: false,
            fence: false,
        };
        self.device.post_send(now, qpn, &request).unwrap();
    }
}

/// One round of every operation that moves data, for each transport.
struct Traffic {
    ends: [End; 2],
    qps: [[Qpn; 3]; 2],
    ah: AhId,
    ring: Ring,
    now: Instant,
    packets: usize,
}

const KINDS: [QpKind; 3] = [QpKind::Rc, QpKind::Uc, QpKind::Ud];

impl Traffic {
    fn new() -> Self {
        let mut ends = [end(1), end(2)];
        let qps = [0, 1].map(|n: usize| KINDS.map(|kind| ends[n].create(kind, 64)));
        for n in 0..2 {
            for (own, peer) in qps[n].into_iter().zip(qps[1 - n]) {
                ends[n].connect(own, 2 - n as u8, peer);
            }
        }
        let pd = ends[0].pd;
        let ah = ends[0].device.create_ah(Instant::ZERO, pd, &AddressVector::to(ip(2))).unwrap();
        let ring = Ring { bytes: vec![0; SLOT * SLOTS], lens: Vec::with_capacity(SLOTS) };
        Traffic { ends, qps, ah, ring, now: Instant::ZERO, packets: 0 }
    }

    fn round(&mut self) {
        let [near, far] = &mut self.ends;
        let rkey = far.mr.rkey;
        let write = SendOp::Write { remote_address: 8192, rkey, immediate: None };
        let send = SendOp::Send { immediate: Some([1; 4]), invalidate: None };
        let read = SendOp::Read { remote_address: 0, rkey };
        let add = SendOp::FetchAdd { remote_address: 0, rkey, add: 1 };
        let destination = Destination { ah: self.ah, qpn: self.qps[1][2], qkey: QKEY };
        let datagram = SendOp::Datagram { destination, immediate: None };
        for (i, ops) in [&[write, send, read, add][..], &[write, send], &[datagram, datagram]]
            .iter()
            .enumerate()
        {
            let segments = far.segment(10_000);
            for _ in
                ops.iter().filter(|op| matches!(op, SendOp::Send { .. } | SendOp::Datagram { .. }))
            {
                far.device
                    .post_recv(self.qps[1][i], &RecvWr { wr_id: 2, segments: &segments })
                    .unwrap();
            }
            for op in *ops {
                let len = if i == 2 {
                    1000
                } else if matches!(op, SendOp::FetchAdd { .. }) {
                    8
                } else {
                    9000
                };
                near.send(self.now, self.qps[0][i], *op, len);
            }
        }
        self.exchange();
        let [near, far] = &mut self.ends;
        assert_eq!(near.device.poll_cq(near.cq, usize::MAX, |_| {}), 8, "all are done");
        let received = far.device.poll_cq(far.cq, usize::MAX, |_| {});
        assert_eq!(received, 4, "two SENDs and two datagrams");
        self.now += Duration::from_us(50);
    }

    fn exchange(&mut self) {
        loop {
            let mut moved = 0;
            for n in 0..2 {
                self.ring.lens.clear();
                self.ends[n].device.poll_transmit(self.now, &mut self.ring);
                moved += self.ring.lens.len();
                for (i, &len) in self.ring.lens.iter().enumerate() {
                    let bytes = &self.ring.bytes[i * SLOT..i * SLOT + len];
                    let head = Head::copy_of(bytes);
                    let frame = Frame::received(&head, bytes).unwrap();
                    self.ends[1 - n].device.handle_frame(self.now, 0, &frame);
                }
            }
            self.packets += moved;
            if moved == 0 {
                return;
            }
            self.now += Duration::from_us(1);
            self.ends.iter_mut().for_each(|end| end.device.handle_timeout(self.now));
        }
    }
}

/// Bytes of each of 2000 connected, idle QPs.
fn bytes_per_idle_qp(kind: QpKind, shared: bool) -> i64 {
    const COUNT: usize = 2000;
    let mut end = end(1);
    let srq = shared.then(|| {
        let init = SrqInit { pd: end.pd, depth: 1024, sge_max: 1, limit: 0 };
        end.device.create_srq(&init).unwrap()
    });
    // Excludes the growth of the tables.
    let before = ALLOCATOR.bytes();
    for _ in 0..COUNT {
        let init = QpInit {
            srq,
            rq_depth: 512,
            send_sge_max: 4,
            recv_sge_max: 4,
            inline_max: 128,
            ..QpInit::new(kind, end.pd, end.cq, 128)
        };
        let qpn = end.device.create_qp(&init).unwrap();
        end.connect(qpn, 2, Qpn::new(0x99));
    }
    (ALLOCATOR.bytes() - before) / COUNT as i64
}

#[test]
fn nothing_is_allocated_per_packet_and_little_per_idle_queue_pair() {
    for kind in KINDS {
        let bytes = [false, true].map(|shared| bytes_per_idle_qp(kind, shared));
        println!(
            "{kind:?}: {} bytes for each of 2000 idle QPs, {} over an SRQ",
            bytes[0], bytes[1]
        );
        assert!(bytes.iter().all(|&bytes| bytes <= 4096), "{kind:?}: {bytes:?}");
    }
    let mut traffic = Traffic::new();
    (0..100).for_each(|_| traffic.round());
    let (calls, packets) = (ALLOCATOR.calls(), traffic.packets);
    (0..100).for_each(|_| traffic.round());
    let allocated = ALLOCATOR.calls() - calls;
    assert!(traffic.packets - packets > 1000);
    assert_eq!(allocated, 0, "allocations for {} packets", traffic.packets - packets);
}
