//! Two hosts of a test: software RNICs with one queue pair each, connected to each other.

use crate::script::frames;
use longhaul_rnic::{
    Access, BringUp, Completion, Config, CqId, Memory, MrKeys, Mtu, QpInit, QpKind, Rnic, Sge,
};
use longhaul_units::{BitRate, Instant, Psn, Qpn};
use longhaul_wire::MacAddr;
use std::net::IpAddr;

/// First address of each host's memory.
pub const BASE: u64 = 0x7000_0000_0000;
pub const LOCAL: usize = 0;
pub const REMOTE: usize = 1;

/// Depths of a host's queues.
#[derive(Clone, Copy)]
pub struct Depths {
    pub cq: u32,
    pub sq: u32,
    pub rq: u32,
}

/// One host's end of the connection.
pub struct End {
    pub cq: CqId,
    pub qpn: Qpn,
    pub keys: MrKeys,
}

/// Attributes that both ends agree on: the first PSN of each host, and the path MTU.
#[derive(Clone, Copy)]
pub struct Terms {
    pub psns: [u32; 2],
    pub mtu: Mtu,
}

/// The address of a host.
pub fn ip(host: usize) -> IpAddr {
    IpAddr::from([10, 77, 0, host as u8 + 1])
}

/// The device of a host, with a port at `rate`.
pub fn config(host: usize, rate: BitRate) -> Config {
    let mut config = Config::new(MacAddr([2, 0, 10, 77, 0, host as u8 + 1]), ip(host));
    config.port_rate = Some(rate);
    config
}

impl End {
    /// Creates a queue pair of `rnic`, with all `memory_len` bytes registered.
    pub fn open<M: Memory>(rnic: &mut Rnic<M>, memory_len: usize, depths: Depths) -> End {
        let pd = rnic.alloc_pd().unwrap();
        let cq = rnic.create_cq(depths.cq).unwrap();
        let keys = rnic.reg_mr(pd, BASE, memory_len as u64, BASE, Access::ALL).unwrap();
        let init = QpInit { rq_depth: depths.rq, ..QpInit::new(QpKind::Rc, pd, cq, depths.sq) };
        End { cq, qpn: rnic.create_qp(&init).unwrap(), keys }
    }

    /// `len` bytes of the host's memory, `at` bytes into it.
    pub fn segment(&self, at: usize, len: usize) -> Sge {
        Sge { address: BASE + at as u64, len: len as u32, lkey: self.keys.lkey }
    }
}

/// Drains the completion queue.
pub fn completions<M: Memory>(rnic: &mut Rnic<M>, cq: CqId) -> Vec<Completion> {
    let mut all = Vec::new();
    rnic.poll_cq(cq, usize::MAX, |completion| all.push(completion));
    all
}

/// The other end of a connection.
pub struct Peer {
    pub host: usize,
    pub qpn: Qpn,
}

/// Connects the queue pair of `host` to the other one.
pub fn connect<M: Memory>(
    rnic: &mut Rnic<M>,
    now: Instant,
    ends: &[End],
    host: usize,
    terms: Terms,
) {
    let peer = Peer { host: 1 - host, qpn: ends[1 - host].qpn };
    let psns = [terms.psns[host], terms.psns[1 - host]];
    join(rnic, now, ends[host].qpn, &peer, psns, terms.mtu, 7);
}

/// Connects a queue pair with `peer`, whose first PSN is the second of `psns`.
pub fn join<M: Memory>(
    rnic: &mut Rnic<M>,
    now: Instant,
    qpn: Qpn,
    peer: &Peer,
    psns: [u32; 2],
    mtu: Mtu,
    rnr_retry: u8,
) {
    let to = BringUp {
        path_mtu: mtu,
        sq_psn: Psn::new(psns[0]),
        rq_psn: Psn::new(psns[1]),
        min_rnr_timer: 12,
        rnr_retry,
        ..BringUp::to(ip(peer.host), peer.qpn)
    };
    rnic.bring_up_qp(now, qpn, &to).unwrap();
}

/// The connection manager's messages for such a connection: sender and frame.
pub fn connection_messages(ends: &[End], terms: Terms) -> [(usize, Vec<u8>); 3] {
    let [requester_qpn, responder_qpn] = [LOCAL, REMOTE].map(|host| ends[host].qpn.get());
    let wire = frames::Wire { requester_qpn, responder_qpn, ..frames::Wire::default() };
    let line =
        format!("psn={} rpsn={} mtu={}", terms.psns[LOCAL], terms.psns[REMOTE], terms.mtu.bytes());
    [
        (LOCAL, wire.requester_frame(&format!("req {line}"))),
        (REMOTE, wire.responder_frame(&format!("rep {line}"))),
        (LOCAL, wire.requester_frame("rtu")),
    ]
}
