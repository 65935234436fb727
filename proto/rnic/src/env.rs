//! State shared by a device's QPs, and the context of one QP's state machines.

use crate::cq::{Cq, Pushed};
use crate::mr::MrTable;
use crate::table::Table;
use crate::{Access, CqId, Event, Memory, PdId};
use longhaul_neighbour::HopId;
use longhaul_node::{Gather, Payload};
use longhaul_units::{Duration, Instant, LKey, Qpn, RKey};
use longhaul_wire::PathTemplate;
use longhaul_work::{
    AhId, Completion, CompletionOp, Context, Counter, Counters, Denied, Intent, RecvQueue,
    RemoteIntent, Status,
};
use std::collections::VecDeque;

/// Fraction of the expected answer delay that each faster answer removes.
const ANSWER_DELAY_DECAY: u64 = 16;

/// Memory, regions, CQs, events, counters.
pub(crate) struct Env<M> {
    pub memory: M,
    pub regions: MrTable,
    pub cqs: Table<Cq>,
    pub ahs: Table<AddressHandle>,
    pub events: VecDeque<Event>,
    pub counters: Counters,
    /// Latest time passed by any caller.
    pub now: Instant,
    /// Recent maximum of answer delays, which decays with each faster answer.
    pub answer_delay: Duration,
    /// CQs that have lost a completion and whose QPs have not been failed yet.
    pub overrun: Vec<CqId>,
}

/// An address handle: the path to a peer's port or to a multicast group.
pub(crate) struct AddressHandle {
    pub pd: PdId,
    /// Destroyed, and kept for queued datagrams.
    pub is_retired: bool,
    pub template: PathTemplate,
    /// Keeps the hop resolved; released when the handle is destroyed.
    pub hop: Option<HopId>,
}

/// Context of one QP.
pub(crate) struct QpContext<'a, M> {
    pub env: &'a mut Env<M>,
    pub pd: PdId,
    pub access: Access,
    pub send_cq: CqId,
    pub recv_cq: CqId,
}

impl<M: Memory> QpContext<'_, M> {
    /// Completes the receives that wait in a QP's own queue with a flush error.
    pub fn flush_receives(&mut self, queue: &mut RecvQueue, qpn: Qpn, peer_qpn: Qpn) {
        while let Some(wr_id) = queue.pop() {
            let completion =
                Completion::of(wr_id, Status::WrFlush, CompletionOp::Recv, qpn, peer_qpn);
            self.complete(self.recv_cq, completion);
        }
    }

    fn complete(&mut self, cq: CqId, mut completion: Completion) {
        completion.timestamp = self.env.now;
        if completion.status != Status::Success {
            self.env.counters.count(Counter::CqeError);
            if completion.status == Status::WrFlush {
                self.env.counters.count(Counter::CqeFlushError);
            }
        }
        // A CQ exists as long as a QP uses it.
        let Some(ring) = self.env.cqs.get_mut(cq.0) else { return };
        match ring.push(completion) {
            Pushed::Quietly => {}
            Pushed::Notify => self.env.events.push_back(Event::CompletionReady(cq)),
            Pushed::Lost { first } => {
                self.env.counters.count(Counter::CqOverrun);
                if first {
                    self.env.events.push_back(Event::CqError(cq));
                    self.env.overrun.push(cq);
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
    fn remote(
        &self,
        rkey: RKey,
        address: u64,
        len: u64,
        intent: RemoteIntent,
    ) -> Result<u64, Denied> {
        let access = match intent {
            RemoteIntent::Write => Access::REMOTE_WRITE,
            RemoteIntent::Read => Access::REMOTE_READ,
            RemoteIntent::Atomic => Access::REMOTE_ATOMIC,
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
            RemoteIntent::Atomic => Access::REMOTE_ATOMIC,
        })
    }

    fn invalidate(&mut self, rkey: RKey) -> bool {
        self.env.regions.invalidate(rkey.0, self.pd)
    }

    #[inline]
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        self.env.memory.scatter(address, payload);
    }

    fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        self.env.memory.fetch_add(address, add)
    }

    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64 {
        self.env.memory.compare_swap(address, compare, swap)
    }

    #[inline]
    fn path(&self, ah: AhId) -> Option<&PathTemplate> {
        // An address handle of another protection domain counts as absent.
        self.env.ahs.get(ah.0).filter(|handle| handle.pd == self.pd).map(|handle| &handle.template)
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

    #[inline]
    fn note_answer_delay(&mut self, delay: Duration) {
        let recent = self.env.answer_delay;
        self.env.answer_delay = delay.max(recent - recent.divided_by(ANSWER_DELAY_DECAY));
    }

    fn expected_answer_delay(&self) -> Duration {
        self.env.answer_delay.times(2)
    }
}
