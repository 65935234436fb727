//! Ranges that the far box fetches, while they arrive and wait for their reader.

use crate::Counters;
use crate::command::{Command, Range};
use crate::local::Announcement;
use crate::shared::ReadAheadShared;
use longhaul_node::Payload;
use longhaul_units::{Psn, RKey};
use std::collections::VecDeque;

/// Most remembered ranges of commands that have passed to the target.
const PASSED_MAX: usize = 1024;

/// Fetched data.
#[derive(Debug)]
pub(crate) enum Data {
    /// Its bytes.
    Bytes(Vec<u8>),
    /// Its length, of hosts in virtual time whose memory has no bytes.
    Length(usize),
}

impl Data {
    pub(crate) fn len(&self) -> usize {
        match self {
            Data::Bytes(bytes) => bytes.len(),
            Data::Length(len) => *len,
        }
    }

    /// Appends a packet's payload. `false` if it mixes bytes and lengths.
    fn extend(&mut self, payload: &Payload<'_>) -> bool {
        match (&mut *self, payload, payload.as_bytes()) {
            (Data::Bytes(own), _, Some(bytes)) => own.extend_from_slice(bytes),
            (Data::Bytes(own), Payload::Synthetic { len }, _) if own.is_empty() => {
                *self = Data::Length(*len);
            }
            (Data::Length(own), Payload::Synthetic { len }, _) => *own += len,
            _ => return false,
        }
        true
    }

    /// The bytes from `from` to before `to`, if they have arrived.
    pub(crate) fn part(&self, from: usize, to: usize) -> Option<Payload<'_>> {
        match self {
            Data::Bytes(bytes) => bytes.get(from..to).map(Payload::Bytes),
            Data::Length(len) => (to <= *len).then(|| Payload::Synthetic { len: to - from }),
        }
    }
}

/// One announced range.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) serial: u64,
    number: u16,
    announcement: Announcement,
    pub(crate) data: Data,
    /// A READ may be answered from it.
    is_open: bool,
    /// No more data will arrive.
    pub(crate) is_ended: bool,
    /// Answers that use it.
    claims: u32,
    was_claimed: bool,
}

/// The ranges of one connection.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    held: VecDeque<Held>,
    serial: u64,
    /// PSN and range of commands that have passed, and the last command's PSN.
    passed: VecDeque<(Psn, Range)>,
    last_passed: Option<Psn>,
    /// Commands with a PSN up to this one have been forgotten.
    forgotten: Option<Psn>,
    /// PSN of the last announced command.
    last_announced: Option<Psn>,
}

