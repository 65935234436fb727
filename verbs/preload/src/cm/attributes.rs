//! `rdma_init_qp_attr`: queue pair attributes that follow from a connection.

use std::ffi::{c_int, c_uint};

use longhaul_abi_defs::{
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS,
    IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPT_RC, IBV_QPT_UD, RDMA_UDP_QKEY, ibv_mtu,
    ibv_qp_attr, ibv_qp_state, ibv_qp_type, rdma_cm_id,
};
use longhaul_rdma::Attach;

use super::id::{self, IdState};
use crate::address::public_address;
use crate::device::PORT;
use crate::guard::{guarded, minus_one};

/// RNR timer that connections request of their peers, as perftest does: 12 is 0.64 ms. The kernel's
/// code 0 (655 ms) would stall a sender that is slightly ahead; the shortest timer is 0.01 ms.
const MIN_RNR_TIMER: u8 = 12;

/// Attributes for the transition to `wanted`, with their mask. For datagrams those of the first
/// transition, as in the kernel: [`datagram_step`] has the others.
pub(super) fn for_state(
    attach: &Attach,
    state: &IdState,
    kind: ibv_qp_type,
    wanted: ibv_qp_state,
) -> Result<(ibv_qp_attr, c_uint), c_int> {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = wanted;
    if kind == IBV_QPT_UD {
        attr.port_num = PORT;
        attr.qkey = RDMA_UDP_QKEY;
        return Ok((attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    }
    let reliable = kind == IBV_QPT_RC;
    let mut mask = IBV_QP_STATE;
    match wanted {
        IBV_QPS_INIT => {
            attr.port_num = PORT;
            attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
            if reliable && state.responder_resources > 0 {
                attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
            }
            mask |= IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        }
        IBV_QPS_RTR => {
            let peer = state.peer.ok_or(libc::EINVAL)?;
            attr.ah_attr = public_address(attach, &peer.address());
            attr.path_mtu = ibv_mtu(peer.mtu_code.into());
            attr.dest_qp_num = peer.qpn;
            attr.rq_psn = state.psn;
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            if reliable {
                attr.max_dest_rd_atomic = state.responder_resources;
                attr.min_rnr_timer = MIN_RNR_TIMER;
                mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            }
        }
        IBV_QPS_RTS => {
            let peer = state.peer.ok_or(libc::EINVAL)?;
            attr.sq_psn = peer.psn;
            mask |= IBV_QP_SQ_PSN;
            if reliable {
                attr.timeout = state.ack_timeout.unwrap_or(peer.timeout);
                attr.retry_cnt = peer.retry_count;
                attr.rnr_retry = peer.rnr_retry_count;
                attr.max_rd_atomic = state.initiator_depth;
                mask |=
                    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            }
        }
        _ => return Err(libc::EINVAL),
    }
    Ok((attr, mask))
}

/// Attributes for a datagram queue pair's later transitions: to ready to receive, and to ready to
/// send.
pub(super) fn datagram_step(wanted: ibv_qp_state) -> (ibv_qp_attr, c_uint) {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = wanted;
    let psn = if wanted == IBV_QPS_RTS { IBV_QP_SQ_PSN } else { 0 };
    (attr, IBV_QP_STATE | psn)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { id::resolve(id) }) else { return minus_one(libc::EINVAL) };
        if attr.is_null() || mask.is_null() {
            return minus_one(libc::EINVAL);
        }
        // SAFETY: the caller names the state wanted in the structure that it gives.
        let wanted = unsafe { (&raw const (*attr).qp_state).read() };
        // SAFETY: a live identifier.
        let kind = unsafe { (*id).qp_type };
        let filled =
            id::engine().and_then(|engine| for_state(engine.attach(), &ours.lock(), kind, wanted));
        match filled {
            Ok((filled, selected)) => {
                // SAFETY: the caller provides space for both.
                unsafe {
                    attr.write(filled);
                    mask.write(selected as c_int);
                }
                0
            }
            Err(errno) => minus_one(errno),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::id::Peer;
    use longhaul_abi_defs::{IBV_QPS_SQD, IBV_QPT_UC};
    use longhaul_rdma::attach::{ENV_IP, ENV_SOCKET};

    fn attach() -> Attach {
        let of = |name| match name {
            ENV_SOCKET => Some("/nowhere".to_owned()),
            ENV_IP => Some("10.77.0.1".to_owned()),
            _ => None,
        };
        Attach::from_lookup(of).unwrap()
    }

    fn connected() -> IdState {
        let peer = Peer {
            ip: "10.77.0.2".parse().unwrap(),
            qpn: 0x12,
            psn: 99,
            mtu_code: 5,
            timeout: 17,
            retry_count: 6,
            rnr_retry_count: 7,
            traffic_class: 0,
        };
        IdState { peer: Some(peer), psn: 55, ..IdState::default() }
    }

    #[test]
    fn ready_states_need_a_peer() {
        let state = IdState::default();
        let steps = |state: &IdState, wanted| for_state(&attach(), state, IBV_QPT_RC, wanted);
        assert!(steps(&state, IBV_QPS_INIT).is_ok());
        assert_eq!(steps(&state, IBV_QPS_RTR).map(drop), Err(libc::EINVAL));
        assert_eq!(steps(&state, IBV_QPS_SQD).map(drop), Err(libc::EINVAL));
        let mut state = connected();
        let (attr, _) = steps(&state, IBV_QPS_RTR).unwrap();
        assert_eq!((attr.dest_qp_num, attr.rq_psn), (0x12, 55), "the peer begins as we told it");
        let (attr, _) = steps(&state, IBV_QPS_RTS).unwrap();
        assert_eq!(attr.sq_psn, 99);
        assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (17, 6, 7));
        state.ack_timeout = Some(10);
        assert_eq!(steps(&state, IBV_QPS_RTS).unwrap().0.timeout, 10);
    }

    #[test]
    fn reads_and_atomics_are_allowed_only_to_whom_resources_were_promised() {
        let mut state = IdState::default();
        let access = |state: &IdState, kind| {
            for_state(&attach(), state, kind, IBV_QPS_INIT).unwrap().0.qp_access_flags
        };
        assert_eq!(access(&state, IBV_QPT_RC), IBV_ACCESS_REMOTE_WRITE);
        state.responder_resources = 1;
        let all = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        assert_eq!(access(&state, IBV_QPT_RC), all);
        assert_eq!(access(&state, IBV_QPT_UC), IBV_ACCESS_REMOTE_WRITE);
    }

    #[test]
    fn unreliable_connections_have_nothing_to_retry() {
        let state = connected();
        let mask = |wanted| for_state(&attach(), &state, IBV_QPT_UC, wanted).unwrap().1;
        let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        assert_eq!(mask(IBV_QPS_RTR), IBV_QP_STATE | path);
        assert_eq!(mask(IBV_QPS_RTS), IBV_QP_STATE | IBV_QP_SQ_PSN);
    }

    #[test]
    fn datagrams_have_a_queue_key_and_no_peer() {
        let (attr, mask) =
            for_state(&attach(), &IdState::default(), IBV_QPT_UD, IBV_QPS_INIT).unwrap();
        assert_eq!(attr.qkey, RDMA_UDP_QKEY);
        assert_eq!(mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
        assert_eq!(datagram_step(IBV_QPS_RTS).1, IBV_QP_STATE | IBV_QP_SQ_PSN);
    }
}
