//! Where the peer's UC WRITEs go: a slot each, used again once the peer has heard that it was
//! compared.
//!
//! No completion tells of a WRITE without an immediate, and one that lost a packet is placed as far
//! as it came. A later message says that nothing of it is under way any more: then the slot holds
//! packets of it from the first on, and behind them what was there before.

use super::unreliable::{BUFFER, BUFFERS};
use crate::Fault;
use crate::session::Remote;
use longhaul_rdma::{Access, MemoryRegion, ProtectionDomain};
use std::thread::sleep;
use std::time::Duration;

/// A late copy of a packet may be on its way into a slot that is being compared.
const LOOKS: u32 = 10;
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How much of a WRITE must be there.
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
    /// WRITEs without an immediate that were found whole.
    pub whole: u64,
}

impl Targets {
    pub fn new(pd: &ProtectionDomain, any_order: bool) -> Result<Self, Fault> {
        let region = pd.register(BUFFERS * BUFFER, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let images = vec![vec![0; BUFFER]; BUFFERS];
        region.write(0, &vec![0; BUFFERS * BUFFER]);
        Ok(Targets { region, images, any_order, mtu: 256, whole: 0 })
    }

    pub fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu;
    }

    pub fn offer(&self) -> Remote {
        Remote { address: self.region.address(0), rkey: self.region.rkey() }
    }

    /// Where the WRITE with this number begins, from the peer's offer on.
    pub fn place(number: u64) -> usize {
        number as usize % BUFFERS * BUFFER
    }

    /// Compares the slot of the WRITE `number`, which carried `data`; `before` is what the WRITE in
    /// that slot before it carried, of which a path that keeps no order may bring something still.
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
                    self.images[number as usize % BUFFERS] = found;
                    return Ok(());
                }
                Err(why) => fault = Some(why),
            }
        }
        Err(fault.unwrap_or_default().into())
    }

    /// True when all of the WRITE is there.
    fn fit(
        &self,
        number: u64,
        extent: Extent,
        data: &[u8],
        before: Option<&[u8]>,
        found: &[u8],
    ) -> Result<bool, String> {
        let image = &self.images[number as usize % BUFFERS];
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
        // Behind it the one before may have more bytes that came late.
        let may_be_late = |i: usize| before.and_then(|b| b.get(i)).is_some_and(|b| *b == found[i]);
        match (behind..BUFFER).find(|&i| found[i] != image[i] && !may_be_late(i)) {
            Some(at) => Err(format!("behind the WRITE {number}, at {at}, is what nobody wrote")),
            None => Ok(!is_broken),
        }
    }
}

/// The peer's slots, as the one who writes knows them.
#[derive(Default)]
pub struct Claims {
    /// The last WRITE into each slot.
    last: Vec<Option<u64>>,
    /// The peer has compared all below this number.
    compared: u64,
}

impl Claims {
    pub fn new() -> Self {
        Claims { last: vec![None; BUFFERS], compared: 0 }
    }

    /// Takes the slot for the WRITE `number`, if the peer is done with what is in it.
    pub fn take(&mut self, number: u64) -> bool {
        let last = &mut self.last[number as usize % BUFFERS];
        let is_free = last.is_none_or(|last| last < self.compared);
        if is_free {
            *last = Some(number);
        }
        is_free
    }

    /// The peer says what it has compared; an older message may come late.
    pub fn hear(&mut self, compared: u64) {
        self.compared = self.compared.max(compared);
    }
}
