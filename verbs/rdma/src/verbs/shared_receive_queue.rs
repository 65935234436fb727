//! Shared receive queues.

use std::sync::Arc;

use longhaul_rnic::{RecvWr, SGE_MAX, Sge, SrqId, SrqInit};

use super::queue_pair::segments;
use super::{Device, Piece, ProtectionDomain};
use crate::device_state::AsyncSink;
use crate::engine::Engine;
use crate::error::RdmaError;

struct Inner {
    engine: Arc<Engine>,
    id: SrqId,
    _pd: ProtectionDomain,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Its users hold it, so only a fork can make this fail.
        let _ = self.engine.destroy_srq(self.id);
    }
}

/// A receive queue that many queue pairs share. Clones share it.
#[derive(Clone)]
pub struct SharedReceiveQueue(Arc<Inner>);

impl Device {
    /// Creates a shared receive queue for `depth` work requests of up to `segments_max` segments, 1
    /// to 16. With a `limit` other than 0, one asynchronous event reports that fewer receives are
    /// left; its cookie is [`SharedReceiveQueue::cookie`].
    ///
    /// # Errors
    /// [`RdmaError::Verbs`].
    pub fn create_srq(
        &self,
        pd: &ProtectionDomain,
        depth: u32,
        segments_max: u32,
        limit: u32,
    ) -> Result<SharedReceiveQueue, RdmaError> {
        let init = SrqInit { pd: pd.0.id, depth, sge_max: segments_max, limit };
        let id = self.engine.create_srq(&init)?;
        let srq = SharedReceiveQueue(Arc::new(Inner {
            engine: Arc::clone(&self.engine),
            id,
            _pd: pd.clone(),
        }));
        let sink = AsyncSink { asynchronous: Arc::clone(&self.asynchronous), cookie: srq.cookie() };
        self.engine.set_srq_sink(id, sink)?;
        Ok(srq)
    }
}

impl SharedReceiveQueue {
    pub(super) fn id(&self) -> SrqId {
        self.0.id
    }

    /// Cookie of its events.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.0.id.0.into()
    }

    /// Posts a receive work request for the queue pair that next needs one.
    ///
    /// # Errors
    /// [`RdmaError::Post`].
    pub fn post(&self, wr_id: u64, pieces: &[Piece]) -> Result<(), RdmaError> {
        let mut list = [Sge::default(); SGE_MAX];
        let wr = RecvWr { wr_id, segments: segments(pieces, &mut list)? };
        self.0.engine.with_quietly(|rnic| rnic.post_srq_recv(self.0.id, &wr))??;
        Ok(())
    }
    /// Posts `count` receive work requests without memory, for WRITEs with immediate data.
    ///
    /// # Errors
    /// [`RdmaError::Post`]; some may have been posted.
    pub fn post_empty(&self, wr_id: u64, count: u32) -> Result<(), RdmaError> {
        let wr = RecvWr { wr_id, segments: &[] };
        self.0.engine.with_quietly(|rnic| {
            (0..count).try_for_each(|_| rnic.post_srq_recv(self.0.id, &wr))
        })??;
        Ok(())
    }
}
