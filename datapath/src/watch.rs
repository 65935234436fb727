//! Where an end's time goes: a watch that is always in one part of the work, a port and a memory
//! that tell it when they are at work.

use crate::meter::Ticks;
use longhaul_node::{Gather, Payload};
use longhaul_port::{Lease, LinkState, Port, PortError, Received, forward_port};
use longhaul_rnic::Memory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What the time of an end goes into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkPart {
    /// Work requests posted and completions taken.
    Post,
    /// Segmenting, numbering, headers, queues, acknowledgements; the ICRC of what is received; the
    /// turn around it all.
    Protocol,
    /// Payload copied from and to registered memory.
    Copy,
    /// Headers written, and the ICRC of what is sent.
    Seal,
    /// Slots of the port's rings found, published and given back.
    Port,
}

impl WorkPart {
    /// All of them, in the order of tables.
    pub const ALL: [WorkPart; 5] =
        [WorkPart::Post, WorkPart::Protocol, WorkPart::Copy, WorkPart::Seal, WorkPart::Port];

    /// What it is called in tables.
    pub fn name(self) -> &'static str {
        match self {
            WorkPart::Post => "post",
            WorkPart::Protocol => "protocol",
            WorkPart::Copy => "copy",
            WorkPart::Seal => "seal",
            WorkPart::Port => "port",
        }
    }
}

/// Ticks that went into each [`WorkPart`], in the order of [`WorkPart::ALL`].
pub type PartTicks = [u64; WorkPart::ALL.len()];

/// Readings of which the quickest pair tells what a reading costs.
const CALIBRATION_READINGS: usize = 1000;

/// Adds the time since the last change to the part that it was in. What a reading of the counter
/// takes is left out.
///
/// Ports must be `Send`, hence atomics; only one thread uses a watch at a time.
pub(crate) struct Watch {
    ticks: Ticks,
    reading: u64,
    part: AtomicUsize,
    last: AtomicU64,
    spent: [AtomicU64; WorkPart::ALL.len()],
}

impl Watch {
    pub fn new() -> Self {
        let ticks = Ticks::new();
        let mut reading = u64::MAX;
        let mut last = ticks.now();
        for _ in 0..CALIBRATION_READINGS {
            let now = ticks.now();
            reading = reading.min(now.saturating_sub(last));
            last = now;
        }
        Watch {
            ticks,
            reading,
            part: AtomicUsize::new(WorkPart::Post as usize),
            last: AtomicU64::new(last),
            spent: Default::default(),
        }
    }

    /// Enters a part; returns the one that is left.
    #[inline]
    pub fn enter(&self, part: WorkPart) -> WorkPart {
        let now = self.ticks.now();
        let left = self.part.load(Ordering::Relaxed);
        let since = now.saturating_sub(self.last.load(Ordering::Relaxed));
        let spent = &self.spent[left];
        spent.store(
            spent.load(Ordering::Relaxed) + since.saturating_sub(self.reading),
            Ordering::Relaxed,
        );
        self.last.store(now, Ordering::Relaxed);
        self.part.store(part as usize, Ordering::Relaxed);
        WorkPart::ALL[left]
    }

    /// Enters a part whose time before now belongs to nobody.
    pub fn begin(&self, part: WorkPart) {
        self.last.store(self.ticks.now(), Ordering::Relaxed);
        self.part.store(part as usize, Ordering::Relaxed);
    }

    pub fn spent(&self) -> PartTicks {
        self.spent.each_ref().map(|spent| spent.load(Ordering::Relaxed))
    }

    pub fn set_spent(&self, ticks: PartTicks) {
        for (spent, ticks) in self.spent.iter().zip(ticks) {
            spent.store(ticks, Ordering::Relaxed);
        }
    }
}

/// Runs `work` as `part` of what is watched, if anything is.
#[inline]
fn within<R>(watch: Option<&Watch>, part: WorkPart, work: impl FnOnce() -> R) -> R {
    let Some(watch) = watch else { return work() };
    let before = watch.enter(part);
    let result = work();
    watch.enter(before);
    result
}

/// A port that tells a watch when it is at work, if there is one.
pub(crate) struct Watched<P> {
    pub port: P,
    pub watch: Option<Arc<Watch>>,
}

