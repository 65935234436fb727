//! Attributes that a QP's state transitions require and permit.
//!
//! Source: IBTA, volume 1, table 91, and the table that Linux enforces for every device.

use crate::{QpAttr, QpKind, QpState, VerbsError};

// Attributes by bit.
const PATH_MTU: u32 = 1;
const ADDRESS: u32 = 1 << 1;
const DEST_QPN: u32 = 1 << 2;
const RQ_PSN: u32 = 1 << 3;
const SQ_PSN: u32 = 1 << 4;
const ACCESS: u32 = 1 << 5;
const MAX_RD: u32 = 1 << 6;
const MAX_DEST_RD: u32 = 1 << 7;
const MIN_RNR: u32 = 1 << 8;
const TIMEOUT: u32 = 1 << 9;
const RETRY: u32 = 1 << 10;
const RNR_RETRY: u32 = 1 << 11;
const PKEY: u32 = 1 << 12;
const PORT: u32 = 1 << 13;
const QKEY: u32 = 1 << 14;
const CURRENT_STATE: u32 = 1 << 15;
const DRAIN_EVENT: u32 = 1 << 16;
const RATE_LIMIT: u32 = 1 << 17;

const NAMES: [&str; 18] = [
    "path_mtu",
    "address",
    "dest_qpn",
    "rq_psn",
    "sq_psn",
    "access",
    "max_rd_atomic",
    "max_dest_rd_atomic",
    "min_rnr_timer",
    "timeout",
    "retry_cnt",
    "rnr_retry",
    "pkey_index",
    "port",
    "qkey",
    "current_state",
    "drain_event",
    "rate_limit",
];

fn given(attr: &QpAttr) -> u32 {
    let bits = [
        attr.path_mtu.is_some(),
        attr.address.is_some(),
        attr.dest_qpn.is_some(),
        attr.rq_psn.is_some(),
        attr.sq_psn.is_some(),
        attr.access.is_some(),
        attr.max_rd_atomic.is_some(),
        attr.max_dest_rd_atomic.is_some(),
        attr.min_rnr_timer.is_some(),
        attr.timeout.is_some(),
        attr.retry_cnt.is_some(),
        attr.rnr_retry.is_some(),
        attr.pkey_index.is_some(),
        attr.port.is_some(),
        attr.qkey.is_some(),
        attr.current_state.is_some(),
        attr.drain_event.is_some(),
        attr.rate_limit.is_some(),
    ];
    bits.iter().enumerate().fold(0, |m, (i, &set)| m | u32::from(set) << i)
}

/// Differences between the transports: attributes that grant a peer access to memory, or a stranger
/// access to the queue.
struct Taken {
    /// Attributes that grant access.
    grants: u32,
    /// To become ready to receive.
    receiving: u32,
    /// To become ready to send.
    sending: u32,
    /// While the send queue is drained.
    drained: u32,
    /// In any ready state.
    while_ready: u32,
}

const fn taken(kind: QpKind) -> Taken {
    const PEER: u32 = ADDRESS | PATH_MTU | DEST_QPN | RQ_PSN;
    match kind {
        QpKind::Rc => Taken {
            grants: ACCESS,
            receiving: PEER | MAX_DEST_RD | MIN_RNR,
            sending: SQ_PSN | TIMEOUT | RETRY | RNR_RETRY | MAX_RD,
            drained: PORT | ADDRESS | TIMEOUT | RETRY | RNR_RETRY | MAX_RD | MAX_DEST_RD | PKEY,
            while_ready: ACCESS | MIN_RNR | RATE_LIMIT,
        },
        QpKind::Uc => Taken {
            grants: ACCESS,
            receiving: PEER,
            sending: SQ_PSN,
            drained: ADDRESS | PKEY,
            while_ready: ACCESS | RATE_LIMIT,
        },
        QpKind::Ud => Taken {
            grants: QKEY,
            receiving: 0,
            sending: SQ_PSN,
            drained: PKEY,
            while_ready: QKEY | RATE_LIMIT,
        },
    }
}

/// Required and optional attributes of a transition; `None` if it does not exist.
fn transition(kind: QpKind, from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::{
        Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError,
    };
    let kind = taken(kind);
    Some(match (from, to) {
        (_, Reset) => (0, 0),
        (
            Init | ReadyToReceive | ReadyToSend | SendQueueDrained | SendQueueError | Error,
            Error,
        ) => (0, 0),
        (Reset, Init) => (PKEY | PORT | kind.grants, 0),
        (Init, Init) => (0, PKEY | PORT | kind.grants),
        (Init, ReadyToReceive) => (kind.receiving, PKEY | kind.grants),
        (ReadyToReceive, ReadyToSend) => (kind.sending, CURRENT_STATE | kind.while_ready),
        (ReadyToSend | SendQueueDrained, ReadyToSend) => (0, CURRENT_STATE | kind.while_ready),
        (SendQueueError, ReadyToSend) => (0, CURRENT_STATE | kind.grants),
        (ReadyToSend, SendQueueDrained) => (0, DRAIN_EVENT),
        (SendQueueDrained, SendQueueDrained) => (0, kind.drained | kind.while_ready),
        _ => return None,
    })
}

/// Checks that a QP of `kind` may go from `from` to `to` with these attributes.
pub(crate) fn check(
    kind: QpKind,
    from: QpState,
    to: QpState,
    attr: &QpAttr,
) -> Result<(), VerbsError> {
    let (required, optional) =
        transition(kind, from, to).ok_or(VerbsError::BadTransition { from, to })?;
    let given = given(attr);
    let missing = required & !given;
    if missing != 0 {
        let attribute = NAMES[missing.trailing_zeros() as usize];
        return Err(VerbsError::MissingAttribute { from, to, attribute });
    }
    let surplus = given & !(required | optional);
    if surplus != 0 {
        let attribute = NAMES[surplus.trailing_zeros() as usize];
        return Err(VerbsError::SurplusAttribute { from, to, attribute });
    }
    if attr.current_state.is_some_and(|state| state != from) {
        return Err(VerbsError::Invalid("the QP is in another state than the caller believes"));
    }
    Ok(())
}