impl Holdings {
    /// Bytes that have arrived.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.iter().map(|held| held.data.len() as u64).sum()
    }

    /// Notes a SEND that passes to the target: the memory that it names differs from data fetched
    /// for an earlier command. `None`: it may name any memory.
    pub(crate) fn note_passed(
        &mut self,
        shared: &mut ReadAheadShared,
        psn: Psn,
        command: Option<&Command>,
    ) {
        if self.last_passed.is_none_or(|last| psn.is_after(last)) {
            self.last_passed = Some(psn);
        }
        for held in &mut self.held {
            let is_older = psn.is_after(held.announcement.capsule);
            let own = &held.announcement.range;
            let is_named = command.is_none_or(|command| {
                !command.is_whole || command.ranges().iter().any(|r| r.overlaps(own))
            });
            held.is_open &= !(is_older && is_named);
        }
        match command.filter(|command| command.is_whole) {
            Some(command) => self.passed.extend(command.ranges().iter().map(|range| (psn, *range))),
            None => self.forget(psn),
        }
        while self.passed.len() > PASSED_MAX {
            if let Some((psn, _)) = self.passed.pop_front() {
                self.forget(psn);
            }
        }
        self.let_go(shared);
    }

    fn forget(&mut self, psn: Psn) {
        if self.forgotten.is_none_or(|before| psn.is_after(before)) {
            self.forgotten = Some(psn);
        }
    }

    /// `false` if a later command that has passed may name the same memory.
    fn is_latest(&self, announcement: &Announcement) -> bool {
        let Announcement { capsule, range, .. } = announcement;
        self.forgotten.is_none_or(|forgotten| capsule.is_after(forgotten))
            && !self
                .passed
                .iter()
                .any(|(psn, other)| other.overlaps(range) && psn.is_after(*capsule))
    }

    /// `true` if `range` is likely to be announced: a command that has passed names it, and the far
    /// box, which announces in the order of commands, has not come to it.
    pub(crate) fn is_expected(&self, range: &Range, range_bytes_max: u32) -> bool {
        let named = self.passed.iter().rev().find(|(_, named)| named.overlaps(range));
        let (Some(last), Some((psn, named))) = (self.last_announced, named) else { return false };
        let is_held = |held: &Held| {
            held.announcement.capsule == *psn && held.announcement.range.overlaps(range)
        };
        !last.is_after(*psn)
            && named.contains(range)
            && named.len <= range_bytes_max
            && !self.held.iter().any(is_held)
    }

    /// Notes that a range is being fetched. Returns its serial if there is room for it.
    pub(crate) fn announce(
        &mut self,
        shared: &mut ReadAheadShared,
        number: u16,
        announcement: Announcement,
    ) -> Option<u64> {
        self.close(shared, |held| held.number == number);
        self.last_announced = Some(announcement.capsule);
        let Range { address, len, .. } = announcement.range;
        let config = &shared.config;
        let fits = (1..=config.range_bytes_max).contains(&len)
            && address.checked_add(u64::from(len)).is_some()
            && self.held.len() < usize::from(config.held_max)
            && shared.held_bytes + u64::from(len) <= config.held_bytes_max;
        if !fits || !self.is_latest(&announcement) {
            shared.counters.left += 1;
            return None;
        }
        self.serial += 1;
        let data = Data::Bytes(shared.take_buffer(len));
        self.held.push_back(Held {
            serial: self.serial,
            number,
            announcement,
            data,
            is_open: true,
            is_ended: false,
            claims: 0,
            was_claimed: false,
        });
        Some(self.serial)
    }

    fn by_number(&mut self, number: u16) -> Option<&mut Held> {
        self.held.iter_mut().rev().find(|held| held.number == number && !held.is_ended)
    }

    /// Stores the payload of packet `index`, with `mtu` bytes per packet.
    pub(crate) fn extend(
        &mut self,
        number: u16,
        index: u32,
        mtu: u32,
        payload: &Payload<'_>,
    ) -> bool {
        let Some(held) = self.by_number(number) else { return false };
        let at = u64::from(index) * u64::from(mtu);
        let rest = u64::from(held.announcement.range.len).saturating_sub(at).min(u64::from(mtu));
        let is_next = at == held.data.len() as u64 && payload.len() as u64 == rest && rest > 0;
        if is_next {
            return held.data.extend(payload);
        } else if at > held.data.len() as u64 {
            // A packet was lost between the boxes, which keep order: the rest is useless.
            held.is_ended = true;
            held.is_open = false;
        }
        false
    }

    /// Notes that no more data arrives for fetch `number`.
    pub(crate) fn cancel(&mut self, shared: &mut ReadAheadShared, number: u16) {
        if let Some(held) = self.by_number(number) {
            let len = held.announcement.range.len as usize;
            held.is_open = false;
            held.is_ended = held.data.len() < len;
        }
        self.let_go(shared);
    }

    /// Closes the ranges of an answered command, or with an invalidated key.
    pub(crate) fn end_command(
        &mut self,
        shared: &mut ReadAheadShared,
        command: Option<u32>,
        key: Option<RKey>,
    ) {
        self.close(shared, |held| {
            command == Some(held.announcement.command) || key == Some(held.announcement.range.rkey)
        });
    }

    fn close(&mut self, shared: &mut ReadAheadShared, which: impl Fn(&Held) -> bool) {
        for held in &mut self.held {
            held.is_open &= !which(held);
        }
        self.let_go(shared);
    }

    /// Ends the range `serial`, whose time has expired.
    pub(crate) fn expire(&mut self, shared: &mut ReadAheadShared, serial: u64) {
        if let Some(held) = self.held.iter_mut().find(|held| held.serial == serial) {
            held.is_open = false;
            held.is_ended = true;
        }
        self.let_go(shared);
    }

    /// Claims the data of `range` for an answer. Returns its serial, and the offset of `range` in
    /// it.
    pub(crate) fn claim(&mut self, range: &Range) -> Option<(u64, u32)> {
        let last = self.last_passed?;
        let held = self.held.iter_mut().find(|held| {
            held.is_open
                && held.announcement.range.contains(range)
                && !held.announcement.capsule.is_after(last)
        })?;
        held.claims += 1;
        held.was_claimed = true;
        Some((held.serial, (range.address - held.announcement.range.address) as u32))
    }

    pub(crate) fn get(&self, serial: u64) -> Option<&Held> {
        self.held.iter().find(|held| held.serial == serial)
    }

    /// Releases one claim on `serial`.
    pub(crate) fn release(&mut self, shared: &mut ReadAheadShared, serial: u64) {
        if let Some(held) = self.held.iter_mut().find(|held| held.serial == serial) {
            held.claims = held.claims.saturating_sub(1);
        }
        self.let_go(shared);
    }

    /// Releases all ranges, claimed or not.
    pub(crate) fn clear(&mut self, shared: &mut ReadAheadShared) {
        for held in &mut self.held {
            (held.is_open, held.claims) = (false, 0);
        }
        self.let_go(shared);
    }

    fn let_go(&mut self, shared: &mut ReadAheadShared) {
        if self.held.iter().all(|held| held.is_open || held.claims > 0) {
            return;
        }
        for held in &mut self.held {
            if !held.is_open && held.claims == 0 {
                let Counters { discarded, .. } = &mut shared.counters;
                *discarded += u64::from(!held.was_claimed);
                let buffer = match std::mem::replace(&mut held.data, Data::Length(0)) {
                    Data::Bytes(buffer) => buffer,
                    Data::Length(_) => Vec::new(),
                };
                shared.return_buffer(buffer, held.announcement.range.len);
            }
        }
        self.held.retain(|held| held.is_open || held.claims > 0);
    }
}
