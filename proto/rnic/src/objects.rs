//! The verbs: create, modify and destroy objects, post and poll work.

use crate::cq::Cq;
use crate::env::AddressHandle;
use crate::hop::Hop;
use crate::path::path;
use crate::qp::{Qp, check_address};
use crate::srq::shared_queue;
use crate::{
    Access, AddressVector, AhId, BringUp, Completion, CqId, Event, Memory, MrKeys, PdId, PostError,
    QpAttr, QpInfo, QpInit, QpState, RecvWr, Rnic, SGE_MAX, SendWr, VerbsError,
};
use longhaul_units::{Instant, LKey, Qpn, RKey};
use longhaul_wire::PathTemplate;
use longhaul_work::{RecvRefused, SendRefused};

/// Destroyed address handles that are kept for a while, because programs destroy them while queued
/// datagrams refer to them.
const AHS_RETIRED: usize = 1024;

/// Access flags that a device may ignore, relaxed ordering among them. Source: rdma-core,
/// `IBV_ACCESS_OPTIONAL_RANGE`.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

pub(crate) fn in_bounds(
    what: &'static str,
    value: u32,
    min: u32,
    max: u32,
) -> Result<(), VerbsError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(VerbsError::OutOfBounds { what, value: value.into(), min: min.into(), max: max.into() })
}

