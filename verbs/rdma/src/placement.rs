//! Placement of the engine thread on processors.

use longhaul_units::{Duration, Instant};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Minimum interval between moves, since moving to another processor takes tens of microseconds.
const MOVE_INTERVAL: Duration = Duration::from_ms(1);

/// The caller's processor, or an invalid number if the kernel does not report it.
#[inline]
pub(crate) fn current_cpu() -> usize {
    // SAFETY: takes no arguments.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(usize::MAX)
}

/// Keeps the calling thread off a processor that another thread of the program never yields, and
/// allows it again later.
///
/// A thread on the same processor as a spinning one runs only when a wake-up preempts the other or
/// its time slice ends, after milliseconds. On the processor of a peer that polls, and so yields,
/// it runs at once, and so it does on an idle one.
pub(crate) struct Placement {
    /// Processors that the thread may use, and the set that was left of them.
    kept_off: Option<(CpuSet, CpuSet)>,
    moved_at: Instant,
}

impl Placement {
    pub(crate) fn new() -> Self {
        Placement { kept_off: None, moved_at: Instant::ZERO }
    }

    /// Leaves `cpu` if the thread is on it and may use others.
    pub(crate) fn keep_off(&mut self, cpu: usize, now: Instant) {
        if cpu != current_cpu() || now.since(self.moved_at) < MOVE_INTERVAL {
            return;
        }
        self.moved_at = now;
        let Ok(current) = sched_getaffinity(None) else { return };
        // If the set is not the one left here, the program has set another.
        let whole =
            self.kept_off.filter(|(_, rest)| *rest == current).map_or(current, |(whole, _)| whole);
        let mut rest = whole;
        if cpu < CpuSet::MAX_CPU {
            rest.unset(cpu);
        }
        if rest.count() > 0 && sched_setaffinity(None, &rest).is_ok() {
            self.kept_off = Some((whole, rest));
        }
    }

    /// Lets the thread use all its processors again.
    pub(crate) fn lift(&mut self) {
        if let Some((whole, rest)) = self.kept_off.take()
            && sched_getaffinity(None).is_ok_and(|current| current == rest)
        {
            // A failure only affects speed.
            let _ = sched_setaffinity(None, &whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Instant = Instant::from_ns(5_000_000);

    /// On a separate thread, so that other tests keep their processors.
    fn on_own_thread(test: impl FnOnce(CpuSet) + Send) {
        std::thread::scope(|scope| {
            scope.spawn(|| test(sched_getaffinity(None).unwrap()));
        });
    }

    /// Keeps off the current processor and returns it; `None` on a machine with only one.
    fn keep_off_this_one(placement: &mut Placement) -> Option<usize> {
        if sched_getaffinity(None).unwrap().count() == 1 {
            eprintln!("skipped: moving to another processor, there is only one");
            return None;
        }
        loop {
            let left = current_cpu();
            placement.keep_off(left, LATER);
            // The kernel may have moved the thread between the two.
            if placement.kept_off.is_some() {
                return Some(left);
            }
        }
    }

    #[test]
    fn leaves_a_processor_when_there_is_another_and_comes_back() {
        on_own_thread(|whole| {
            let mut placement = Placement::new();
            let Some(left) = keep_off_this_one(&mut placement) else { return };
            assert_ne!(current_cpu(), left);
            assert_eq!(sched_getaffinity(None).unwrap().count(), whole.count() - 1);
            placement.lift();
            assert_eq!(sched_getaffinity(None).unwrap(), whole);
        });
    }

    #[test]
    fn stays_when_elsewhere_or_just_moved() {
        on_own_thread(|whole| {
            let mut placement = Placement::new();
            placement.keep_off(usize::MAX, LATER);
            placement.keep_off(current_cpu(), Instant::ZERO);
            assert_eq!(sched_getaffinity(None).unwrap(), whole);
        });
    }

    #[test]
    fn what_somebody_else_chose_meanwhile_stays() {
        on_own_thread(|_| {
            let mut placement = Placement::new();
            let Some(left) = keep_off_this_one(&mut placement) else { return };
            let mut chosen = CpuSet::new();
            chosen.set(left);
            sched_setaffinity(None, &chosen).unwrap();
            placement.lift();
            assert_eq!(sched_getaffinity(None).unwrap(), chosen);
        });
    }

    #[test]
    fn the_last_processor_is_not_left() {
        on_own_thread(|_| {
            let mut only = CpuSet::new();
            only.set(current_cpu());
            sched_setaffinity(None, &only).unwrap();
            Placement::new().keep_off(current_cpu(), LATER);
            assert_eq!(sched_getaffinity(None).unwrap(), only);
        });
    }
}
