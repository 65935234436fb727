//! Doorbells of programs that post one work request at a time.

use super::{Nic, Posted};
use longhaul_units::Instant;
use std::collections::BTreeMap;

/// Work requests on their way to the NIC, by the time at which it sees them.
#[derive(Default)]
pub(super) struct Doorbells {
    due: BTreeMap<(Instant, u64), (usize, Posted)>,
    count: u64,
    /// Work requests for which a send queue had no room.
    pub refused: u64,
}

impl Doorbells {
    /// Adds a work request; those of one time are seen in the order of these calls.
    pub fn add(&mut self, at: Instant, slot: usize, posted: Posted) {
        self.count += 1;
        self.due.insert((at, self.count), (slot, posted));
    }

    pub fn next_at(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Passes to the NIC what is due.
    pub fn ring(&mut self, now: Instant, nic: &mut Nic) {
        while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= now) {
            if let Err(later) = nic.begin_message(now) {
                let ((_, number), work) = entry.remove_entry();
                self.due.insert((later, number), work);
                continue;
            }
            let (slot, posted) = entry.remove();
            self.refused += u64::from(!nic.post(now, slot, &posted));
        }
    }
}
