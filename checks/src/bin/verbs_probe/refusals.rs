//! Requests that a responder must refuse: the requester gets the reason, both queue pairs fail, and
//! memory is unchanged.

use crate::connection::{ALL_ACCESS, Connection, Options, Side, same};
use crate::{Fault, Scenario};
use longhaul_abi_defs::*;
use serde_json::json;
use std::ffi::c_uint;

pub const SCENARIOS: &[Scenario] = &[
    ("write_unknown_key", |side| unknown_key(side, IBV_WR_RDMA_WRITE)),
    ("read_unknown_key", |side| unknown_key(side, IBV_WR_RDMA_READ)),
    ("atomic_unknown_key", |side| unknown_key(side, IBV_WR_ATOMIC_FETCH_AND_ADD)),
    ("write_beyond_end", |side| outside(side, IBV_WR_RDMA_WRITE, MEMORY - LEN + 1)),
    ("read_beyond_end", |side| outside(side, IBV_WR_RDMA_READ, MEMORY - LEN + 1)),
    ("write_before_start", |side| outside(side, IBV_WR_RDMA_WRITE, usize::MAX)),
    ("memory_forbids_write", |side| {
        memory_forbids(side, IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE)
    }),
    ("memory_forbids_read", |side| memory_forbids(side, IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ)),
    ("memory_forbids_atomic", |side| {
        memory_forbids(side, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC)
    }),
    ("qp_forbids_write", |side| qp_forbids(side, IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE)),
    ("qp_forbids_read", |side| qp_forbids(side, IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ)),
    ("qp_forbids_atomic", |side| {
        qp_forbids(side, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC)
    }),
    ("no_reads_granted", no_reads_granted),
    ("message_longer_than_receive", message_too_long),
    ("receive_without_memory", receive_without_memory),
    ("forgotten_memory", forgotten_memory),
    ("invalidated_key", invalidated_key),
    ("unreliable_write_unknown_key", unreliable_write),
];

const MEMORY: usize = 1 << 14;
/// Length of the refused message: three packets.
const LEN: usize = 2500;
/// Length of the message before it, which arrives.
const SHORT: usize = 100;
/// Address of that message in the responder's memory.
const INBOX: usize = 8192;

fn options() -> Options {
    Options { memory: MEMORY, ..Options::default() }
}

/// A request of the peer's memory, and the length of its own piece.
type Request = (ibv_send_wr, usize);

fn request(connection: &Connection, opcode: ibv_wr_opcode, offset: usize) -> Request {
    match opcode {
        IBV_WR_ATOMIC_FETCH_AND_ADD => (connection.fetch_add(offset, 1), 8),
        _ => (connection.rdma(opcode, offset), LEN),
    }
}

fn unknown_key(side: &mut Side<'_>, opcode: ibv_wr_opcode) -> Result<(), Fault> {
    let mut connection = side.connect(options())?;
    connection.peer.rkey ^= 0x00ff_ff00;
    let wrong = request(&connection, opcode, 0);
    connection.peer.rkey ^= 0x00ff_ff00;
    refused(side, &connection, wrong, IBV_WC_REM_ACCESS_ERR)
}

fn outside(side: &mut Side<'_>, opcode: ibv_wr_opcode, offset: usize) -> Result<(), Fault> {
    let connection = side.connect(options())?;
    let wrong = request(&connection, opcode, offset);
    refused(side, &connection, wrong, IBV_WC_REM_ACCESS_ERR)
}

fn memory_forbids(side: &mut Side<'_>, opcode: ibv_wr_opcode, bit: c_uint) -> Result<(), Fault> {
    let connection = side.connect(Options { memory_access: ALL_ACCESS & !bit, ..options() })?;
    let wrong = request(&connection, opcode, 0);
    refused(side, &connection, wrong, IBV_WC_REM_ACCESS_ERR)
}

