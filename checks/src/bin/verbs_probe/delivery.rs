//! Messages that must be delivered: of every length, empty ones included, and across the PSN wrap.

use crate::connection::{Connection, Options, Side, intact, pattern, same};
use crate::{Fault, Scenario};
use longhaul_abi_defs::*;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub const SCENARIOS: &[Scenario] = &[
    ("empty_messages_rc", |side| empty_messages(side, IBV_QPT_RC)),
    ("empty_messages_uc", |side| empty_messages(side, IBV_QPT_UC)),
    ("empty_messages_ud", |side| empty_messages(side, IBV_QPT_UD)),
    ("every_length_mtu_256", |side| every_length(side, IBV_QPT_RC, IBV_MTU_256)),
    ("every_length_mtu_1024", |side| every_length(side, IBV_QPT_RC, IBV_MTU_1024)),
    ("every_length_mtu_4096", |side| every_length(side, IBV_QPT_RC, IBV_MTU_4096)),
    ("unreliable_every_length", |side| every_length(side, IBV_QPT_UC, IBV_MTU_512)),
    ("psn_wrap_write", |side| psn_wrap(side, OperationKind::Write)),
    ("psn_wrap_send", |side| psn_wrap(side, OperationKind::Send)),
    ("psn_wrap_read", |side| psn_wrap(side, OperationKind::Read)),
    ("psn_wrap_atomic", |side| psn_wrap(side, OperationKind::FetchAdd)),
    ("unreliable_psn_wrap", |side| unreliable_psn_wrap(side)),
];

/// A receive's completion: opcode, length and immediate data.
type Received = (ibv_wc_opcode, u32, Option<u32>);

fn received(connection: &Connection, id: u64) -> Result<Received, Fault> {
    let wc = connection.ends(id, IBV_WC_SUCCESS)?;
    // SAFETY: both members of the union are four bytes.
    let word = unsafe { wc.imm.imm_data }.get();
    Ok((wc.opcode, wc.byte_len, (wc.wc_flags & IBV_WC_WITH_IMM != 0).then_some(word)))
}

/// Empty SENDs, WRITEs and READs, whose addresses and keys do not matter. Later messages arrive.
fn empty_messages(side: &mut Side<'_>, kind: ibv_qp_type) -> Result<(), Fault> {
    const LEN: usize = 100;
    let connection = side.connect(Options { kind, ..Options::default() })?;
    let (is_rc, is_ud) = (kind == IBV_QPT_RC, kind == IBV_QPT_UD);
    // A datagram's receive begins with its GRH.
    let grh = if is_ud { 40 } else { 0 };
    let mut expected = vec![(IBV_WC_RECV, grh, None), (IBV_WC_RECV, grh, Some(7))];
    if !is_ud {
        expected.push((IBV_WC_RECV_RDMA_WITH_IMM, 0, Some(8)));
    }
    expected.push((IBV_WC_RECV, grh + LEN as u32, None));
    if side.requests {
        side.link.agree("receives are posted")?;
        let mut requests =
            vec![connection.send(IBV_WR_SEND, 0), connection.send(IBV_WR_SEND_WITH_IMM, 7)];
        if !is_ud {
            requests.push(connection.request(IBV_WR_RDMA_WRITE));
            let mut with_immediate = connection.request(IBV_WR_RDMA_WRITE_WITH_IMM);
            with_immediate.imm.imm_data = __be32::new(8);
            requests.push(with_immediate);
        }
        if is_rc {
            requests.insert(1, connection.request(IBV_WR_RDMA_READ));
        }
        let ids: Vec<u64> = requests
            .iter()
            .map(|request| connection.post(*request, None))
            .collect::<Result<_, _>>()?;
        connection.succeed(&ids)?;
        let piece = connection.memory.piece(0, LEN);
        connection.perform(connection.send(IBV_WR_SEND, 0), Some(piece))
    } else {
        let ids: Vec<u64> = expected
            .iter()
            .map(|_| connection.receive(Some(connection.memory.piece(0, 200))))
            .collect::<Result<_, _>>()?;
        side.link.agree("receives are posted")?;
        for (id, expected) in ids.into_iter().zip(expected) {
            same("what was received", received(&connection, id)?, expected)?;
        }
        Ok(())
    }
}

/// Operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperationKind {
    Write,
    Send,
    Read,
    WriteImmediate,
    FetchAdd,
}

impl OperationKind {
    const RELIABLE: [OperationKind; 5] = [
        OperationKind::Write,
        OperationKind::Send,
        OperationKind::Read,
        OperationKind::WriteImmediate,
        OperationKind::FetchAdd,
    ];
    const UNRELIABLE: [OperationKind; 3] =
        [OperationKind::Write, OperationKind::Send, OperationKind::WriteImmediate];
}

/// Bytes of one message; both sides have as many slots for outgoing messages, and then for incoming
/// ones.
const SLOT: usize = 1 << 16;
const LENGTHS: [usize; 16] =
    [0, 1, 2, 3, 255, 256, 257, 511, 512, 1024, 1025, 4095, 4096, 4097, 40_001, SLOT];

/// Every kind of request with every length, many of them outstanding; both sides check every byte.
fn every_length(side: &mut Side<'_>, kind: ibv_qp_type, mtu: ibv_mtu) -> Result<(), Fault> {
    let memory = 2 * SLOT * LENGTHS.len();
    let mut connection = side.connect(Options { kind, mtu, memory, ..Options::default() })?;
    let kinds: &[OperationKind] =
        if kind == IBV_QPT_RC { &OperationKind::RELIABLE } else { &OperationKind::UNRELIABLE };
    for round in 0..kinds.len() {
        let plan: Vec<(OperationKind, usize)> = LENGTHS
            .iter()
            .enumerate()
            .map(|(at, &len)| match kinds[(at + round) % kinds.len()] {
                OperationKind::FetchAdd => (OperationKind::FetchAdd, 8),
                kind => (kind, len),
            })
            .collect();
        transfer(side, &mut connection, &plan, round as u32)?;
    }
    Ok(())
}

/// One message crosses from the last PSN to the first, and others follow.
fn psn_wrap(side: &mut Side<'_>, kind: OperationKind) -> Result<(), Fault> {
    let options = Options {
        psn: 0xff_fffe,
        mtu: IBV_MTU_256,
        memory: 2 * SLOT * LENGTHS.len(),
        ..Options::default()
    };
    let mut connection = side.connect(options)?;
    let len = if kind == OperationKind::FetchAdd { 8 } else { 5000 };
    transfer(side, &mut connection, &[(kind, len); LENGTHS.len()], 0)
}

fn unreliable_psn_wrap(side: &mut Side<'_>) -> Result<(), Fault> {
    let options = Options {
        kind: IBV_QPT_UC,
        psn: 0xff_fffe,
        mtu: IBV_MTU_256,
        memory: 2 * SLOT * LENGTHS.len(),
        ..Options::default()
    };
    let mut connection = side.connect(options)?;
    transfer(
        side,
        &mut connection,
        &[(OperationKind::Write, 5000), (OperationKind::Send, 5000), (OperationKind::Write, 0)],
        0,
    )
}

