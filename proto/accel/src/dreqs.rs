//! DREQs that wait until the store of their flow is delivered.

use crate::shared::AccelShared;
use crate::table::FlowTable;
use crate::timers::SlotId;
use longhaul_node::{Deadline, FrameBuf};
use longhaul_units::Instant;
use std::collections::VecDeque;

pub(crate) struct HeldDreq {
    pub(crate) frame: FrameBuf,
    pub(crate) flow: SlotId,
    /// The PSN behind the last delivered packet at the start, or at the last extension, of the
    /// wait.
    pub(crate) delivered_to: u64,
    pub(crate) until: Instant,
}

/// All held DREQs, by deadline.
#[derive(Default)]
pub(crate) struct HeldDreqs(VecDeque<HeldDreq>);

impl HeldDreqs {
    pub(crate) fn push(&mut self, held: HeldDreq) {
        self.0.push_back(held);
    }

    /// The earliest deadline.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        self.0.front().map(|held| Deadline { at: held.until, reason: "held DREQ" })
    }

    /// Forwards each DREQ whose flow is delivered, or had no delivery within
    /// [`Config::dreq_hold_max`](crate::Config::dreq_hold_max).
    pub(crate) fn release(
        &mut self,
        now: Option<Instant>,
        flows: &mut FlowTable,
        shared: &mut AccelShared,
    ) {
        let mut extended = VecDeque::new();
        for _ in 0..self.0.len() {
            let Some(mut held) = self.0.pop_front() else { break };
            let Some(flow) = flows.current_mut(held.flow) else {
                shared.queue_to_wan(held.frame);
                continue;
            };
            let is_owed = !flow.is_delivered() && flow.delivers();
            match now.filter(|&now| held.until <= now) {
                None if is_owed => self.0.push_back(held),
                Some(now) if is_owed && flow.delivered_to() > held.delivered_to => {
                    held.delivered_to = flow.delivered_to();
                    held.until = now + shared.config.dreq_hold_max;
                    extended.push_back(held);
                }
                _ => {
                    flow.bookkeeping.holds_dreq = false;
                    shared.queue_to_wan(held.frame);
                }
            }
        }
        self.0.append(&mut extended);
    }
}
