//! What is measured with: the time-stamp counter, the processor's event counters, memory.

use perf_event::events::Hardware;
use perf_event::{Builder, Counter, Group};
use std::io;
use std::time::{Duration, Instant};

/// Reads the processor's time-stamp counter, which ticks at a constant rate whatever the clock's
/// frequency, and knows how long a tick is. Where there is no such counter a tick is a nanosecond
/// of the system's clock.
#[derive(Clone, Debug)]
pub struct Ticks(quanta::Clock);

impl Default for Ticks {
    fn default() -> Self {
        Self::new()
    }
}

impl Ticks {
    /// The first of a process takes up to 200 ms: it compares the counter with the system's clock.
    pub fn new() -> Self {
        Ticks(quanta::Clock::new())
    }

    /// Now, in ticks.
    #[inline]
    pub fn now(&self) -> u64 {
        self.0.raw()
    }

    /// Nanoseconds since `start`, at least 1.
    #[inline]
    pub fn ns_since(&self, start: u64) -> u64 {
        self.0.delta_as_nanos(start, self.now()).max(1)
    }

    /// Ticks per second, measured for 50 ms.
    pub fn per_second(&self) -> f64 {
        let (start, since) = (self.now(), Instant::now());
        while since.elapsed().as_millis() < 50 {
            std::hint::spin_loop();
        }
        (self.now() - start) as f64 / since.elapsed().as_secs_f64()
    }
}

/// Events of the processor, in user code of the thread that counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Cycles of the clock, of whatever frequency.
    pub cycles: u64,
    /// Instructions retired.
    pub instructions: u64,
    /// Accesses that missed the last level of cache.
    pub cache_misses: u64,
}

/// The processor's event counters for the thread that opens them.
pub struct HardwareCounters {
    group: Group,
    cycles: Counter,
    instructions: Counter,
    cache_misses: Counter,
}

impl HardwareCounters {
    /// Counters at rest.
    ///
    /// # Errors
    /// Not allowed (`perf_event_paranoid`), or the machine has none, as most virtual ones.
    pub fn open() -> io::Result<Self> {
        let mut group = Group::new()?;
        let cycles = group.add(&Builder::new(Hardware::CPU_CYCLES))?;
        let instructions = group.add(&Builder::new(Hardware::INSTRUCTIONS))?;
        let cache_misses = group.add(&Builder::new(Hardware::CACHE_MISSES))?;
        Ok(HardwareCounters { group, cycles, instructions, cache_misses })
    }

    /// Counts from zero.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(&mut self) -> io::Result<()> {
        self.group.reset()?;
        self.group.enable()
    }

    /// What was counted since [`HardwareCounters::start`], scaled where the counters were shared.
    ///
    /// # Errors
    /// The operating system's.
    pub fn stop(&mut self) -> io::Result<Counts> {
        self.group.disable()?;
        let data = self.group.read()?;
        let share = match (data.time_enabled(), data.time_running()) {
            (Some(enabled), Some(running)) if !running.is_zero() => {
                enabled.as_secs_f64() / running.as_secs_f64()
            }
            _ => 1.0,
        };
        let scaled = |counter: &Counter| {
            data.get(counter).map_or(0, |entry| (entry.value() as f64 * share) as u64)
        };
        Ok(Counts {
            cycles: scaled(&self.cycles),
            instructions: scaled(&self.instructions),
            cache_misses: scaled(&self.cache_misses),
        })
    }
}

/// How long this thread has had a processor.
pub fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec.max(0) as u64, used.tv_nsec.clamp(0, 999_999_999) as u32)
}

/// Memory that this process has in use, in bytes; 0 where nobody tells.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 =
        statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_go_on_at_their_rate() {
        let ticks = Ticks::new();
        let rate = ticks.per_second();
        assert!((1e6..1e11).contains(&rate), "{rate}");
        let start = ticks.now();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let ns = ticks.ns_since(start);
        assert!((15_000_000..10_000_000_000).contains(&ns), "{ns} ns");
    }

    #[test]
    fn memory_in_use_is_told() {
        assert!(resident_bytes() > 100_000);
    }
}
