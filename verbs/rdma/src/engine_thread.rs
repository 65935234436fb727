//! The engine thread: it runs the device when the program does not.
//!
//! It is in one of three situations:
//!
//! * **standing by**: the program polls. The port raises no interrupts; the thread only looks once per
//!   millisecond whether the program still polls and leaves no frames lying, or is woken at once by
//!   [`Engine::hand_over`];
//! * **driving**: it runs turns while there is work and the program does not poll;
//! * **parked**: nothing to do; it sleeps until the port's interrupt, the device's next deadline, or a
//!   wake-up by the program.
//!
//! A program may also watch its memory instead of polling (`ib_write_lat` does), with only a poll now and
//! then. Handing the device back and forth would cost a millisecond each time. Therefore a driving thread
//! stands by only when it is of no use: now and then it lets an interrupt wait for a moment, and when the
//! program took the frames meanwhile, [`WINS_TO_STAND_BY`] times in a row, the program can do without it.
//!
//! How long it spins before it parks depends on the program: when other threads of the process use the
//! CPU, spinning would take it from them, and a parked thread is woken with preference; when they sleep,
//! spinning saves the peer the interrupts.

use std::sync::{Arc, Weak};
use std::thread;

use longhaul_host::{Parker, WakeUp, Woken};
use longhaul_node::Node;
use longhaul_units::{Duration, Instant};

use crate::device_state::Driver;
use crate::engine::Engine;
use crate::error::RdmaError;

/// How often a thread that stands by looks whether the program still polls.
const STAND_BY_LOOK: Duration = Duration::from_ms(1);
/// Interrupts in a row that the program must have served by itself before the thread stands by.
const WINS_TO_STAND_BY: u32 = 8;
/// Every so many interrupts one is left to the program, to learn whether it takes it.
const DEFER_EVERY: u32 = 16;
/// How long an interrupt is left to the program.
const DEFER: Duration = Duration::from_us(5);
/// How long a thread spins without work before it parks, while the rest of the process sleeps.
const SPIN: Duration = Duration::from_us(50);
/// Longest time parked; a net under all other wake-ups.
const PARKED_MAX: Duration = Duration::from_ms(20);
/// Time parked while the transmit ring is full: its reader raises no interrupt.
const PARKED_WITHOUT_ROOM: Duration = Duration::from_us(20);
/// How often CPU use is measured.
const MEASURE_INTERVAL: Duration = Duration::from_ms(1);

/// Starts the thread. It ends when the engine is dropped.
pub(crate) fn start(engine: Weak<Engine>) -> Result<(), RdmaError> {
    let spawned = without_signals(|| {
        thread::Builder::new().name("longhaul".to_owned()).stack_size(512 * 1024).spawn(move || run(&engine))
    });
    spawned.map(drop).map_err(|source| RdmaError::Io { operation: "starting the engine thread", source })
}

/// Runs `spawn` with all signals blocked, which the new thread inherits: the program's handlers run on the
/// program's threads.
fn without_signals<R>(spawn: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are valid for the calls, and the old mask is put back.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let result = spawn();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        result
    }
}

/// What the thread remembers from one wake-up to the next.
struct Memory {
    parker: Parker,
    usage: CpuUsage,
    /// Polls by the program when last looked at.
    polls: u64,
    /// Interrupts that woke the thread.
    interrupts: u32,
    /// Interrupts in a row that the program served by itself.
    wins: u32,
}

fn run(engine: &Weak<Engine>) {
    // Wake up when asked to, not up to 50 µs later.
    // SAFETY: concerns this thread alone, and takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
    let mut memory =
        Memory { parker: Parker::new(), usage: CpuUsage::new(), polls: 0, interrupts: 0, wins: 0 };
    let mut stands_by = true;
    while let Some(engine) = engine.upgrade() {
        if engine.stopping() {
            return;
        }
        engine.keep_counters();
        if stands_by {
            engine.hand_over.stand_by(|wake| {
                sleep(wake, &mut Parker::new(), STAND_BY_LOOK);
            });
            let polls = engine.hand_over.polls();
            let polled = polls != std::mem::replace(&mut memory.polls, polls);
            stands_by = polled && !engine.hand_over.take_over();
            if stands_by {
                let Some(left_lying) = take_what_lies(&engine) else { return };
                stands_by = !(left_lying && engine.hand_over.polls() == polls);
            }
            memory.wins = 0;
            continue;
        }
        match drive(&engine, &mut memory).and_then(|()| park(&engine, &mut memory)) {
            Some(of_no_use) => stands_by = of_no_use,
            None => return,
        }
    }
}

