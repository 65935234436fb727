//! Conversion of queue pair attributes between programs and the device.

use std::ffi::{c_int, c_uint};

use longhaul_abi_defs::{
    IBV_MIG_MIGRATED, IBV_QP_ACCESS_FLAGS, IBV_QP_ALT_PATH, IBV_QP_AV, IBV_QP_CUR_STATE,
    IBV_QP_DEST_QPN, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MIG_STATE, IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RATE_LIMIT, IBV_QP_RETRY_CNT,
    IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_ERR,
    IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE,
    IBV_RATE_2_5_GBPS, IBV_RATE_5_GBPS, IBV_RATE_10_GBPS, IBV_RATE_14_GBPS, IBV_RATE_20_GBPS,
    IBV_RATE_25_GBPS, IBV_RATE_28_GBPS, IBV_RATE_30_GBPS, IBV_RATE_40_GBPS, IBV_RATE_50_GBPS,
    IBV_RATE_56_GBPS, IBV_RATE_60_GBPS, IBV_RATE_80_GBPS, IBV_RATE_100_GBPS, IBV_RATE_112_GBPS,
    IBV_RATE_120_GBPS, IBV_RATE_168_GBPS, IBV_RATE_200_GBPS, IBV_RATE_300_GBPS, IBV_RATE_400_GBPS,
    IBV_RATE_600_GBPS, IBV_RATE_800_GBPS, IBV_RATE_1200_GBPS, IBV_RATE_MAX, ibv_mtu, ibv_qp_attr,
    ibv_qp_cap, ibv_qp_state, ibv_rate,
};
use longhaul_rdma::Attach;
use longhaul_rnic::{Access, Mtu, QpAttr, QpInfo, QpInit, QpState, RateLimit};
use longhaul_units::{Psn, Qpn};

use crate::address::{address_of, public_address};
use crate::device::{PORT, QUEUE_DEPTH_MAX};

fn state_of(state: ibv_qp_state) -> Result<QpState, c_int> {
    Ok(match state {
        IBV_QPS_RESET => QpState::Reset,
        IBV_QPS_INIT => QpState::Init,
        IBV_QPS_RTR => QpState::ReadyToReceive,
        IBV_QPS_RTS => QpState::ReadyToSend,
        IBV_QPS_SQD => QpState::SendQueueDrained,
        IBV_QPS_SQE => QpState::SendQueueError,
        IBV_QPS_ERR => QpState::Error,
        _ => return Err(libc::EINVAL),
    })
}

/// Attributes that this device accepts, including some without effect: a queue pair's path never
/// migrates.
const KNOWN: c_uint = IBV_QP_STATE
    | IBV_QP_CUR_STATE
    | IBV_QP_EN_SQD_ASYNC_NOTIFY
    | IBV_QP_ACCESS_FLAGS
    | IBV_QP_PKEY_INDEX
    | IBV_QP_PORT
    | IBV_QP_QKEY
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_PATH_MIG_STATE
    | IBV_QP_DEST_QPN
    | IBV_QP_RATE_LIMIT;

/// Codes of static rates in Mbit/s, as in `ibv_rate_to_mbps`.
const STATIC_RATES: [(ibv_rate, u32); 23] = [
    (IBV_RATE_2_5_GBPS, 2_500),
    (IBV_RATE_5_GBPS, 5_000),
    (IBV_RATE_10_GBPS, 10_000),
    (IBV_RATE_14_GBPS, 14_062),
    (IBV_RATE_20_GBPS, 20_000),
    (IBV_RATE_25_GBPS, 25_781),
    (IBV_RATE_28_GBPS, 28_125),
    (IBV_RATE_30_GBPS, 30_000),
    (IBV_RATE_40_GBPS, 40_000),
    (IBV_RATE_50_GBPS, 53_125),
    (IBV_RATE_56_GBPS, 56_250),
    (IBV_RATE_60_GBPS, 60_000),
    (IBV_RATE_80_GBPS, 80_000),
    (IBV_RATE_100_GBPS, 103_125),
    (IBV_RATE_112_GBPS, 112_500),
    (IBV_RATE_120_GBPS, 120_000),
    (IBV_RATE_168_GBPS, 168_750),
    (IBV_RATE_200_GBPS, 206_250),
    (IBV_RATE_300_GBPS, 309_375),
    (IBV_RATE_400_GBPS, 425_000),
    (IBV_RATE_600_GBPS, 637_500),
    (IBV_RATE_800_GBPS, 850_000),
    (IBV_RATE_1200_GBPS, 1_275_000),
];

/// The limit of an address vector's static rate; the inner `None`: as fast as the port.
pub(crate) fn limit_of_static_rate(code: u8) -> Result<Option<RateLimit>, c_int> {
    if u32::from(code) == IBV_RATE_MAX.0 {
        return Ok(None);
    }
    let known = STATIC_RATES.iter().find(|(rate, _)| rate.0 == u32::from(code));
    let (_, mbps) = known.ok_or(libc::EINVAL)?;
    Ok(RateLimit::from_verbs(mbps * 1000, 0, 0))
}