fn qp_forbids(side: &mut Side<'_>, opcode: ibv_wr_opcode, bit: c_uint) -> Result<(), Fault> {
    let connection = side.connect(Options { qp_access: ALL_ACCESS & !bit, ..options() })?;
    let wrong = request(&connection, opcode, 0);
    refused(side, &connection, wrong, IBV_WC_REM_INV_REQ_ERR)
}

fn no_reads_granted(side: &mut Side<'_>) -> Result<(), Fault> {
    let connection = side.connect(Options { max_dest_rd_atomic: 0, ..options() })?;
    let wrong = request(&connection, IBV_WR_RDMA_READ, 0);
    refused(side, &connection, wrong, IBV_WC_REM_INV_REQ_ERR)
}

fn message_too_long(side: &mut Side<'_>) -> Result<(), Fault> {
    let connection = side.connect(options())?;
    let wrong = (connection.send(IBV_WR_SEND, 0), LEN);
    let piece = connection.memory.piece(INBOX, SHORT);
    // rxe reports a fault of the receive.
    let (status, own) = if side.is_rxe() {
        (IBV_WC_REM_OP_ERR, IBV_WC_LOC_QP_OP_ERR)
    } else {
        (IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR)
    };
    ask(side, &connection, wrong, status, Some((piece, own)))
}

fn receive_without_memory(side: &mut Side<'_>) -> Result<(), Fault> {
    let connection = side.connect(options())?;
    let wrong = (connection.send(IBV_WR_SEND, 0), LEN);
    let piece = side.device.memory(MEMORY, ALL_ACCESS)?.piece(0, MEMORY);
    let own = if side.is_rxe() { IBV_WC_LOC_QP_OP_ERR } else { IBV_WC_LOC_PROT_ERR };
    ask(side, &connection, wrong, IBV_WC_REM_OP_ERR, Some((piece, own)))
}

fn forgotten_memory(side: &mut Side<'_>) -> Result<(), Fault> {
    let mut connection = side.connect(options())?;
    let forgotten = side.device.memory(MEMORY, ALL_ACCESS)?;
    let theirs = side.link.swap(&json!([forgotten.address(), forgotten.rkey()]))?;
    // Still in use by the allocator's free list, and no longer registered.
    drop(forgotten);
    side.link.agree("forgotten")?;
    let (address, rkey): (u64, u32) = serde_json::from_value(theirs)?;
    let whole = std::mem::replace(&mut connection.peer.rkey, rkey);
    let mut wrong = request(&connection, IBV_WR_RDMA_WRITE, 0);
    wrong.0.wr.rdma = ibv_send_wr_rdma { remote_addr: address, rkey };
    connection.peer.rkey = whole;
    refused(side, &connection, wrong, IBV_WC_REM_ACCESS_ERR)
}

/// A key that the requester itself invalidates: of a memory window, if the responder's device has
/// windows.
fn invalidated_key(side: &mut Side<'_>) -> Result<(), Fault> {
    let connection = side.connect(options())?;
    let region = side.device.memory(MEMORY, ALL_ACCESS | IBV_ACCESS_MW_BIND)?;
    let window = if side.requests { None } else { side.device.window()? };
    if let Some(window) = &window {
        connection.perform(window.bind(&region, IBV_ACCESS_REMOTE_WRITE), None)?;
    }
    let own = window.as_ref().map_or(region.rkey(), |window| window.bound_rkey());
    let theirs = side.link.swap(&json!([region.address(), own]))?;
    let (address, rkey): (u64, u32) = serde_json::from_value(theirs)?;
    let mut write = connection.rdma(IBV_WR_RDMA_WRITE, 0);
    write.wr.rdma = ibv_send_wr_rdma { remote_addr: address, rkey };
    if side.requests {
        connection.perform(write, Some(connection.memory.piece(0, LEN)))?;
        side.link.agree("written")?;
        side.link.agree("a receive is posted")?;
        connection.perform(connection.send(IBV_WR_SEND_WITH_INV, rkey), None)?;
    } else {
        side.link.agree("written")?;
        let id = connection.receive(None)?;
        side.link.agree("a receive is posted")?;
        let wc = connection.ends(id, IBV_WC_SUCCESS)?;
        // SAFETY: both members of the union are four bytes.
        same("what was invalidated", unsafe { wc.imm.invalidated_rkey }, own)?;
        // rxe sets another bit, the kernel's own for this.
        same("the flag", side.is_rxe() || wc.wc_flags & IBV_WC_WITH_INV != 0, true)?;
    }
    refused(side, &connection, (write, LEN), IBV_WC_REM_ACCESS_ERR)
}