/// Runs turns until there is nothing to do or the program polls. `None` when the device is no longer ours.
fn drive(engine: &Arc<Engine>, memory: &mut Memory) -> Option<()> {
    let mut idle_since: Option<Instant> = None;
    memory.polls = engine.hand_over.polls();
    engine.hand_over.take_over();
    loop {
        let mut state = engine.lock().ok()?;
        if !std::mem::replace(&mut state.thread_drives, true) {
            state.counters.takeovers += 1;
        }
        let now = engine.now();
        let worked = state.turn(now, Driver::Thread);
        if worked > 0 {
            // While it looks by itself, the peer need not ring.
            state.disarm();
        }
        // The kernel's timers are too coarse for what comes this soon: paced frames, usually.
        let busy = state.out_of_room || state.rnic.poll_timeout().is_some_and(|due| due.at < now + SPIN);
        drop(state);
        engine.keep_counters();
        if engine.stopping() || Arc::strong_count(engine) == 1 || engine.hand_over.polls() != memory.polls {
            return Some(());
        }
        if worked > 0 {
            idle_since = None;
            continue;
        }
        let since = *idle_since.get_or_insert(now);
        let spin = if memory.usage.others_are_busy(now) { Duration::ZERO } else { SPIN };
        if now.since(since) >= spin && !busy {
            return Some(());
        }
        thread::yield_now();
    }
}

/// Arms the port and sleeps. True when the program can do without the thread, which then stands by; `None`
/// when the device is no longer ours.
fn park(engine: &Engine, memory: &mut Memory) -> Option<bool> {
    let (limit, taken);
    {
        let mut state = engine.lock().ok()?;
        // An error takes the link down; the descriptors then tell when the peer is back.
        let frames_wait = memory.parker.arm(state.port.as_mut_slice()).unwrap_or(false);
        state.armed = !frames_wait && state.port.is_some();
        taken = state.counters.frames_by_program;
        if frames_wait {
            drop(state);
            return still_of_use(engine, memory, taken);
        }
        let now = engine.now();
        let due = state.rnic.poll_timeout().map(|due| due.at.since(now));
        let net = if state.out_of_room { PARKED_WITHOUT_ROOM } else { PARKED_MAX };
        limit = due.map_or(net, |due| due.min(net));
        state.thread_sleeps_until = Some(now + limit);
    }
    let woken = sleep(engine.hand_over.wake(), &mut memory.parker, limit);
    let mut state = engine.lock().ok()?;
    state.thread_sleeps_until = None;
    let now = engine.now();
    state.service(now);
    drop(state);
    if woken == Some(Woken::ByPort) { still_of_use(engine, memory, taken) } else { Some(false) }
}

/// Leaves an interrupt to the program, now and then, and counts whether it takes the frames. True when it
/// has taken them so often that the thread is of no use.
fn still_of_use(engine: &Engine, memory: &mut Memory, taken: u64) -> Option<bool> {
    memory.interrupts = memory.interrupts.wrapping_add(1);
    if memory.wins == 0 && !memory.interrupts.is_multiple_of(DEFER_EVERY) {
        return Some(false);
    }
    let left_lying = take_what_lies(engine)?;
    let mut state = engine.lock().ok()?;
    if left_lying || state.counters.frames_by_program == taken || engine.hand_over.is_handed_over() {
        memory.wins = 0;
        return Some(false);
    }
    memory.wins += 1;
    if memory.wins < WINS_TO_STAND_BY {
        return Some(false);
    }
    state.thread_drives = false;
    state.disarm();
    Some(true)
}

/// Gives the program a moment to take what the port has, and then takes it. True when there was something;
/// `None` when the device is no longer ours.
fn take_what_lies(engine: &Engine) -> Option<bool> {
    let begun = engine.now();
    while engine.now().since(begun) < DEFER {
        thread::yield_now();
    }
    let mut state = engine.lock().ok()?;
    let before = state.counters.frames_by_thread;
    state.turn(engine.now(), Driver::Thread);
    Some(state.counters.frames_by_thread != before)
}

/// Sleeps until the port, a wake-up or the time. Whatever woke it, the caller looks at everything again; a
/// failure to sleep only costs time.
fn sleep(wake: &WakeUp, parker: &mut Parker, limit: Duration) -> Option<Woken> {
    let woken = parker.sleep(wake, Some(limit)).ok();
    wake.take();
    woken
}

/// Whether other threads of the process use the CPU.
struct CpuUsage {
    measured_at: Instant,
    others_ns: u64,
    busy: bool,
}

impl CpuUsage {
    fn new() -> Self {
        CpuUsage { measured_at: Instant::ZERO, others_ns: others_cpu_ns(), busy: false }
    }

    /// True when they used more than a quarter of a CPU since the last measurement.
    fn others_are_busy(&mut self, now: Instant) -> bool {
        let span = now.since(self.measured_at);
        if span >= MEASURE_INTERVAL {
            let others_ns = others_cpu_ns();
            self.busy = others_ns.saturating_sub(self.others_ns) > span.as_ns() / 4;
            self.others_ns = others_ns;
            self.measured_at = now;
        }
        self.busy
    }
}

fn others_cpu_ns() -> u64 {
    fn read(clock: libc::clockid_t) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a valid timespec to write to.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
    read(libc::CLOCK_PROCESS_CPUTIME_ID).saturating_sub(read(libc::CLOCK_THREAD_CPUTIME_ID))
}
