//! The guest: its image with parameters, and what it reports.

use std::time::{Duration, Instant};
use thiserror::Error;

/// The assembled `guest/guest.s`.
const IMAGE: &[u8] = include_bytes!("../guest/guest.bin");
/// Where the image's parameters begin.
const PARAMETERS: usize = 32;
/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Memory below this address holds the guest's program and tables.
const LOW_START: u64 = 8 << 20;
/// Memory below 4 GiB ends here at the latest, as [`crate::machine`] asks of QEMU.
pub const LOW_END: u64 = 3 << 30;
/// Where the rest of memory begins.
const HIGH_START: u64 = 4 << 30;
/// Addresses for which the guest has page tables.
const MAPPED_MAX: u64 = 512 << 30;
/// Least memory of a guest.
pub const MEMORY_MIN: u64 = 16 << 20;
/// Counts per second of the ACPI PM timer.
const TIMER_HZ: u64 = 3_579_545;
/// Highest rate: above it the guest's arithmetic has no bits left.
const RATE_MAX: u64 = 64 << 30;

/// What a guest says all the time. QEMU's own messages, on the same output, do not contain it.
const HEARTBEAT: u8 = 0x16;
/// The order to check all pages.
pub const CHECK_ALL: u8 = b'v';

/// What a guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes that are dirtied in turn; the others stay as they are.
    pub working_set: u64,
    /// Bytes dirtied per second.
    pub dirty_per_s: u64,
    /// Bytes checked per second in a scan of all pages, beside those that are about to be dirtied.
    pub check_per_s: u64,
}

/// Why there is no guest with a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LoadError {
    /// Too little or too much memory.
    #[error(
        "a guest has {} MiB to {} GiB of memory, in whole MiB",
        MEMORY_MIN >> 20,
        MEMORY_MAX >> 30
    )]
    Memory,
    /// The working set does not fit.
    #[error("the working set has {0} bytes, and the guest's memory has room for {1}")]
    WorkingSet(u64, u64),
    /// A rate beyond the guest's arithmetic.
    #[error("a guest dirties at most {} GiB/s", RATE_MAX >> 30)]
    Rate,
}

const MEMORY_MAX: u64 = MAPPED_MAX - (HIGH_START - LOW_END);

impl Load {
    /// The pages that carry the pattern: all memory above the first 8 MiB.
    pub fn pages(&self) -> u64 {
        let (low, high) = self.low_and_high();
        low + high
    }

    /// Bytes of these pages.
    pub fn checked_bytes(&self) -> u64 {
        self.pages() * PAGE
    }

    /// Pages below and above 4 GiB.
    fn low_and_high(&self) -> (u64, u64) {
        let low = self.memory.min(LOW_END).saturating_sub(LOW_START);
        (low / PAGE, self.memory.saturating_sub(LOW_END) / PAGE)
    }