impl<P: Port> Port for Watched<P> {
    #[inline]
    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        let Some(watch) = self.watch.as_deref() else { return self.port.receive(max, each) };
        let before = watch.enter(WorkPart::Port);
        let received =
            self.port.receive(max, &mut |frame| within(Some(watch), before, || each(frame)));
        watch.enter(before);
        received
    }

    #[inline]
    fn receive_lent(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, PortError> {
        let Some(watch) = self.watch.as_deref() else { return self.port.receive_lent(max, each) };
        let before = watch.enter(WorkPart::Port);
        let received =
            self.port.receive_lent(max, &mut |frame| within(Some(watch), before, || each(frame)));
        watch.enter(before);
        received
    }

    #[inline]
    fn transmit_room(&mut self) -> usize {
        within(self.watch.as_deref(), WorkPart::Port, || self.port.transmit_room())
    }

    #[inline]
    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError> {
        let Some(watch) = self.watch.as_deref() else { return self.port.transmit(len, fill) };
        let before = watch.enter(WorkPart::Port);
        let sent =
            self.port.transmit(len, &mut |slot| within(Some(watch), WorkPart::Seal, || fill(slot)));
        watch.enter(before);
        sent
    }

    #[inline]
    fn transmit_lent(&mut self, lease: &Lease) -> Result<bool, PortError> {
        within(self.watch.as_deref(), WorkPart::Port, || self.port.transmit_lent(lease))
    }

    #[inline]
    fn flush(&mut self) -> Result<(), PortError> {
        within(self.watch.as_deref(), WorkPart::Port, || self.port.flush())
    }

    #[inline]
    fn service(&mut self) -> Result<LinkState, PortError> {
        within(self.watch.as_deref(), WorkPart::Port, || self.port.service())
    }

    forward_port!(|self| self.port => arm, disarm, descriptors, link_state, capabilities, counters);
}

/// Memory whose addresses begin at 0, all of it registered; tells a watch when it is copied, if
/// there is one.
pub(crate) struct Region {
    pub bytes: Vec<u8>,
    pub watch: Option<Arc<Watch>>,
}

impl Gather for Region {
    #[inline]
    fn gather(&self, address: u64, out: &mut [u8]) {
        within(self.watch.as_deref(), WorkPart::Copy, || {
            out.copy_from_slice(&self.bytes[address as usize..][..out.len()]);
        });
    }
}

impl Memory for Region {
    #[inline]
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        let out = &mut self.bytes[address as usize..][..payload.len()];
        within(self.watch.as_deref(), WorkPart::Copy, || payload.copy_to(out));
    }

    /// Never asked for: no queue pair permits atomics.
    fn fetch_add(&mut self, _address: u64, _add: u64) -> u64 {
        0
    }

    /// As above.
    fn compare_swap(&mut self, _address: u64, _compare: u64, _swap: u64) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(watch: &Watch, ticks: u64) {
        let start = watch.ticks.now();
        while watch.ticks.now() - start < ticks {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn time_goes_to_the_innermost_part() {
        const LONG: u64 = 100_000;
        let watch = Watch::new();
        watch.begin(WorkPart::Protocol);
        within(Some(&watch), WorkPart::Port, || {
            spin(&watch, LONG);
            within(Some(&watch), WorkPart::Copy, || spin(&watch, 3 * LONG));
        });
        watch.enter(WorkPart::Post);
        let [post, _, copy, seal, port] = watch.spent();
        assert!(
            copy >= 3 * LONG - watch.reading && port >= LONG - 2 * watch.reading,
            "{copy} {port}"
        );
        assert_eq!((post, seal), (0, 0));
    }

    #[test]
    fn what_was_before_the_beginning_belongs_to_nobody() {
        let watch = Watch::new();
        spin(&watch, 1_000_000);
        watch.begin(WorkPart::Copy);
        watch.enter(WorkPart::Post);
        assert!(watch.spent().iter().all(|&ticks| ticks < 1_000_000), "{:?}", watch.spent());
        watch.set_spent([1, 2, 3, 4, 5]);
        assert_eq!(watch.spent(), [1, 2, 3, 4, 5]);
    }
}
