//! The verbs: objects are made, changed and given up here, and work is posted and polled.

use crate::cq::Cq;
use crate::qp::Qp;
use crate::{
    Access, Completion, CqId, Memory, MrKeys, PdId, PostError, QpAttr, QpInfo, QpInit, QpKind, QpState,
    RecvWr, Rnic, SGE_MAX, SendWr, VerbsError,
};
use longhaul_rc::{RecvRefused, SendRefused};
use longhaul_units::{Instant, LKey, Qpn, RKey};

/// Access flags that a device may ignore, relaxed ordering among them. Source: rdma-core, `IBV_ACCESS_OPTIONAL_RANGE`.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

fn in_bounds(what: &'static str, value: u32, min: u32, max: u32) -> Result<(), VerbsError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(VerbsError::OutOfBounds { what, value: value.into(), min: min.into(), max: max.into() })
}

/// Puts `value` in the first free place and says which.
fn place<T>(table: &mut Vec<Option<T>>, value: T, max: u32, what: &'static str) -> Result<u32, VerbsError> {
    if let Some(free) = table.iter().position(Option::is_none) {
        table[free] = Some(value);
        return Ok(free as u32);
    }
    if table.len() >= max as usize {
        return Err(VerbsError::Limit { what, limit: max.into() });
    }
    table.push(Some(value));
    Ok(table.len() as u32 - 1)
}

