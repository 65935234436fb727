//! Shared receive queues.

use crate::table::Table;
use crate::{Event, Memory, PdId, PostError, QpInit, Rnic, SrqId, SrqInit, VerbsError};
use longhaul_work::{RecvQueue, RecvWr, SGE_MAX};

/// A receive queue that many QPs take from.
pub(crate) struct Srq {
    pub pd: PdId,
    pub queue: RecvQueue,
    /// Raise an event once, if fewer than this many are left; 0: never.
    pub limit: u32,
    /// Number of QPs that use it.
    pub users: u32,
}

/// The shared receive queue of a QP, if it has one.
#[inline]
pub(crate) fn shared_queue<'a>(
    srqs: &'a mut Table<Srq>,
    init: &QpInit,
) -> Option<&'a mut RecvQueue> {
    srqs.get_mut(init.srq?.0).map(|srq| &mut srq.queue)
}

impl<M: Memory> Rnic<M> {
    /// Creates a shared receive queue.
    pub fn create_srq(&mut self, init: &SrqInit) -> Result<SrqId, VerbsError> {
        self.check_srq_depth(init.depth)?;
        crate::objects::in_bounds("receive segments", init.sge_max, 0, SGE_MAX as u32)?;
        let queue = RecvQueue::new(init.depth, init.sge_max);
        if init.limit > queue.depth() {
            return Err(VerbsError::Invalid("the limit is larger than the queue"));
        }
        self.pd_users(init.pd)?;
        let srq = self.srqs.insert(Srq { pd: init.pd, queue, limit: init.limit, users: 0 })?;
        *self.pd_users(init.pd)? += 1;
        Ok(SrqId(srq))
    }

    fn check_srq_depth(&self, depth: u32) -> Result<(), VerbsError> {
        crate::objects::in_bounds("shared receive queue depth", depth, 1, self.config.wq_depth_max)
    }

    pub(crate) fn srq(&mut self, srq: SrqId) -> Result<&mut Srq, VerbsError> {
        self.srqs.get_mut(srq.0).ok_or(VerbsError::NoSuch("SRQ"))
    }

    /// Changes the depth, the limit, or both. If one is refused, neither changes.
    pub fn modify_srq(
        &mut self,
        srq: SrqId,
        depth: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), VerbsError> {
        if let Some(depth) = depth {
            self.check_srq_depth(depth)?;
        }
        let srq = self.srq(srq)?;
        let depth_then = depth.map_or(srq.queue.depth(), u32::next_power_of_two);
        if limit.is_some_and(|limit| limit > depth_then) {
            return Err(VerbsError::Invalid("the limit is larger than the queue"));
        }
        if depth.is_some_and(|depth| !srq.queue.resize(depth)) {
            return Err(VerbsError::Invalid("more receives are posted than the new depth holds"));
        }
        srq.limit = limit.unwrap_or(srq.limit);
        Ok(())
    }

    /// Current attributes of a shared receive queue, with the depth as rounded up.
    pub fn query_srq(&mut self, srq: SrqId) -> Result<SrqInit, VerbsError> {
        let srq = self.srq(srq)?;
        let queue = &srq.queue;
        Ok(SrqInit { pd: srq.pd, depth: queue.depth(), sge_max: queue.sge_max(), limit: srq.limit })
    }

    /// Destroys a shared receive queue and its receives; [`VerbsError::Busy`] while a QP uses it.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), VerbsError> {
        match self.srq(srq)? {
            Srq { users: 0, pd, .. } => {
                let pd = *pd;
                self.srqs.remove(srq.0);
                self.env.events.retain(|e| !matches!(e, Event::SrqLimitReached(s) if *s == srq));
                *self.pd_users(pd)? -= 1;
                Ok(())
            }
            Srq { users, .. } => Err(VerbsError::Busy { what: "SRQ", users: *users }),
        }
    }

    /// Queues a receive work request for the next QP that needs one.
    #[inline]
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let srq = self.srqs.get_mut(srq.0).ok_or(PostError::NoSuchQp)?;
        srq.queue.post(wr).map_err(PostError::from)
    }

    /// Called after a QP may have taken receives: raises the limit event.
    #[inline]
    pub(crate) fn watch_srq(&mut self, srq: SrqId) {
        if let Some(shared) = self.srqs.get_mut(srq.0)
            && shared.queue.len() < shared.limit
        {
            shared.limit = 0;
            self.env.events.push_back(Event::SrqLimitReached(srq));
        }
    }
}