/// The failure is silent, and later messages arrive.
fn unreliable_write(side: &mut Side<'_>) -> Result<(), Fault> {
    let mut connection = side.connect(Options { kind: IBV_QPT_UC, ..options() })?;
    if side.requests {
        side.link.agree("ready")?;
        connection.peer.rkey ^= 0x00ff_ff00;
        let piece = Some(connection.memory.piece(0, LEN));
        connection.memory.fill(0, &[0xff; LEN]);
        connection.perform(connection.rdma(IBV_WR_RDMA_WRITE, 0), piece)?;
        return connection.perform(connection.send(IBV_WR_SEND, 0), piece);
    }
    let id = connection.receive(Some(connection.memory.piece(INBOX, LEN)))?;
    side.link.agree("ready")?;
    same("length", connection.ends(id, IBV_WC_SUCCESS)?.byte_len, LEN as u32)?;
    untouched(&connection, LEN)
}

/// A message arrives; the invalid request fails with `status`, and so does the queue pair; a later
/// WRITE has no effect.
fn refused(
    side: &mut Side<'_>,
    connection: &Connection,
    wrong: Request,
    status: ibv_wc_status,
) -> Result<(), Fault> {
    ask(side, connection, wrong, status, None)
}

/// Like [`refused`]. The responder knows the status, which depends on its device. `faulty`: a
/// receive of the responder that fails with an error of its own.
fn ask(
    side: &mut Side<'_>,
    connection: &Connection,
    (wrong, len): Request,
    status: ibv_wc_status,
    faulty: Option<(ibv_sge, ibv_wc_status)>,
) -> Result<(), Fault> {
    let piece = |len| Some(connection.memory.piece(0, len));
    if side.requests {
        let status: u32 = serde_json::from_value(side.link.swap(&json!("ready"))?)?;
        let before = connection.post(connection.send(IBV_WR_SEND, 0), piece(SHORT))?;
        let wrong = connection.post(wrong, piece(len))?;
        let behind = connection.post(connection.rdma(IBV_WR_RDMA_WRITE, 0), piece(LEN))?;
        connection.ends(before, IBV_WC_SUCCESS)?;
        connection.ends(wrong, ibv_wc_status(status))?;
        connection.ends(behind, IBV_WC_WR_FLUSH_ERR)?;
        connection.comes_to(IBV_QPS_ERR)?;
        return side.link.agree("refused");
    }
    let inbox = Some(connection.memory.piece(INBOX, SHORT));
    let arrives = connection.receive(inbox)?;
    let faulty = match faulty {
        Some((piece, status)) => Some((connection.receive(Some(piece))?, status)),
        None => None,
    };
    let unused = connection.receive(inbox)?;
    side.link.swap(&json!(status.0))?;
    connection.ends(arrives, IBV_WC_SUCCESS)?;
    if let Some((faulty, status)) = faulty {
        connection.ends(faulty, status)?;
    }
    connection.ends(unused, IBV_WC_WR_FLUSH_ERR)?;
    connection.comes_to(IBV_QPS_ERR)?;
    side.link.agree("refused")?;
    untouched(connection, SHORT)
}

/// Fails unless memory is unchanged, except for the message that `arrived` in the inbox.
fn untouched(connection: &Connection, arrived: usize) -> Result<(), Fault> {
    let after = INBOX + arrived;
    for (from, len) in [(0, INBOX), (after, MEMORY - after)] {
        if let Some(at) = connection.memory.bytes(from, len).iter().position(|&byte| byte != 0) {
            return Err(format!("byte {} of the memory has changed", from + at).into());
        }
    }
    Ok(())
}