impl<M: Memory> Rnic<M> {
    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        place(&mut self.pds, 0, self.config.pd_count_max, "PDs").map(PdId)
    }

    /// Gives a protection domain up; [`VerbsError::Busy`] while an MR or QP uses it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        match *self.pd_users(pd)? {
            0 => {
                self.pds[pd.0 as usize] = None;
                Ok(())
            }
            users => Err(VerbsError::Busy { what: "PD", users }),
        }
    }

    fn pd_users(&mut self, pd: PdId) -> Result<&mut u32, VerbsError> {
        self.pds.get_mut(pd.0 as usize).and_then(Option::as_mut).ok_or(VerbsError::NoSuch("PD"))
    }

    fn cq(&mut self, cq: CqId) -> Result<&mut Cq, VerbsError> {
        self.env.cqs.get_mut(cq.0 as usize).and_then(Option::as_mut).ok_or(VerbsError::NoSuch("CQ"))
    }

    /// Registers `len` bytes at `address`, which work requests and peers know as `iova` onwards. Optional access
    /// flags (relaxed ordering) are ignored.
    pub fn reg_mr(
        &mut self,
        pd: PdId,
        address: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<MrKeys, VerbsError> {
        self.pd_users(pd)?;
        let access = Access(access.0 & !OPTIONAL_ACCESS);
        let remote_write = access.0 & (Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0) != 0;
        if remote_write && !access.contains(Access::LOCAL_WRITE) {
            return Err(VerbsError::Invalid("remote write and atomic access need local write access"));
        }
        if !Access::ALL.contains(access) {
            return Err(VerbsError::NotSupported("an access flag beyond local write and remote access"));
        }
        if address.checked_add(len).is_none() || iova.checked_add(len).is_none() {
            return Err(VerbsError::Invalid("the region goes beyond the end of the address space"));
        }
        let limit = self.env.regions.count_max();
        let key = self
            .env
            .regions
            .insert(pd, address, iova, len, access)
            .ok_or(VerbsError::Limit { what: "MRs", limit: limit.into() })?;
        *self.pd_users(pd)? += 1;
        Ok(MrKeys { lkey: LKey(key), rkey: RKey(key) })
    }

    /// Takes a region away. Work requests that still name it fail with a protection error, and the peer's with
    /// a remote access error; no memory of it is touched after this returns.
    pub fn dereg_mr(&mut self, lkey: LKey) -> Result<(), VerbsError> {
        let pd = self.env.regions.remove(lkey.0).ok_or(VerbsError::NoSuch("MR"))?;
        *self.pd_users(pd)? -= 1;
        Ok(())
    }

    /// Makes a CQ for `capacity` completions, 1 to [`crate::Config::cq_depth_max`].
    pub fn create_cq(&mut self, capacity: u32) -> Result<CqId, VerbsError> {
        in_bounds("CQ capacity", capacity, 1, self.config.cq_depth_max)?;
        place(&mut self.env.cqs, Cq::new(capacity), self.config.cq_count_max, "CQs").map(CqId)
    }

    /// Gives a CQ up; [`VerbsError::Busy`] while a QP uses it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        match self.cq(cq)?.users {
            0 => {
                self.env.cqs[cq.0 as usize] = None;
                Ok(())
            }
            users => Err(VerbsError::Busy { what: "CQ", users }),
        }
    }

    /// Hands at most `max` completions to `take`, oldest first; returns how many. An unknown CQ has none.
    #[inline]
    pub fn poll_cq(&mut self, cq: CqId, max: usize, mut take: impl FnMut(Completion)) -> usize {
        let Ok(cq) = self.cq(cq) else { return 0 };
        let mut taken = 0;
        while taken < max
            && let Some(completion) = cq.pop()
        {
            take(completion);
            taken += 1;
        }
        taken
    }

    /// Completions waiting in a CQ.
    pub fn cq_len(&mut self, cq: CqId) -> usize {
        self.cq(cq).map_or(0, |cq| cq.len())
    }

    /// Asks for one [`crate::Event::CompletionReady`] at the next completion (with `solicited_only`, the next
    /// solicited or failed one). What is in the CQ already raises no event.
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), VerbsError> {
        self.cq(cq)?.arm(solicited_only);
        Ok(())
    }

    /// Makes a QP in state reset.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, VerbsError> {
        if init.kind != QpKind::Rc {
            return Err(VerbsError::NotSupported("a QP of another type than RC"));
        }
        let config = &self.config;
        in_bounds("send queue depth", init.sq_depth, 0, config.wq_depth_max)?;
        in_bounds("receive queue depth", init.rq_depth, 0, config.wq_depth_max)?;
        in_bounds("send segments", init.send_sge_max, 0, SGE_MAX as u32)?;
        in_bounds("receive segments", init.recv_sge_max, 0, SGE_MAX as u32)?;
        in_bounds("inline size", init.inline_max, 0, config.inline_max)?;
        self.pd_users(init.pd)?;
        self.cq(init.send_cq)?;
        self.cq(init.recv_cq)?;
        let slot = if self.qps.len() < self.config.qpn_count as usize {
            self.qps.push(None);
            self.qps.len() as u32 - 1
        } else {
            let limit = self.config.qpn_count.into();
            self.free_qpns.pop_front().ok_or(VerbsError::Limit { what: "QPs", limit })?
        };
        let qpn = Qpn::new(self.config.qpn_first + slot);
        self.qps[slot as usize] = Some(Box::new(Qp::new(qpn, *init)));
        *self.pd_users(init.pd)? += 1;
        self.cq(init.send_cq)?.users += 1;
        self.cq(init.recv_cq)?.users += 1;
        Ok(qpn)
    }

    /// Gives a QP up at once, with everything queued on it. Its completions stay in their CQs; frames that still
    /// come for it are dropped and counted.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError> {
        let slot = self.slot(qpn).ok_or(VerbsError::NoSuch("QP"))?;
        let Some(qp) = self.qps[slot as usize].take() else { return Err(VerbsError::NoSuch("QP")) };
        if qp.is_listed {
            self.turns.forget(slot);
        }
        self.free_qpns.push_back(slot);
        *self.pd_users(qp.init.pd)? -= 1;
        self.cq(qp.init.send_cq)?.users -= 1;
        self.cq(qp.init.recv_cq)?.users -= 1;
        Ok(())
    }

    /// Changes attributes and state, or neither. Which attributes a transition of an RC QP needs and takes is
    /// the standard's table (IBTA, volume 1, table 91).
    pub fn modify_qp(&mut self, now: Instant, qpn: Qpn, attr: &QpAttr) -> Result<(), VerbsError> {
        let slot = self.slot(qpn).ok_or(VerbsError::NoSuch("QP"))?;
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { return Err(VerbsError::NoSuch("QP")) };
        qp.modify(attr, &self.config, &mut self.env)?;
        self.settle(now, slot);
        Ok(())
    }

    /// A QP's attributes.
    pub fn query_qp(&self, qpn: Qpn) -> Result<QpInfo, VerbsError> {
        let slot = self.slot(qpn).ok_or(VerbsError::NoSuch("QP"))?;
        match self.qps.get(slot as usize) {
            Some(Some(qp)) => Ok(qp.info()),
            _ => Err(VerbsError::NoSuch("QP")),
        }
    }

    /// Queues a send work request. In the error state it is taken and flushed.
    #[inline]
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError::NoSuchQp)?;
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { return Err(PostError::NoSuchQp) };
        match qp.state {
            QpState::ReadyToSend | QpState::SendQueueDrained => {}
            QpState::Error => {
                qp.requester.post(wr, true, &self.env.memory).map_err(send_refused)?;
                qp.flush(&mut self.env);
                return Ok(());
            }
            state => return Err(PostError::BadState(state)),
        }
        qp.requester.post(wr, qp.init.signal_all, &self.env.memory).map_err(send_refused)?;
        if !qp.is_listed && qp.requester_can_transmit(now) {
            qp.is_listed = true;
            self.turns.push(slot);
        }
        Ok(())
    }

    /// Queues a receive work request. In the error state it is taken and flushed.
    #[inline]
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError::NoSuchQp)?;
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { return Err(PostError::NoSuchQp) };
        if qp.state == QpState::Reset {
            return Err(PostError::BadState(qp.state));
        }
        qp.recv.post(wr).map_err(|refused| match refused {
            RecvRefused::Full(depth) => PostError::QueueFull { depth },
            RecvRefused::TooManySegments { given, max } => PostError::TooManySegments { given, max },
        })?;
        if qp.state == QpState::Error {
            qp.flush(&mut self.env);
        }
        Ok(())
    }
}

fn send_refused(refused: SendRefused) -> PostError {
    match refused {
        SendRefused::Full(depth) => PostError::QueueFull { depth },
        SendRefused::TooManySegments { given, max } => PostError::TooManySegments { given, max },
        SendRefused::InlineTooLong { given, max } => PostError::InlineTooLong { given, max },
        SendRefused::MessageTooLong { given } => PostError::MessageTooLong { given, max: crate::MESSAGE_MAX },
        SendRefused::Invalid(why) => PostError::Invalid(why),
        SendRefused::NotSupported(what) => PostError::NotSupported(what),
    }
}
