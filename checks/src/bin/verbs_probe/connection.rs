//! Two connected queue pairs, and the operations of each side on its own.

use crate::Fault;
use crate::verbs::{Completions, Device, Memory, QueuePair};
use longhaul_abi_defs::*;
use longhaul_checks::rendezvous::Rendezvous;
use serde_json::json;
use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit of a completion; an emulated machine may be slow, and lost packets cost timeouts.
const PATIENCE: Duration = Duration::from_secs(90);
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// Requests and receives that a queue pair holds.
const DEPTH: u32 = 64;
/// QKey of datagrams.
pub const QKEY: u32 = 0x1111_1111;

/// All access flags.
pub const ALL_ACCESS: c_uint = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC;

/// Parameters of a connection. Both sides use the same, except in scenarios about differences.
#[derive(Clone, Copy)]
pub struct Options {
    pub kind: ibv_qp_type,
    pub mtu: ibv_mtu,
    /// First PSN, in both directions.
    pub psn: u32,
    /// ACK timeout: 4.096 µs times two to this power.
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// Access that the queue pair grants the peer.
    pub qp_access: c_uint,
    /// Access that the memory grants the peer, and local writes.
    pub memory_access: c_uint,
    /// READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Bytes of memory.
    pub memory: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            kind: IBV_QPT_RC,
            mtu: IBV_MTU_1024,
            psn: 0x12_3456,
            // 67 ms, seven retries; rxe takes seven to mean forever.
            timeout: 16,
            retry_cnt: 7,
            rnr_retry: 6,
            min_rnr_timer: 12,
            qp_access: ALL_ACCESS,
            memory_access: ALL_ACCESS,
            max_dest_rd_atomic: 8,
            memory: 1 << 16,
        }
    }
}

/// One of the two processes, in one scenario.
pub struct Side<'a> {
    pub device: &'a Device,
    /// Whether this side requests; the other one responds.
    pub requests: bool,
    pub link: Rendezvous,
    gid_index: u8,
}

impl<'a> Side<'a> {
    pub fn new(device: &'a Device, gid_index: u8, requests: bool, link: Rendezvous) -> Self {
        Side { device, requests, link, gid_index }
    }

    /// `true` if the device is the kernel's rxe.
    pub fn is_rxe(&self) -> bool {
        self.device.name.starts_with("rxe")
    }

    /// Creates a queue pair with its own memory and connects it to the other side's.
    pub fn connect(&mut self, options: Options) -> Result<Connection, Fault> {
        let memory = self.device.memory(options.memory, options.memory_access)?;
        let cq = self.device.completions(4 * DEPTH)?;
        let qp = self.device.queue_pair(options.kind, &cq, DEPTH)?;
        let gid = self.device.gid(self.gid_index)?;
        let theirs = self.link.swap(&json!({
            "qpn": qp.number(), "gid": gid.bytes(),
            "address": memory.address(), "rkey": memory.rkey(),
        }))?;
        let number =
            |name: &str| theirs[name].as_u64().ok_or("the other side tells no such number");
        let peer = Peer {
            qpn: u32::try_from(number("qpn")?)?,
            address: number("address")?,
            rkey: u32::try_from(number("rkey")?)?,
        };
        let gid: [u8; 16] = serde_json::from_value(theirs["gid"].clone())?;
        let path = self.path_to(gid);
        bring_up(&qp, &options, &peer, path)?;
        let ah =
            if options.kind == IBV_QPT_UD { Some(self.device.address_handle(path)?) } else { None };
        self.link.agree("connected")?;
        let is_reliable = options.kind == IBV_QPT_RC;
        Ok(Connection { qp, cq, memory, peer, is_reliable, ah, next_id: Cell::new(1) })
    }

    fn path_to(&self, gid: [u8; 16]) -> ibv_ah_attr {
        let mut path = ibv_ah_attr::zeroed();
        (path.is_global, path.port_num) = (1, 1);
        path.grh.dgid = ibv_gid::from_bytes(gid);
        (path.grh.sgid_index, path.grh.hop_limit) = (self.gid_index, 64);
        path
    }
}

/// From RESET to RTS.
fn bring_up(
    qp: &QueuePair,
    options: &Options,
    peer: &Peer,
    path: ibv_ah_attr,
) -> Result<(), Fault> {
    let (is_rc, is_ud) = (options.kind == IBV_QPT_RC, options.kind == IBV_QPT_UD);
    let mut attributes = ibv_qp_attr::zeroed();
    (attributes.qp_state, attributes.port_num, attributes.qkey) = (IBV_QPS_INIT, 1, QKEY);
    // UC permits only WRITEs.
    let allowed =
        if is_rc { options.qp_access } else { options.qp_access & IBV_ACCESS_REMOTE_WRITE };
    attributes.qp_access_flags = allowed;
    let own = if is_ud { IBV_QP_QKEY } else { IBV_QP_ACCESS_FLAGS };
    qp.modify(attributes, (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | own) as c_int)?;

    (attributes.qp_state, attributes.ah_attr, attributes.path_mtu) =
        (IBV_QPS_RTR, path, options.mtu);
    (attributes.dest_qp_num, attributes.rq_psn) = (peer.qpn, options.psn);
    (attributes.max_dest_rd_atomic, attributes.min_rnr_timer) =
        (options.max_dest_rd_atomic, options.min_rnr_timer);
    let connected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    let reliable = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    let mask = match (is_rc, is_ud) {
        (true, _) => connected | reliable,
        (_, true) => 0,
        _ => connected,
    };
    qp.modify(attributes, (IBV_QP_STATE | mask) as c_int)?;

    (attributes.qp_state, attributes.sq_psn, attributes.max_rd_atomic) =
        (IBV_QPS_RTS, options.psn, 8);
    (attributes.timeout, attributes.retry_cnt, attributes.rnr_retry) =
        (options.timeout, options.retry_cnt, options.rnr_retry);
    let reliable = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    let mask = if is_rc { reliable } else { 0 };
    qp.modify(attributes, (IBV_QP_STATE | IBV_QP_SQ_PSN | mask) as c_int)
}

