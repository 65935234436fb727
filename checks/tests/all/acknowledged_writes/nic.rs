//! A host's device with one region of memory, as both programs use it.

use super::Setup;
use longhaul_node::{Gather, Payload};
use longhaul_rnic::{
    Access, AddressVector, BringUp, Config, CqId, Memory, MrKeys, Mtu, PdId, QpAttr, QpInit,
    QpKind, RecvWr, Rnic, SendOp, SendWr, Sge,
};
use longhaul_units::{Instant, Psn, Qpn};
use longhaul_wire::MacAddr;
use std::net::IpAddr;

/// First address of the region.
pub const BASE: u64 = 0x7000_0000_0000;
/// READs that a queue pair serves, and has outstanding.
pub const READS: u8 = 16;
pub const MTU: Mtu = Mtu::B1024;
/// Local ACK timeout: 4.096 µs times 2^14, 67 ms.
pub const TIMEOUT: u8 = 14;

/// The region.
pub struct Bytes(Vec<u8>);

impl Bytes {
    fn part(&mut self, address: u64, len: usize) -> &mut [u8] {
        let at = (address - BASE) as usize;
        &mut self.0[at..at + len]
    }
}

impl Gather for Bytes {
    fn gather(&self, address: u64, out: &mut [u8]) {
        let at = (address - BASE) as usize;
        out.copy_from_slice(&self.0[at..at + out.len()]);
    }
}

impl Memory for Bytes {
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        payload.copy_to(self.part(address, payload.len()));
    }

    fn fetch_add(&mut self, _address: u64, _add: u64) -> u64 {
        unimplemented!("storage has no atomics")
    }

    fn compare_swap(&mut self, _address: u64, _compare: u64, _swap: u64) -> u64 {
        unimplemented!("storage has no atomics")
    }
}

pub struct Nic {
    pub rnic: Rnic<Bytes>,
    pub cq: CqId,
    pub keys: MrKeys,
    pd: PdId,
}

pub fn address_of(host: usize) -> IpAddr {
    IpAddr::from([10, 77, 0, host as u8 + 1])
}

impl Nic {
    /// A device with a region of `len` bytes; `life` tells the QPNs of its starts apart.
    pub fn start(setup: &Setup, host: usize, life: u32, len: usize) -> Self {
        let (rate, response_timeout_code) = (setup.rate(), setup.response_timeout_code);
        let mac = MacAddr([2, 0, 10, 77, 0, host as u8 + 1]);
        let mut config = Config::new(mac, address_of(host));
        config.port_rate = Some(rate);
        config.qpn_first = 0x11 + 0x1000 * life + 0x10_0000 * host as u32;
        config.cm.response_timeout_code = response_timeout_code;
        let mut rnic = Rnic::new(config, Bytes(vec![0; len]));
        let pd = rnic.alloc_pd().unwrap();
        let cq = rnic.create_cq(1 << 16).unwrap();
        let keys = rnic.reg_mr(pd, BASE, len as u64, BASE, Access::ALL).unwrap();
        Nic { rnic, cq, keys, pd }
    }

    pub fn create_qp(&mut self, now: Instant, sends: u32, receives: u32) -> Qpn {
        let init =
            QpInit { rq_depth: receives, ..QpInit::new(QpKind::Rc, self.pd, self.cq, sends) };
        let qpn = self.rnic.create_qp(&init).unwrap();
        self.rnic.modify_qp(now, qpn, &QpAttr::initialize(Access::ALL)).unwrap();
        qpn
    }

    pub fn make_ready(&mut self, now: Instant, qpn: Qpn, host: usize, peer: Qpn, psns: [Psn; 2]) {
        let ip = address_of(1 - host);
        let to = BringUp {
            address: AddressVector { flow_label: qpn.get() & 0xf_ffff, ..AddressVector::to(ip) },
            path_mtu: MTU,
            sq_psn: psns[0],
            rq_psn: psns[1],
            max_rd_atomic: READS,
            max_dest_rd_atomic: READS,
            min_rnr_timer: 12,
            timeout: TIMEOUT,
            retry_cnt: 7,
            rnr_retry: 7,
            ..BringUp::to(ip, peer)
        };
        for attr in to.make_ready(QpKind::Rc) {
            self.rnic.modify_qp(now, qpn, &attr).unwrap();
        }
    }

    pub fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.rnic.memory().gather(address, &mut bytes);
        bytes
    }

    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        self.rnic.memory_mut().part(address, bytes.len()).copy_from_slice(bytes);
    }

    pub fn post_recv(&mut self, qpn: Qpn, wr_id: u64, address: u64, len: u32) {
        let segments = [Sge { address, len, lkey: self.keys.lkey }];
        self.rnic.post_recv(qpn, &RecvWr { wr_id, segments: &segments }).unwrap();
    }

    /// Posts a work request, unless its queue pair has failed, of which a completion tells.
    pub fn post(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wr_id: u64,
        op: SendOp,
        (address, len): (u64, u32),
    ) {
        let segments = [Sge { address, len, lkey: self.keys.lkey }];
        let wr = SendWr {
            wr_id,
            op,
            segments: &segments,
            inline: false,
            signaled: true,
            solicited: false,
            fence: false,
        };
        let _ = self.rnic.post_send(now, qpn, &wr);
    }
}
