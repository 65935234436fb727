//! Targets of the peer's UC WRITEs: a slot for each, reused after the peer has learnt that it was
//! compared.
//!
//! No completion reports a WRITE without immediate data, and one that lost a packet is placed up to
//! the loss. A later message shows that none of its packets are in flight: the slot then contains
//! its leading packets, and behind them the previous contents.

use super::unreliable::{BUFFER, BUFFERS};
use crate::Fault;
use crate::session::Remote;
use longhaul_rdma::{Access, MemoryRegion, ProtectionDomain};
use std::ops::Range;
use std::thread::sleep;
use std::time::Duration;

/// Slots of each side. A report may take this many messages before WRITEs give way to SENDs.
const SLOTS: usize = 4 * BUFFERS;
/// Comparisons of a slot: a late copy of a packet may still arrive.
const LOOKS: u32 = 10;
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Required extent of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// It completed.
    Whole,
    /// Packets may have been lost.
    AnyPart,
}

/// This side's slots.
pub struct Targets {
    region: MemoryRegion,
    images: Vec<Vec<u8>>,
    any_order: bool,
    mtu: usize,
    /// WRITEs without immediate data that were found whole.
    pub whole: u64,
}

impl Targets {
    pub fn new(pd: &ProtectionDomain, any_order: bool) -> Result<Self, Fault> {
        let region = pd.register(SLOTS * BUFFER, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let images = vec![vec![0; BUFFER]; SLOTS];
        region.write(0, &vec![0; SLOTS * BUFFER]);
        Ok(Targets { region, images, any_order, mtu: 256, whole: 0 })
    }

    pub fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu;
    }

    pub fn offer(&self) -> Remote {
        Remote { address: self.region.address(0), rkey: self.region.rkey() }
    }

    /// Offset of the WRITE with this number in the peer's memory.
    pub fn place(number: u64) -> usize {
        slot(number) * BUFFER
    }

    /// Compares the slot of the WRITE `number`, which carried `data`. On a path that reorders,
    /// parts of the previous WRITE in that slot, which carried `before`, may still arrive.
    pub fn compare(
        &mut self,
        number: u64,
        extent: Extent,
        data: &[u8],
        before: Option<&[u8]>,
    ) -> Result<(), Fault> {
        let before = before.filter(|_| self.any_order);
        let looks = if self.any_order { LOOKS } else { 1 };
        let mut fault = None;
        for look in 0..looks {
            if look > 0 {
                sleep(LOOK_AGAIN);
            }
            let found = self.region.to_vec(Targets::place(number), BUFFER);
            match self.fit(number, extent, data, before, &found) {
                Ok(is_whole) => {
                    self.whole += u64::from(is_whole && extent == Extent::AnyPart);
                    self.images[slot(number)] = found;
                    return Ok(());
                }
                Err(why) => fault = Some(why),
            }
        }
        Err(fault.unwrap_or_default().into())
    }

    /// `true` if the WRITE is complete.
    fn fit(
        &self,
        number: u64,
        extent: Extent,
        data: &[u8],
        before: Option<&[u8]>,
        found: &[u8],
    ) -> Result<bool, String> {
        let image = &self.images[slot(number)];
        let mut is_broken = false;
        for (at, packet) in data.chunks(self.mtu).enumerate().map(|(n, p)| (n * self.mtu, p)) {
            let is = |wanted: &[u8]| found[at..at + packet.len()] == *wanted;
            if is(packet) && (!is_broken || self.any_order) {
                continue;
            }
            is_broken = true;
            let end = at + packet.len();
            let is_older =
                before.is_some_and(|b| (at..end).all(|i| b.get(i).is_none_or(|b| *b == found[i])));
            if extent == Extent::Whole || !(is(&image[at..end]) || is_older) {
                let lost = packet.iter().zip(&found[at..]).filter(|(a, b)| a != b).count();
                let all = packet.len();
                return Err(format!(
                    "the WRITE {number}: {lost} of {all} bytes from {at} on are wrong"
                ));
            }
        }
        let behind = data.len();
        // Behind it, late bytes of the previous one may follow.
        let may_be_late = |i: usize| before.and_then(|b| b.get(i)).is_some_and(|b| *b == found[i]);
        match (behind..BUFFER).find(|&i| found[i] != image[i] && !may_be_late(i)) {
            Some(at) => Err(format!("behind the WRITE {number}, at {at}, is what nobody wrote")),
            None => Ok(!is_broken),
        }
    }
}