/// The peer's queue pair and its memory.
pub struct Peer {
    pub qpn: u32,
    pub address: u64,
    pub rkey: u32,
}

/// A connected queue pair. Fields are dropped in order, so each stands before the objects that it
/// uses.
pub struct Connection {
    pub qp: QueuePair,
    pub cq: Completions,
    pub memory: Memory,
    pub peer: Peer,
    pub is_reliable: bool,
    /// Address handle of a datagram's destination.
    ah: Option<*mut ibv_ah>,
    next_id: Cell<u64>,
}

impl Connection {
    /// A request without memory at either end.
    pub fn request(&self, opcode: ibv_wr_opcode) -> ibv_send_wr {
        let mut request = ibv_send_wr::zeroed();
        request.opcode = opcode;
        request
    }

    /// A SEND with the data of its kind: immediate data, or a key to invalidate.
    pub fn send(&self, opcode: ibv_wr_opcode, word: u32) -> ibv_send_wr {
        let mut request = self.request(opcode);
        if opcode == IBV_WR_SEND_WITH_INV {
            request.imm.invalidate_rkey = word;
        } else {
            request.imm.imm_data = __be32::new(word);
        }
        if let Some(ah) = self.ah {
            request.wr.ud = ibv_send_wr_ud { ah, remote_qpn: self.peer.qpn, remote_qkey: QKEY };
        }
        request
    }

    /// A WRITE or READ of the peer's memory at `offset`.
    pub fn rdma(&self, opcode: ibv_wr_opcode, offset: usize) -> ibv_send_wr {
        let mut request = self.request(opcode);
        let remote_addr = self.peer.address.wrapping_add(offset as u64);
        request.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey: self.peer.rkey };
        request
    }

    /// Adds to the peer's word at `offset`.
    pub fn fetch_add(&self, offset: usize, add: u64) -> ibv_send_wr {
        let mut request = self.request(IBV_WR_ATOMIC_FETCH_AND_ADD);
        let remote_addr = self.peer.address + offset as u64;
        request.wr.atomic =
            ibv_send_wr_atomic { remote_addr, compare_add: add, swap: 0, rkey: self.peer.rkey };
        request
    }

    /// Posts a request and returns its id.
    pub fn post(&self, mut request: ibv_send_wr, piece: Option<ibv_sge>) -> Result<u64, Fault> {
        request.wr_id = self.next_id.replace(self.next_id.get() + 1);
        self.qp.post_send(request, piece)?;
        Ok(request.wr_id)
    }

    /// Posts a receive and returns its id.
    pub fn receive(&self, piece: Option<ibv_sge>) -> Result<u64, Fault> {
        let id = self.next_id.replace(self.next_id.get() + 1);
        self.qp.post_receive(id, piece)?;
        Ok(id)
    }

    /// Waits for the next completion.
    pub fn completion(&self) -> Result<ibv_wc, Fault> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(wc) = self.cq.poll()? {
                return Ok(wc);
            }
            if Instant::now() > deadline {
                return Err(format!("no completion within {PATIENCE:?}").into());
            }
            sleep(LOOK_AGAIN);
        }
    }

    /// Waits for the completion of request `id` with `status`.
    pub fn ends(&self, id: u64, status: ibv_wc_status) -> Result<ibv_wc, Fault> {
        let wc = self.completion()?;
        if wc.wr_id == id && wc.status == status {
            return Ok(wc);
        }
        let (found, expected) = (name(wc.status), name(status));
        Err(format!("number {} ends with {found}; number {id} should, with {expected}", wc.wr_id)
            .into())
    }

    /// Waits for successful completions of `ids`, in this order.
    pub fn succeed(&self, ids: &[u64]) -> Result<(), Fault> {
        ids.iter().try_for_each(|&id| self.ends(id, IBV_WC_SUCCESS).map(|_| ()))
    }

    /// Posts a request and waits for its successful completion.
    pub fn perform(&self, request: ibv_send_wr, piece: Option<ibv_sge>) -> Result<(), Fault> {
        let id = self.post(request, piece)?;
        self.succeed(&[id])
    }

    /// Waits until the queue pair is in `state`; a device may report a completion before the
    /// change.
    pub fn comes_to(&self, state: ibv_qp_state) -> Result<(), Fault> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = self.qp.state()?;
            if now == state {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("the queue pair is in state {}, not {}", now.0, state.0).into());
            }
            sleep(LOOK_AGAIN);
        }
    }
}

fn name(status: ibv_wc_status) -> String {
    status.c_name().map_or_else(|| format!("status {}", status.0), str::to_owned)
}

/// Fails unless `left` is `right`.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, left: T, right: T) -> Result<(), Fault> {
    if left == right { Ok(()) } else { Err(format!("{what}: {left:?}, not {right:?}").into()) }
}

/// `len` bytes derived from `seed` and their position.
pub fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let byte = |at: u32| ((at ^ seed.rotate_left(16)).wrapping_mul(0x9e37_79b1) >> 13) as u8;
    (0..len as u32).map(byte).collect()
}

/// Fails unless `found` equals [`pattern`].
pub fn intact(what: &str, seed: u32, found: &[u8]) -> Result<(), Fault> {
    let expected = pattern(seed, found.len());
    match found.iter().zip(&expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => Err(format!("{what}: byte {at} of {} is wrong", found.len()).into()),
    }
}