/// The attributes that the mask selects, for a queue pair in state `now`.
pub(crate) fn attributes(
    attr: &ibv_qp_attr,
    mask: c_uint,
    now: ibv_qp_state,
    attach: &Attach,
) -> Result<QpAttr, c_int> {
    if mask & IBV_QP_ALT_PATH != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let has = |bit: c_uint| mask & bit != 0;
    let to = if has(IBV_QP_STATE) { attr.qp_state } else { now };
    // The transition to "ready to send" takes a migration state, which is ignored.
    let migrates = has(IBV_QP_PATH_MIG_STATE)
        && !(attr.path_mig_state == IBV_MIG_MIGRATED && matches!(to, IBV_QPS_RTS | IBV_QPS_SQD));
    if mask & !KNOWN != 0 || migrates {
        return Err(libc::EINVAL);
    }
    let mut out = QpAttr::default();
    if has(IBV_QP_STATE) {
        out.state = Some(state_of(attr.qp_state)?);
    }
    if has(IBV_QP_CUR_STATE) {
        out.current_state = Some(state_of(attr.cur_qp_state)?);
    }
    if has(IBV_QP_PATH_MTU) {
        let code = u8::try_from(attr.path_mtu.0).map_err(|_| libc::EINVAL)?;
        out.path_mtu = Some(Mtu::from_code(code).ok_or(libc::EINVAL)?);
    }
    if has(IBV_QP_AV) {
        out.address = Some(address_of(&attr.ah_attr, attach)?);
    }
    if has(IBV_QP_DEST_QPN) {
        if attr.dest_qp_num > Qpn::MAX {
            return Err(libc::EINVAL);
        }
        out.dest_qpn = Some(Qpn::new(attr.dest_qp_num));
    }
    // Programs draw 32-bit random numbers and expect the device to keep 24 bits.
    let psn = |bit: c_uint, raw: u32| has(bit).then(|| Psn::new(raw & 0x00ff_ffff));
    out.rq_psn = psn(IBV_QP_RQ_PSN, attr.rq_psn);
    out.sq_psn = psn(IBV_QP_SQ_PSN, attr.sq_psn);
    out.access = has(IBV_QP_ACCESS_FLAGS).then_some(Access(attr.qp_access_flags & Access::ALL.0));
    out.drain_event = has(IBV_QP_EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify != 0);
    out.qkey = has(IBV_QP_QKEY).then_some(attr.qkey);
    out.rate_limit = has(IBV_QP_RATE_LIMIT).then(|| RateLimit::from_verbs(attr.rate_limit, 0, 0));
    out.max_rd_atomic = has(IBV_QP_MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic);
    out.max_dest_rd_atomic = has(IBV_QP_MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic);
    out.min_rnr_timer = has(IBV_QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer);
    out.timeout = has(IBV_QP_TIMEOUT).then_some(attr.timeout);
    out.retry_cnt = has(IBV_QP_RETRY_CNT).then_some(attr.retry_cnt);
    out.rnr_retry = has(IBV_QP_RNR_RETRY).then_some(attr.rnr_retry);
    out.pkey_index = has(IBV_QP_PKEY_INDEX).then_some(attr.pkey_index);
    out.port = has(IBV_QP_PORT).then_some(attr.port_num);
    Ok(out)
}

/// The granted sizes of a queue pair. Queues may be slightly longer than the device's reported
/// maximum.
pub(crate) fn capacities(init: &QpInit) -> ibv_qp_cap {
    let receives = init.srq.is_none();
    ibv_qp_cap {
        max_send_wr: init.sq_depth.min(QUEUE_DEPTH_MAX),
        max_recv_wr: if receives { init.rq_depth.min(QUEUE_DEPTH_MAX) } else { 0 },
        max_send_sge: init.send_sge_max,
        max_recv_sge: if receives { init.recv_sge_max } else { 0 },
        max_inline_data: init.inline_max,
    }
}