fn slot(number: u64) -> usize {
    number as usize % SLOTS
}

/// Messages below `number` whose slot may have changed since all below `expected` were compared:
/// the first of each slot, because [`Claims`] lets no later one write there.
pub fn unsettled(expected: u64, number: u64) -> Range<u64> {
    expected..number.min(expected + SLOTS as u64)
}

/// The previous message in the slot of `number`.
pub fn before(number: u64) -> Option<u64> {
    number.checked_sub(SLOTS as u64)
}

/// The peer's slots, as known to the writer.
#[derive(Default)]
pub struct Claims {
    /// Last message of each slot, whether a WRITE or a SEND in its place.
    last: Vec<Option<u64>>,
    /// The peer has compared all below this number.
    compared: u64,
}

impl Claims {
    pub fn new() -> Self {
        Claims { last: vec![None; SLOTS], compared: 0 }
    }

    /// Takes the slot for message `number`. Returns `true` if it may WRITE, because the peer has
    /// compared the slot's previous message. A SEND takes its slot too: if it is lost, the peer
    /// compares the slot for it, and must not find another message's WRITE.
    pub fn take(&mut self, number: u64) -> bool {
        let before = self.last[slot(number)].replace(number);
        before.is_none_or(|before| before < self.compared)
    }

    /// Notes the peer's report; reports may arrive out of order.
    pub fn hear(&mut self, compared: u64) {
        self.compared = self.compared.max(compared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_units::{Rng, SplitMix64};
    use std::collections::VecDeque;

    /// True for a while, repeatedly.
    struct Spell {
        begins: f64,
        ends: f64,
        is_on: bool,
    }

    impl Spell {
        fn step(&mut self, rng: &mut SplitMix64) -> bool {
            self.is_on ^= rng.chance(if self.is_on { self.ends } else { self.begins });
            self.is_on
        }
    }

    /// A sending and a comparing side, with slots that hold the number of the last WRITE.
    struct Model {
        claims: Claims,
        slots: Vec<Option<u64>>,
        images: Vec<Option<u64>>,
        expected: u64,
        compared: u64,
    }

    impl Model {
        /// Message `number` completes.
        fn take(&mut self, number: u64, is_write: bool) {
            for n in unsettled(self.expected, number) {
                let (found, image) = (self.slots[slot(n)], &mut self.images[slot(n)]);
                assert!(
                    found == Some(n) || found == *image,
                    "at {number}, from {} on: {found:?} instead of {n} or {image:?}",
                    self.expected
                );
                self.compared += u64::from(found == Some(n));
                *image = found;
            }
            if is_write {
                assert_eq!(self.slots[slot(number)], Some(number));
                self.images[slot(number)] = Some(number);
            }
            self.expected = number + 1;
        }
    }

    /// Runs of lost messages, some of which leave their first packets; completions that wait while
    /// the program is busy; late reports.
    #[test]
    fn a_slot_holds_what_is_compared_or_what_was_there_before() {
        let mut compared = 0;
        for seed in 0..200 {
            let rng = &mut SplitMix64::new(seed);
            let mut loss = Spell { begins: 0.01, ends: 0.01, is_on: false };
            let mut stall = Spell { begins: 0.01, ends: 0.01, is_on: false };
            let answer_takes = rng.below(2 * SLOTS as u64);
            let (mut completions, mut answers) = (VecDeque::new(), VecDeque::new());
            let mut model = Model {
                claims: Claims::new(),
                slots: vec![None; SLOTS],
                images: vec![None; SLOTS],
                expected: 0,
                compared: 0,
            };
            for number in 0..20_000 {
                while let Some(&(_, compared)) = answers.front().filter(|(at, _)| *at <= number) {
                    model.claims.hear(compared);
                    answers.pop_front();
                }
                let is_write = number % 4 >= 2 && model.claims.take(number);
                let is_lost = loss.step(rng);
                if is_write && (!is_lost || rng.chance(0.2)) {
                    model.slots[slot(number)] = Some(number);
                }
                let is_quiet = is_write && number % 4 == 2;
                if !is_lost && !is_quiet {
                    completions.push_back((number, is_write));
                }
                if !stall.step(rng) {
                    completions
                        .drain(..)
                        .for_each(|(number, is_write)| model.take(number, is_write));
                    answers.push_back((number + answer_takes, model.expected));
                }
            }
            compared += model.compared;
        }
        assert!(compared > 50_000, "{compared}");
    }
}
