//! Receivers that are not ready and silent peers: for a while, or until the requester gives up.

use crate::connection::{Connection, Options, Side, intact, pattern, same};
use crate::{Fault, Scenario};
use longhaul_abi_defs::*;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub const SCENARIOS: &[Scenario] = &[
    ("rnr_until_ready_send", |side| rnr_until_ready(side, IBV_WR_SEND)),
    ("rnr_until_ready_write_imm", |side| rnr_until_ready(side, IBV_WR_RDMA_WRITE_WITH_IMM)),
    ("rnr_exhausted_send", |side| rnr_exhausted(side, IBV_WR_SEND)),
    ("rnr_exhausted_write_imm", |side| rnr_exhausted(side, IBV_WR_RDMA_WRITE_WITH_IMM)),
    ("peer_gone_send", |side| peer_gone(side, IBV_WR_SEND)),
    ("peer_gone_write", |side| peer_gone(side, IBV_WR_RDMA_WRITE)),
    ("peer_gone_read", |side| peer_gone(side, IBV_WR_RDMA_READ)),
    ("peer_gone_atomic", |side| peer_gone(side, IBV_WR_ATOMIC_FETCH_AND_ADD)),
    ("peer_in_error_amid_writes", peer_in_error),
];

/// Three packets.
const LEN: usize = 3000;
/// Much longer than an RNR timer or a timeout.
const NOT_READY: Duration = Duration::from_millis(250);

fn request(connection: &Connection, opcode: ibv_wr_opcode) -> ibv_send_wr {
    match opcode {
        IBV_WR_SEND => connection.send(opcode, 0),
        IBV_WR_ATOMIC_FETCH_AND_ADD => connection.fetch_add(0, 1),
        _ => connection.rdma(opcode, 0),
    }
}

/// Messages wait for their receives, which are posted late and one by one; each arrives once.
fn rnr_until_ready(side: &mut Side<'_>, opcode: ibv_wr_opcode) -> Result<(), Fault> {
    const MESSAGES: u32 = 6;
    let mut connection = side.connect(Options { rnr_retry: 7, ..Options::default() })?;
    if side.requests {
        let mut ids = Vec::new();
        for number in 0..MESSAGES {
            let offset = number as usize * LEN;
            connection.memory.fill(offset, &pattern(number, LEN));
            let piece = connection.memory.piece(offset, LEN);
            ids.push(connection.post(request(&connection, opcode), Some(piece))?);
        }
        side.link.agree("posted")?;
        connection.succeed(&ids)?;
        return side.link.agree("acknowledged");
    }
    side.link.agree("posted")?;
    for number in 0..MESSAGES {
        sleep(if number == 0 { NOT_READY } else { NOT_READY / 10 });
        let id = connection.receive(Some(connection.memory.piece(0, LEN)))?;
        let wc = connection.ends(id, IBV_WC_SUCCESS)?;
        same("length", wc.byte_len, LEN as u32)?;
        if opcode == IBV_WR_SEND {
            intact("the message", number, &connection.memory.bytes(0, LEN))?;
        }
    }
    // The last ACK may be lost, and requested again.
    side.link.agree("acknowledged")
}

/// No receive is posted: the requester gives up, and the responder does not.
fn rnr_exhausted(side: &mut Side<'_>, opcode: ibv_wr_opcode) -> Result<(), Fault> {
    let connection = side.connect(Options { rnr_retry: 2, ..Options::default() })?;
    if side.requests {
        let piece = Some(connection.memory.piece(0, LEN));
        let id = connection.post(request(&connection, opcode), piece)?;
        let behind = connection.post(request(&connection, IBV_WR_RDMA_WRITE), piece)?;
        connection.ends(id, IBV_WC_RNR_RETRY_EXC_ERR)?;
        connection.ends(behind, IBV_WC_WR_FLUSH_ERR)?;
        connection.comes_to(IBV_QPS_ERR)?;
        return side.link.agree("given up");
    }
    side.link.agree("given up")?;
    connection.comes_to(IBV_QPS_RTS)?;
    connection.receive(Some(connection.memory.piece(0, LEN)))?;
    sleep(NOT_READY / 5);
    match connection.cq.poll()? {
        None => Ok(()),
        Some(wc) => {
            Err(format!("a completion with status {} that nobody asked for", wc.status.0).into())
        }
    }
}

/// The responder's queue pair is destroyed: the requester gives up within the specified time.
fn peer_gone(side: &mut Side<'_>, opcode: ibv_wr_opcode) -> Result<(), Fault> {
    let options = Options { timeout: 13, retry_cnt: 2, ..Options::default() };
    let connection = side.connect(options)?;
    if !side.requests {
        drop(connection);
        side.link.agree("gone")?;
        return side.link.agree("given up");
    }
    side.link.agree("gone")?;
    let len = if opcode == IBV_WR_ATOMIC_FETCH_AND_ADD { 8 } else { LEN };
    let piece = Some(connection.memory.piece(0, len));
    let start = Instant::now();
    let id = connection.post(request(&connection, opcode), piece)?;
    let behind = connection.post(request(&connection, IBV_WR_RDMA_WRITE), piece)?;
    connection.ends(id, IBV_WC_RETRY_EXC_ERR)?;
    let took = start.elapsed();
    connection.ends(behind, IBV_WC_WR_FLUSH_ERR)?;
    connection.comes_to(IBV_QPS_ERR)?;
    side.link.agree("given up")?;
    // The first attempt and two retries, each between one and four times the timeout of 34 ms,
    // minus a clock tick, plus a margin for a slow machine.
    let least = Duration::from_millis(3 * 33 - 15);
    let most = Duration::from_millis(3 * 4 * 34) + Duration::from_secs(60);
    if (least..most).contains(&took) {
        Ok(())
    } else {
        Err(format!("gave up after {took:?}").into())
    }
}

/// The responder stops during many WRITEs: the earlier ones complete, the others fail, in order.
fn peer_in_error(side: &mut Side<'_>) -> Result<(), Fault> {
    const WRITES: usize = 40;
    // The first WRITE is acknowledged within 0.8 s, even by a guest that waits for its processor.
    let options = Options { timeout: 16, retry_cnt: 2, mtu: IBV_MTU_256, ..Options::default() };
    let connection = side.connect(options)?;
    if !side.requests {
        let id = connection.receive(None)?;
        side.link.agree("ready")?;
        connection.ends(id, IBV_WC_SUCCESS)?;
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = IBV_QPS_ERR;
        connection.qp.modify(attributes, IBV_QP_STATE as i32)?;
        return side.link.agree("given up");
    }
    side.link.agree("ready")?;
    let piece = Some(connection.memory.piece(0, 60_000));
    let mut ids = vec![connection.post(connection.rdma(IBV_WR_RDMA_WRITE_WITH_IMM, 0), piece)?];
    for _ in 1..WRITES {
        ids.push(connection.post(connection.rdma(IBV_WR_RDMA_WRITE, 0), piece)?);
    }
    let mut failed = false;
    for (at, id) in ids.into_iter().enumerate() {
        let wc = connection.completion()?;
        same("the order", wc.wr_id, id)?;
        match wc.status {
            IBV_WC_SUCCESS if !failed => {}
            IBV_WC_RETRY_EXC_ERR if !failed && at > 0 => failed = true,
            IBV_WC_WR_FLUSH_ERR if failed => {}
            status => return Err(format!("request {at} ends with status {}", status.0).into()),
        }
    }
    same("one failed", failed, true)?;
    side.link.agree("given up")
}