impl<M: Memory> Rnic<M> {
    /// Allocates a protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.pds.insert(0).map(PdId)
    }

    /// Deallocates a protection domain; [`VerbsError::Busy`] while an MR, QP, SRQ or address handle
    /// uses it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        match *self.pd_users(pd)? {
            0 => {
                self.pds.remove(pd.0);
                Ok(())
            }
            users => Err(VerbsError::Busy { what: "PD", users }),
        }
    }

    pub(crate) fn pd_users(&mut self, pd: PdId) -> Result<&mut u32, VerbsError> {
        self.pds.get_mut(pd.0).ok_or(VerbsError::NoSuch("PD"))
    }

    fn cq(&mut self, cq: CqId) -> Result<&mut Cq, VerbsError> {
        self.env.cqs.get_mut(cq.0).ok_or(VerbsError::NoSuch("CQ"))
    }

    /// Returns the bits of `access` that apply to a region of `len` bytes at `address`, or the
    /// reason why it cannot be registered.
    fn checked_access(
        address: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Access, VerbsError> {
        let access = Access(access.0 & !OPTIONAL_ACCESS);
        let remote_write = access.0 & (Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0) != 0;
        if remote_write && !access.contains(Access::LOCAL_WRITE) {
            return Err(VerbsError::Invalid(
                "remote write and atomic access need local write access",
            ));
        }
        if !Access::ALL.contains(access) {
            return Err(VerbsError::NotSupported(
                "an access flag beyond local write and remote access",
            ));
        }
        if address.checked_add(len).is_none() || iova.checked_add(len).is_none() {
            return Err(VerbsError::Invalid("the region goes beyond the end of the address space"));
        }
        Ok(access)
    }

    /// Registers `len` bytes at `address`, which work requests and peers address from `iova` on.
    /// Optional access flags (relaxed ordering) are ignored.
    pub fn reg_mr(
        &mut self,
        pd: PdId,
        address: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<MrKeys, VerbsError> {
        self.pd_users(pd)?;
        let access = Self::checked_access(address, len, iova, access)?;
        let limit = self.env.regions.count_max();
        let key = self
            .env
            .regions
            .insert(pd, address, iova, len, access)
            .ok_or(VerbsError::Limit { what: "MRs", limit: limit.into() })?;
        *self.pd_users(pd)? += 1;
        Ok(MrKeys { lkey: LKey(key), rkey: RKey(key) })
    }

    /// Registers other memory, rights or domain under the keys of a region, or changes nothing;
    /// otherwise like [`Rnic::reg_mr`].
    pub fn rereg_mr(
        &mut self,
        lkey: LKey,
        pd: PdId,
        address: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<(), VerbsError> {
        self.pd_users(pd)?;
        let access = Self::checked_access(address, len, iova, access)?;
        let replaced = self.env.regions.replace(lkey.0, pd, address, iova, len, access);
        let old = replaced.ok_or(VerbsError::NoSuch("MR"))?;
        *self.pd_users(pd)? += 1;
        *self.pd_users(old)? -= 1;
        Ok(())
    }

    /// Deregisters a region. Work requests that still refer to it fail with a protection error, and
    /// the peer's with a remote access error. None of its memory is accessed after this returns.
    pub fn dereg_mr(&mut self, lkey: LKey) -> Result<(), VerbsError> {
        let pd = self.env.regions.remove(lkey.0).ok_or(VerbsError::NoSuch("MR"))?;
        *self.pd_users(pd)? -= 1;
        Ok(())
    }

    /// Creates a CQ for `capacity` completions, 1 to [`crate::Config::cq_depth_max`].
    pub fn create_cq(&mut self, capacity: u32) -> Result<CqId, VerbsError> {
        in_bounds("CQ capacity", capacity, 1, self.config.cq_depth_max)?;
        self.env.cqs.insert(Cq::new(capacity)).map(CqId)
    }

    /// Changes a CQ's capacity; refused while more completions wait in it.
    pub fn resize_cq(&mut self, cq: CqId, capacity: u32) -> Result<(), VerbsError> {
        in_bounds("CQ capacity", capacity, 1, self.config.cq_depth_max)?;
        if self.cq(cq)?.resize(capacity) {
            Ok(())
        } else {
            Err(VerbsError::Invalid("more completions wait than the new capacity holds"))
        }
    }

    /// Creates an address handle. [`VerbsError::Unresolved`] until [`Rnic::resolve`] has found the
    /// peer; after that the handle follows it.
    pub fn create_ah(
        &mut self,
        now: Instant,
        pd: PdId,
        address: &AddressVector,
    ) -> Result<AhId, VerbsError> {
        check_address(address, &self.config)?;
        self.pd_users(pd)?;
        let peer = address.destination_ip.to_canonical();
        let Hop { mac, id: hop } = self.hops.hold(now, &self.config, peer)?;
        let template = PathTemplate::new(&path(&self.config, mac, address, Qpn::GSI, Qpn::GSI));
        if self.env.ahs.is_full()
            && let Some(oldest) = self.retired_ahs.pop_front()
        {
            self.env.ahs.remove(oldest.0);
        }
        let inserted = self.env.ahs.insert(AddressHandle { pd, is_retired: false, template, hop });
        let ah = inserted.inspect_err(|_| self.hops.release(hop))?;
        *self.pd_users(pd)? += 1;
        Ok(AhId(ah))
    }

    /// Destroys an address handle. Queued datagrams still use it; its number is reused after 1024
    /// further handles have been destroyed.
    pub fn destroy_ah(&mut self, ah: AhId) -> Result<(), VerbsError> {
        let handle = self.env.ahs.get_mut(ah.0).filter(|handle| !handle.is_retired);
        let handle = handle.ok_or(VerbsError::NoSuch("address handle"))?;
        handle.is_retired = true;
        let pd = handle.pd;
        self.hops.release(handle.hop.take());
        self.retired_ahs.push_back(ah);
        if self.retired_ahs.len() > AHS_RETIRED
            && let Some(oldest) = self.retired_ahs.pop_front()
        {
            self.env.ahs.remove(oldest.0);
        }
        *self.pd_users(pd)? -= 1;
        Ok(())
    }

    /// Destroys a CQ and its pending events; [`VerbsError::Busy`] while a QP uses it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        match self.cq(cq)?.users {
            0 => {
                self.env.cqs.remove(cq.0);
                // Numbers are reused: a pending event would refer to another CQ.
                self.env.events.retain(
                    |e| !matches!(e, Event::CompletionReady(c) | Event::CqError(c) if *c == cq),
                );
                Ok(())
            }
            users => Err(VerbsError::Busy { what: "CQ", users }),
        }
    }

    /// Passes at most `max` completions to `take`, oldest first; returns their number. An unknown
    /// CQ has none.
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

    /// Requests one [`crate::Event::CompletionReady`] at the next completion (with
    /// `solicited_only`, the next solicited or failed one). Completions already in the CQ raise no
    /// event.
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), VerbsError> {
        self.cq(cq)?.arm(solicited_only);
        Ok(())
    }

    /// Creates a QP in state reset.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, VerbsError> {
        let config = &self.config;
        in_bounds("send queue depth", init.sq_depth, 0, config.wq_depth_max)?;
        in_bounds("receive queue depth", init.rq_depth, 0, config.wq_depth_max)?;
        in_bounds("send segments", init.send_sge_max, 0, SGE_MAX as u32)?;
        in_bounds("receive segments", init.recv_sge_max, 0, SGE_MAX as u32)?;
        in_bounds("inline size", init.inline_max, 0, config.inline_max)?;
        self.pd_users(init.pd)?;
        self.cq(init.send_cq)?;
        self.cq(init.recv_cq)?;
        if let Some(srq) = init.srq
            && self.srq(srq)?.pd != init.pd
        {
            return Err(VerbsError::Invalid(
                "the shared receive queue is of another protection domain",
            ));
        }
        let slot = if self.qps.len() < self.config.qpn_count as usize {
            self.qps.push(None);
            self.qps.len() as u32 - 1
        } else {
            let limit = self.config.qpn_count.into();
            self.free_qpns.pop_front().ok_or(VerbsError::Limit { what: "QPs", limit })?
        };
        let qpn = Qpn::new(self.config.qpn_first + slot);
        self.qps[slot as usize] = Some(Box::new(Qp::new(qpn, *init, &self.config)));
        *self.pd_users(init.pd)? += 1;
        self.cq(init.send_cq)?.users += 1;
        self.cq(init.recv_cq)?.users += 1;
        if let Some(srq) = init.srq {
            self.srq(srq)?.users += 1;
        }
        Ok(qpn)
    }

    /// Destroys a QP immediately, with everything queued on it and, as hardware vendors' libraries
    /// do, its unpolled completions. Later frames for it are dropped and counted, and its pending
    /// events are removed. [`VerbsError::Busy`] while it is attached to a multicast group.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError> {
        let slot = self.slot(qpn).ok_or(VerbsError::NoSuch("QP"))?;
        match self.multicast_groups_of(slot) {
            0 => {}
            users => return Err(VerbsError::Busy { what: "QP", users }),
        }
        let Some(mut qp) = self.qps[slot as usize].take() else {
            return Err(VerbsError::NoSuch("QP"));
        };
        if qp.is_listed {
            self.ready_qps.forget(slot);
            self.pauses.forget(slot);
        }
        self.hops.release(qp.hop);
        self.free_qpns.push_back(slot);
        *self.pd_users(qp.init.pd)? -= 1;
        for cq in [qp.init.send_cq, qp.init.recv_cq] {
            let cq = self.cq(cq)?;
            cq.users -= 1;
            cq.forget(qpn);
        }
        self.env.events.retain(|e| !matches!(e, Event::Qp { qpn: of, .. } if *of == qpn));
        if let Some(srq) = qp.init.srq {
            let srq = self.srq(srq)?;
            qp.transport.release(&mut srq.queue);
            srq.users -= 1;
        }
        Ok(())
    }

    /// Changes attributes and state, or neither. The standard's table (IBTA, volume 1, table 91)
    /// defines the attributes that a transition requires and permits. A reset removes the QP's
    /// completions from its CQs. An address must have been resolved by [`Rnic::resolve`], or the
    /// call fails with [`VerbsError::Unresolved`]; after that the QP follows the peer.
    pub fn modify_qp(&mut self, now: Instant, qpn: Qpn, attr: &QpAttr) -> Result<(), VerbsError> {
        let slot = self.slot(qpn).ok_or(VerbsError::NoSuch("QP"))?;
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else {
            return Err(VerbsError::NoSuch("QP"));
        };
        self.env.now = now;
        qp.check(attr, &self.config)?;
        let peer = attr.address.map(|address| address.destination_ip.to_canonical());
        let hop = peer.map(|peer| self.hops.hold(now, &self.config, peer)).transpose()?;
        let shared = shared_queue(&mut self.srqs, &qp.init);
        let released = qp.modify(now, attr, hop, &self.config, &mut self.env, shared);
        self.hops.release(released);
        self.settle(now, slot);
        Ok(())
    }

    /// Takes a QP from reset to ready to send.
    pub fn bring_up_qp(&mut self, now: Instant, qpn: Qpn, to: &BringUp) -> Result<(), VerbsError> {
        let kind = self.query_qp(qpn)?.init.kind;
        to.transitions(kind).iter().try_for_each(|attr| self.modify_qp(now, qpn, attr))
    }

    /// A QP's attributes.
    pub fn query_qp(&self, qpn: Qpn) -> Result<QpInfo, VerbsError> {
        let slot = self.slot(qpn).ok_or(VerbsError::NoSuch("QP"))?;
        match self.qps.get(slot as usize) {
            Some(Some(qp)) => Ok(qp.info()),
            _ => Err(VerbsError::NoSuch("QP")),
        }
    }

    /// Number of send work requests that [`Rnic::post_send`] can queue, for callers that post
    /// several or none.
    #[inline]
    pub fn send_room(&self, qpn: Qpn) -> Result<u32, PostError> {
        let slot = self.slot(qpn).ok_or(PostError::NoSuchQp)?;
        match self.qps.get(slot as usize) {
            Some(Some(qp)) => Ok(qp.transport.send_room()),
            _ => Err(PostError::NoSuchQp),
        }
    }

    /// Queues a send work request. In the two error states it is accepted and flushed.
    #[inline]
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError::NoSuchQp)?;
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else {
            return Err(PostError::NoSuchQp);
        };
        match qp.state {
            QpState::ReadyToSend | QpState::SendQueueDrained => {}
            QpState::Error | QpState::SendQueueError => {
                qp.transport.post(wr, true, &self.env.memory)?;
                self.env.now = now;
                qp.flush_sends(&mut self.env);
                self.spread_overruns();
                return Ok(());
            }
            state => return Err(PostError::BadState(state)),
        }
        qp.transport.post(wr, qp.init.signal_all, &self.env.memory)?;
        if !qp.is_listed && qp.requester_can_transmit(now) {
            qp.is_listed = true;
            self.ready_qps.push(slot);
        }
        Ok(())
    }

    /// Queues a receive work request. In the error state it is accepted and flushed.
    #[inline]
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError::NoSuchQp)?;
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else {
            return Err(PostError::NoSuchQp);
        };
        if qp.init.srq.is_some() {
            return Err(PostError::HasSharedQueue);
        }
        if qp.state == QpState::Reset {
            return Err(PostError::BadState(qp.state));
        }
        qp.recv.post(wr)?;
        if qp.state == QpState::Error {
            qp.flush(&mut self.env, None);
            self.spread_overruns();
        }
        Ok(())
    }
}

impl From<RecvRefused> for PostError {
    fn from(refused: RecvRefused) -> Self {
        match refused {
            RecvRefused::Full(depth) => PostError::QueueFull { depth },
            RecvRefused::TooManySegments { given, max } => {
                PostError::TooManySegments { given, max }
            }
        }
    }
}

impl From<SendRefused> for PostError {
    fn from(refused: SendRefused) -> Self {
        match refused {
            SendRefused::Full(depth) => PostError::QueueFull { depth },
            SendRefused::TooManySegments { given, max } => {
                PostError::TooManySegments { given, max }
            }
            SendRefused::InlineTooLong { given, max } => PostError::InlineTooLong { given, max },
            SendRefused::MessageTooLong { given } => {
                PostError::MessageTooLong { given, max: crate::MESSAGE_MAX }
            }
            SendRefused::Invalid(why) => PostError::Invalid(why),
            SendRefused::NotSupported(what) => PostError::NotSupported(what),
        }
    }
}
