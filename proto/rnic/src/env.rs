//! What the QPs of a device share, and the view of it that one QP's state machines get.

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

/// With each answer that comes sooner, this part of how long they may take is forgotten.
const ANSWER_DELAY_DECAY: u64 = 16;

/// Memory, regions, CQs, events, counters.
pub(crate) struct Env<M> {
    pub memory: M,
    pub regions: MrTable,
    pub cqs: Table<Cq>,
    pub ahs: Table<AddressHandle>,
    pub events: VecDeque<Event>,
    pub counters: Counters,
    /// The latest time that anybody told.
    pub now: Instant,
    /// How long answers took lately: the longest, which fades with each that comes sooner.
    pub answer_delay: Duration,
    /// CQs that have lost a completion, whose QPs have not been told.
    pub overrun: Vec<CqId>,
}

/// A way to a peer's port or to a multicast group.
pub(crate) struct AddressHandle {
    pub pd: PdId,
    /// Given up, and kept for datagrams that are queued.
    pub is_retired: bool,
    pub template: PathTemplate,
    /// What keeps the way known; given back when the handle is given up.
    pub hop: Option<HopId>,
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
    /// Completes what waits in a queue of the QP's own with a flush error.
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
        // A CQ lives as long as a QP uses it.
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
        // An address handle of another protection domain is as good as none.
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
