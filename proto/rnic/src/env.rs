//! What the QPs of a device share, and the view of it that one QP's state machines get.

use crate::cq::{Cq, Pushed};
use crate::mr::MrTable;
use crate::{Access, CqId, Event, Memory, PdId};
use longhaul_node::{Gather, Payload};
use longhaul_rc::{Completion, Context, Counter, Counters, Denied, Intent, RemoteIntent, Status};
use longhaul_units::{LKey, RKey};
use std::collections::VecDeque;

/// Memory, regions, CQs, events, counters.
pub(crate) struct Env<M> {
    pub memory: M,
    pub regions: MrTable,
    pub cqs: Vec<Option<Cq>>,
    pub events: VecDeque<Event>,
    pub counters: Counters,
}

/// One QP's view of the device.
pub(crate) struct QpContext<'a, M> {
    pub env: &'a mut Env<M>,
    pub pd: PdId,
    pub access: Access,
    pub send_cq: CqId,
    pub recv_cq: CqId,
}

impl<M: Memory> QpContext<'_, M> {
    fn complete(&mut self, cq: CqId, completion: Completion) {
        if completion.status != Status::Success {
            self.env.counters.count(Counter::CqeError);
            if completion.status == Status::WrFlush {
                self.env.counters.count(Counter::CqeFlushError);
            }
        }
        // A CQ lives as long as a QP uses it.
        let Some(Some(ring)) = self.env.cqs.get_mut(cq.0 as usize) else { return };
        match ring.push(completion) {
            Pushed::Quietly => {}
            Pushed::Notify => self.env.events.push_back(Event::CompletionReady(cq)),
            Pushed::Lost { first } => {
                self.env.counters.count(Counter::CqOverrun);
                if first {
                    self.env.events.push_back(Event::CqError(cq));
                }
            }
        }
    }
}

impl<M: Memory> Context for QpContext<'_, M> {
    #[inline]
    fn local(&self, lkey: LKey, address: u64, len: u32, intent: Intent) -> Result<u64, Denied> {
        if len == 0 {
            return Ok(address);
        }
        let access = match intent {
            Intent::LocalRead => Access::LOCAL_READ,
            Intent::LocalWrite => Access::LOCAL_WRITE,
        };
        self.env.regions.check(lkey.0, self.pd, address, u64::from(len), access).ok_or(Denied)
    }

    #[inline]
    fn remote(&self, rkey: RKey, address: u64, len: u64, intent: RemoteIntent) -> Result<u64, Denied> {
        let access = match intent {
            RemoteIntent::Write => Access::REMOTE_WRITE,
            RemoteIntent::Read => Access::REMOTE_READ,
        };
        if !self.env.regions.is_remotely_valid(rkey.0) {
            return Err(Denied);
        }
        self.env.regions.check(rkey.0, self.pd, address, len, access).ok_or(Denied)
    }

    fn permits(&self, intent: RemoteIntent) -> bool {
        self.access.contains(match intent {
            RemoteIntent::Write => Access::REMOTE_WRITE,
            RemoteIntent::Read => Access::REMOTE_READ,
        })
    }

    fn invalidate(&mut self, rkey: RKey) -> bool {
        self.env.regions.invalidate(rkey.0, self.pd)
    }

    #[inline]
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        self.env.memory.scatter(address, payload);
    }

    #[inline]
    fn gather(&self) -> &dyn Gather {
        &self.env.memory
    }

    fn complete_send(&mut self, completion: Completion) {
        self.complete(self.send_cq, completion);
    }

    fn complete_receive(&mut self, completion: Completion) {
        self.complete(self.recv_cq, completion);
    }

    #[inline]
    fn counters(&mut self) -> &mut Counters {
        &mut self.env.counters
    }
}