/// A queue pair's attributes in the program's form; `rate_limit` in kbit/s, as the program set it.
pub(crate) fn public_attributes(attach: &Attach, info: &QpInfo, rate_limit: u32) -> ibv_qp_attr {
    let mut attr = ibv_qp_attr::zeroed();
    let set = &info.attr;
    attr.qp_state = ibv_qp_state(info.state as u32);
    attr.cur_qp_state = attr.qp_state;
    attr.path_mtu = ibv_mtu(set.path_mtu.map_or(0, |mtu| mtu.code().into()));
    attr.path_mig_state = IBV_MIG_MIGRATED;
    attr.qkey = set.qkey.unwrap_or(0);
    attr.rq_psn = set.rq_psn.unwrap_or_default().get();
    attr.sq_psn = set.sq_psn.unwrap_or_default().get();
    attr.dest_qp_num = set.dest_qpn.unwrap_or_default().get();
    attr.qp_access_flags = set.access.unwrap_or_default().0;
    attr.cap = capacities(&info.init);
    attr.ah_attr.port_num = PORT;
    if let Some(address) = set.address {
        attr.ah_attr = public_address(attach, &address);
    }
    attr.pkey_index = set.pkey_index.unwrap_or(0);
    attr.en_sqd_async_notify = set.drain_event.unwrap_or(false).into();
    attr.sq_draining = info.draining.into();
    attr.max_rd_atomic = set.max_rd_atomic.unwrap_or(0);
    attr.max_dest_rd_atomic = set.max_dest_rd_atomic.unwrap_or(0);
    attr.min_rnr_timer = set.min_rnr_timer.unwrap_or(0);
    attr.port_num = set.port.unwrap_or(PORT);
    attr.timeout = set.timeout.unwrap_or(0);
    attr.retry_cnt = set.retry_cnt.unwrap_or(0);
    attr.rnr_retry = set.rnr_retry.unwrap_or(0);
    attr.rate_limit = rate_limit;
    attr
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::gid_of;
    use longhaul_abi_defs::{IBV_MIG_ARMED, IBV_QP_CAP};
    use longhaul_rdma::attach::{ENV_IP, ENV_SOCKET};
    use std::net::IpAddr;

    fn taken(attr: &ibv_qp_attr, mask: c_uint) -> Result<QpAttr, c_int> {
        let attach = Attach::from_lookup(|name| match name {
            ENV_SOCKET => Some("/nowhere".to_owned()),
            ENV_IP => Some("10.77.0.1".to_owned()),
            _ => None,
        });
        attributes(attr, mask, IBV_QPS_RESET, &attach.unwrap())
    }

    #[test]
    fn only_selected_attributes_are_taken() {
        let mut attr = ibv_qp_attr::zeroed();
        attr.timeout = 14;
        attr.retry_cnt = 7;
        attr.rq_psn = 0xff00_0001;
        let taken = taken(&attr, IBV_QP_TIMEOUT | IBV_QP_RQ_PSN).unwrap();
        assert_eq!(
            (taken.timeout, taken.retry_cnt, taken.rq_psn),
            (Some(14), None, Some(Psn::new(1)))
        );
    }

    #[test]
    fn an_address_without_a_gid_is_refused() {
        let mut attr = ibv_qp_attr::zeroed();
        attr.ah_attr.port_num = PORT;
        assert_eq!(taken(&attr, IBV_QP_AV), Err(libc::EINVAL));
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = gid_of(IpAddr::from([10, 77, 0, 2]));
        assert!(taken(&attr, IBV_QP_AV).is_ok());
    }

    #[test]
    fn unknown_attributes_are_refused() {
        let attr = ibv_qp_attr::zeroed();
        assert_eq!(taken(&attr, 1 << 29), Err(libc::EINVAL));
        assert_eq!(taken(&attr, IBV_QP_CAP), Err(libc::EINVAL));
        assert_eq!(taken(&attr, IBV_QP_ALT_PATH), Err(libc::EOPNOTSUPP));
    }

    #[test]
    fn states_that_do_not_exist_are_refused() {
        let mut attr = ibv_qp_attr::zeroed();
        (attr.qp_state, attr.cur_qp_state) = (ibv_qp_state(77), ibv_qp_state(77));
        assert_eq!(taken(&attr, IBV_QP_STATE), Err(libc::EINVAL));
        assert_eq!(taken(&attr, IBV_QP_CUR_STATE), Err(libc::EINVAL));
    }

    #[test]
    fn states_have_the_same_numbers_on_both_sides() {
        for number in 0..7 {
            assert_eq!(state_of(ibv_qp_state(number)).map(|state| state as u32), Ok(number));
        }
    }

    #[test]
    fn a_send_queue_leaves_its_error_under_its_name() {
        let mut attr = ibv_qp_attr::zeroed();
        (attr.qp_state, attr.cur_qp_state) = (IBV_QPS_RTS, IBV_QPS_SQE);
        let taken = taken(&attr, IBV_QP_STATE | IBV_QP_CUR_STATE).unwrap();
        assert_eq!(taken.state, Some(QpState::ReadyToSend));
        assert_eq!(taken.current_state, Some(QpState::SendQueueError));
    }

    #[test]
    fn a_static_rate_is_a_limit() {
        assert_eq!(limit_of_static_rate(0), Ok(None));
        assert_eq!(limit_of_static_rate(5), Ok(RateLimit::from_verbs(5_000_000, 0, 0)));
        assert_eq!(limit_of_static_rate(1), Err(libc::EINVAL));
        let codes: std::collections::BTreeSet<u32> =
            STATIC_RATES.iter().map(|(rate, _)| rate.0).collect();
        assert_eq!(codes.into_iter().collect::<Vec<_>>(), (2..=24).collect::<Vec<_>>());
    }

    #[test]
    fn a_path_stays_migrated() {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_RTS;
        assert!(taken(&attr, IBV_QP_STATE | IBV_QP_PATH_MIG_STATE).is_ok());
        assert_eq!(taken(&attr, IBV_QP_PATH_MIG_STATE), Err(libc::EINVAL));
        attr.path_mig_state = IBV_MIG_ARMED;
        assert_eq!(taken(&attr, IBV_QP_STATE | IBV_QP_PATH_MIG_STATE), Err(libc::EINVAL));
    }
}