    /// The image with these parameters.
    ///
    /// # Errors
    /// If the guest cannot have such a load.
    pub fn image(&self) -> Result<Vec<u8>, LoadError> {
        if !(MEMORY_MIN..=MEMORY_MAX).contains(&self.memory) || !self.memory.is_multiple_of(1 << 20)
        {
            return Err(LoadError::Memory);
        }
        let (low, high) = self.low_and_high();
        let working = self.working_set / PAGE;
        if working > low + high || working == 0 && self.dirty_per_s > 0 {
            return Err(LoadError::WorkingSet(self.working_set, (low + high) * PAGE));
        }
        if self.dirty_per_s.max(self.check_per_s) > RATE_MAX {
            return Err(LoadError::Rate);
        }
        let end = if high > 0 { HIGH_START + high * PAGE } else { HIGH_START };
        let mapped = end.div_ceil(1 << 30);
        let rate = |per_s: u64| {
            let scaled = (u128::from(per_s) << 32) / u128::from(PAGE * TIMER_HZ);
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let parameters =
            [low, high, working, rate(self.dirty_per_s), rate(self.check_per_s), mapped];
        let mut image = IMAGE.to_vec();
        for (number, value) in parameters.into_iter().enumerate() {
            let at = PARAMETERS + 8 * number;
            image[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        Ok(image)
    }
}

/// A report of the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Generation that it writes.
    pub generation: u64,
    /// Next page that it writes.
    pub cursor: u64,
    /// Pages that it has checked.
    pub checked: u64,
    /// Pages that were wrong.
    pub wrong: u64,
    /// The first of them.
    pub first_wrong: u64,
    /// Checks of all pages that it has completed on order.
    pub full_checks: u64,
}

impl Report {
    /// Pages dirtied since the start by a guest with this `load`.
    pub fn dirtied(&self, load: &Load) -> u64 {
        self.generation.saturating_sub(2) * (load.working_set / PAGE) + self.cursor
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?.strip_prefix("R ")?;
        let mut numbers = text.split(' ').map(|word| u64::from_str_radix(word, 16).ok());
        let mut next = || numbers.next().flatten();
        Some(Report {
            generation: next()?,
            cursor: next()?,
            checked: next()?,
            wrong: next()?,
            first_wrong: next()?,
            full_checks: next()?,
        })
    }
}

/// What a guest has said on one machine.
#[derive(Debug, Default)]
pub struct Heard {
    line: Vec<u8>,
    /// When the first heartbeat arrived.
    pub first: Option<Instant>,
    /// When the last heartbeat arrived.
    pub last: Option<Instant>,
    /// The latest report, and when it arrived.
    pub report: Option<(Instant, Report)>,
}

/// Bytes of a line beyond which it is no report.
const LINE_MAX: usize = 256;

impl Heard {
    /// Takes bytes that arrived at `now`.
    pub fn take(&mut self, bytes: &[u8], now: Instant) {
        for &byte in bytes {
            match byte {
                HEARTBEAT => {
                    self.first.get_or_insert(now);
                    self.last = Some(now);
                }
                b'\n' => {
                    if let Some(report) = Report::parse(&self.line) {
                        self.report = Some((now, report));
                    }
                    self.line.clear();
                }
                _ if self.line.len() < LINE_MAX => self.line.push(byte),
                _ => {}
            }
        }
    }
}

/// Time between the last word of a guest on the source and its first on the destination.
pub fn silence(source: &Heard, destination: &Heard) -> Option<Duration> {
    Some(destination.first?.saturating_duration_since(source.last?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load =
        Load { memory: 64 << 20, working_set: 8 << 20, dirty_per_s: 1 << 20, check_per_s: 0 };

    fn parameters(load: Load) -> Vec<u64> {
        let image = load.image().unwrap();
        let words = image[PARAMETERS..PARAMETERS + 48].chunks_exact(8);
        words.map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn parameters_are_where_the_guest_reads_them() {
        assert_eq!(IMAGE[..4], 0x1bad_b002_u32.to_le_bytes());
        let [low, high, working, dirty, check, mapped] = parameters(LOAD)[..] else { panic!() };
        assert_eq!((low, high, working, check, mapped), (14336, 0, 2048, 0, 4));
        // 256 pages per second.
        assert_eq!((dirty * TIMER_HZ) >> 32, 255);
        let large = Load { memory: 8 << 30, ..LOAD };
        let [low, high, .., mapped] = parameters(large)[..] else { panic!() };
        assert_eq!((low + 2048 + high, high, mapped), (8 << 18, 5 << 18, 9));
        assert_eq!(large.pages(), low + high);
    }

    #[test]
    fn a_load_that_no_guest_has_is_refused() {
        let refused = |load: Load| load.image().unwrap_err();
        assert_eq!(refused(Load { memory: 1 << 20, ..LOAD }), LoadError::Memory);
        assert_eq!(refused(Load { memory: (64 << 20) + 1, ..LOAD }), LoadError::Memory);
        assert_eq!(refused(Load { memory: 1 << 40, ..LOAD }), LoadError::Memory);
        let set = refused(Load { working_set: 60 << 20, ..LOAD });
        assert_eq!(set, LoadError::WorkingSet(60 << 20, 56 << 20));
        assert!(matches!(refused(Load { working_set: 0, ..LOAD }), LoadError::WorkingSet(..)));
        assert_eq!(refused(Load { dirty_per_s: 1 << 40, ..LOAD }), LoadError::Rate);
    }

    #[test]
    fn reports_are_read_in_pieces_among_heartbeats() {
        let mut heard = Heard::default();
        let (begun, later) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        heard.take(b"QEMU's own words...", begun);
        assert_eq!(heard.first, None);
        heard.take(&[HEARTBEAT; 4], begun);
        assert_eq!(heard.report, None);
        let line = "\nR 0000000000000003 0000000000000010 00000000000000ff 0 0 1\n\x16\x16";
        for byte in line.as_bytes() {
            heard.take(&[*byte], later);
        }
        let (at, report) = heard.report.unwrap();
        assert_eq!((at, heard.first, heard.last), (later, Some(begun), Some(later)));
        assert_eq!((report.checked, report.wrong, report.full_checks), (255, 0, 1));
        assert_eq!(report.dirtied(&LOAD), 2048 + 16);
        heard.take(b"\nR 1 2\nnonsense\n", later);
        assert_eq!(heard.report, Some((at, report)));
        let mut there = Heard::default();
        assert_eq!(silence(&heard, &there), None);
        there.take(&[HEARTBEAT], later + Duration::from_millis(70));
        assert_eq!(silence(&heard, &there), Some(Duration::from_millis(70)));
    }
}