/// Transfers a message per entry of `plan`, its kind and length, and compares all of them. `round`
/// varies the contents.
fn transfer(
    side: &mut Side<'_>,
    connection: &mut Connection,
    plan: &[(OperationKind, usize)],
    round: u32,
) -> Result<(), Fault> {
    let incoming = |slot: usize| (LENGTHS.len() + slot) * SLOT;
    let seed = |slot: usize| round * 1000 + slot as u32;
    for (slot, &(kind, len)) in plan.iter().enumerate() {
        connection.memory.fill(slot * SLOT, &pattern(seed(slot), len));
        if kind == OperationKind::FetchAdd {
            connection.memory.fill(incoming(slot), &u64::to_ne_bytes(slot as u64));
        }
    }
    if !side.requests {
        return respond(side, connection, plan, round);
    }
    side.link.agree("ready")?;
    let mut ids = Vec::new();
    for (slot, &(kind, len)) in plan.iter().enumerate() {
        let out = Some(connection.memory.piece(slot * SLOT, len)).filter(|_| len > 0);
        let into = Some(connection.memory.piece(incoming(slot), len)).filter(|_| len > 0);
        ids.push(match kind {
            OperationKind::Write => {
                connection.post(connection.rdma(IBV_WR_RDMA_WRITE, incoming(slot)), out)?
            }
            OperationKind::Send => {
                connection.post(connection.send(IBV_WR_SEND_WITH_IMM, slot as u32), out)?
            }
            OperationKind::WriteImmediate => {
                let mut request = connection.rdma(IBV_WR_RDMA_WRITE_WITH_IMM, incoming(slot));
                request.imm.imm_data = __be32::new(slot as u32);
                connection.post(request, out)?
            }
            OperationKind::Read => {
                connection.post(connection.rdma(IBV_WR_RDMA_READ, slot * SLOT), into)?
            }
            OperationKind::FetchAdd => {
                connection.post(connection.fetch_add(incoming(slot), 1 << 40), into)?
            }
        });
    }
    connection.succeed(&ids)?;
    for (slot, &(kind, len)) in plan.iter().enumerate() {
        let found = connection.memory.bytes(incoming(slot), len);
        match kind {
            OperationKind::Read => intact("what was read", seed(slot), &found)?,
            OperationKind::FetchAdd => {
                same("what was fetched", found, u64::to_ne_bytes(slot as u64).to_vec())?
            }
            _ => {}
        }
    }
    side.link.agree("compared")
}

/// The other side of [`transfer`].
fn respond(
    side: &mut Side<'_>,
    connection: &Connection,
    plan: &[(OperationKind, usize)],
    round: u32,
) -> Result<(), Fault> {
    let incoming = |slot: usize| (LENGTHS.len() + slot) * SLOT;
    let mut receives = Vec::new();
    for (slot, &(kind, len)) in plan.iter().enumerate() {
        match kind {
            OperationKind::Send => {
                let id = connection.receive(Some(connection.memory.piece(incoming(slot), SLOT)))?;
                receives.push((id, (IBV_WC_RECV, len as u32, Some(slot as u32))));
            }
            OperationKind::WriteImmediate => {
                receives.push((
                    connection.receive(None)?,
                    (IBV_WC_RECV_RDMA_WITH_IMM, len as u32, Some(slot as u32)),
                ));
            }
            _ => {}
        }
    }
    side.link.agree("ready")?;
    for (id, expected) in receives {
        same("what was received", received(connection, id)?, expected)?;
    }
    side.link.agree("compared")?;
    for (slot, &(kind, len)) in plan.iter().enumerate() {
        let (at, seed) = (incoming(slot), round * 1000 + slot as u32);
        match kind {
            OperationKind::Read => {}
            OperationKind::FetchAdd => {
                let sum = u64::to_ne_bytes((1 << 40) + slot as u64).to_vec();
                same("the sum", connection.memory.bytes(at, len), sum)?;
            }
            _ => arrived(connection, seed, at, len)?,
        }
    }
    Ok(())
}

/// Fails unless the message has arrived; an unacknowledged one may be in flight.
fn arrived(connection: &Connection, seed: u32, at: usize, len: usize) -> Result<(), Fault> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let deadline = Instant::now() + if connection.is_reliable { Duration::ZERO } else { PATIENCE };
    loop {
        let outcome = intact("what was written", seed, &connection.memory.bytes(at, len));
        if outcome.is_ok() || Instant::now() > deadline {
            return outcome;
        }
        sleep(Duration::from_millis(5));
    }
}
