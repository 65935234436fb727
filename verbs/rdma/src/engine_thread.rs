//! The engine thread, which drives the device while the program does not.
//!
//! It is in one of three states:
//!
//! * **standing by**: the program polls. The port raises no interrupts; the thread sleeps, and
//!   checks at intervals whether the program still polls. [`Engine::hand_over`] wakes it at once;
//! * **driving**: it polls for work, and does it unless the program is polling too;
//! * **parked**: it is idle, and sleeps until the port's interrupt, the device's next deadline, or
//!   a wake-up by the program.
//!
//! A program may poll only occasionally, and watch its memory in between (`ib_write_lat` does). The
//! two then share the work: a driving thread leaves work to the program if that has polled since
//! the thread's last check. Only standing by shows whether the program needs the thread at all. The
//! thread therefore tries that once per millisecond, first briefly, then for longer while the
//! program leaves no work undone.
//!
//! A program that watches its memory never yields its processor; the thread then avoids that
//! processor, see [`Placement`].

use std::sync::{Arc, Weak};
use std::thread;

use longhaul_host::{Parker, WakeUp};
use longhaul_node::Node;
use longhaul_units::{Duration, Instant};

use crate::device_state::Driver;
use crate::engine::Engine;
use crate::error::RdmaError;
use crate::placement::{Placement, current_cpu};

/// Length of the first sleep of a thread that begins to stand by; each further one is twice as
/// long.
const STAND_BY_FIRST: Duration = Duration::from_us(10);
/// Maximum length of such a sleep: frames in the port when the program stops polling wait for up to
/// twice that.
const STAND_BY_MAX: Duration = Duration::from_us(640);
/// Interval at which a driving thread tries to stand by.
const STAND_BY_EVERY: Duration = Duration::from_ms(1);
/// Time for which the thread polls without finding work before it parks, if work has recently
/// arrived within that time. About the cost of waking it, to the peer and this process together.
const SPIN_LONG: Duration = Duration::from_us(8);
/// The same time otherwise.
const SPIN_SHORT: Duration = Duration::from_us(1);
/// The kernel's timers are too coarse for deadlines closer than this, usually of paced frames.
const DUE_SOON: Duration = Duration::from_us(50);
/// Maximum time parked, a safety net for all other wake-ups.
const PARKED_MAX: Duration = Duration::from_ms(20);
/// Time parked while the transmit ring is full: its reader raises no interrupt.
const PARKED_WITHOUT_ROOM: Duration = Duration::from_us(20);

/// Starts the thread. It ends when the engine is dropped.
pub(crate) fn start(engine: Weak<Engine>) -> Result<(), RdmaError> {
    let spawned = without_signals(|| {
        thread::Builder::new()
            .name("longhaul".to_owned())
            .stack_size(512 * 1024)
            .spawn(move || run(&engine))
    });
    spawned
        .map(drop)
        .map_err(|source| RdmaError::Io { operation: "starting the engine thread", source })
}

/// Runs `spawn` with all signals blocked, which the new thread inherits: the program's handlers run
/// on the program's threads.
pub(crate) fn without_signals<R>(spawn: impl FnOnce() -> R) -> R {
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

/// The thread's next state.
#[derive(Clone, Copy)]
enum Situation {
    StandingBy,
    Driving,
    Parked,
}

/// State that the thread keeps between situations.
struct Memory {
    parker: Parker,
    placement: Placement,
    /// The program's polls at the last check.
    polls: u64,
    /// Time to stand by before the next check of the program.
    stand_by: Duration,
    /// When the thread took over.
    drives_since: Instant,
    /// The program has polled since.
    shares: bool,
    /// The program probably waits for an event.
    waits: bool,
    /// When the thread last had work or began to poll for it.
    idle_since: Instant,
    /// Time for which it polls without finding work before it parks.
    spin: Duration,
}

fn run(engine: &Weak<Engine>) {
    // Wake up on time, not up to 50 µs later. SAFETY: affects only this thread, and takes no
    // pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
    let mut memory = Memory {
        parker: Parker::new(),
        placement: Placement::new(),
        polls: 0,
        stand_by: STAND_BY_FIRST,
        drives_since: Instant::ZERO,
        shares: false,
        waits: false,
        idle_since: Instant::ZERO,
        spin: SPIN_LONG,
    };
    let mut situation = Situation::StandingBy;
    while let Some(engine) = engine.upgrade() {
        if engine.stopping() {
            return;
        }
        engine.keep_counters();
        let next = match situation {
            Situation::StandingBy => stand_by(&engine, &mut memory),
            Situation::Driving => drive(&engine, &mut memory),
            Situation::Parked => park(&engine, &mut memory),
        };
        situation = match next {
            Some(next) => next,
            None => return,
        };
    }
}

/// Sleeps, and checks whether the program drives the device alone. `None`, here and below: the
/// device belongs to another process.
fn stand_by(engine: &Engine, memory: &mut Memory) -> Option<Situation> {
    engine.hand_over.stand_by(|wake| sleep(wake, &mut Parker::new(), memory.stand_by));
    let polls = engine.hand_over.polls();
    let polled = polls != std::mem::replace(&mut memory.polls, polls);
    if !engine.hand_over.is_handed_over() {
        if polled {
            memory.stand_by = (memory.stand_by + memory.stand_by).min(STAND_BY_MAX);
            return Some(Situation::StandingBy);
        }
        // It may be in a long call.
        if engine.try_lock().ok()?.is_none() {
            return Some(Situation::StandingBy);
        }
    }
    memory.stand_by = STAND_BY_FIRST;
    memory.shares = false;
    memory.drives_since = engine.now();
    Some(Situation::Driving)
}

/// Polls for work until there is none for a while, or until it is time to check whether the program
/// does all of it.
fn drive(engine: &Arc<Engine>, memory: &mut Memory) -> Option<Situation> {
    memory.idle_since = engine.now();
    loop {
        engine.keep_counters();
        if engine.stopping() || Arc::strong_count(engine) == 1 {
            return Some(Situation::Parked);
        }
        let now = engine.now();
        if memory.shares && !memory.waits && now.since(memory.drives_since) >= STAND_BY_EVERY {
            let mut state = engine.lock().ok()?;
            state.thread_drives = false;
            state.disarm();
            return Some(Situation::StandingBy);
        }
        match look(engine, memory, now)? {
            Found::Backlog => {
                memory.idle_since = now;
                continue;
            }
            Found::Work => memory.idle_since = now,
            Found::DueSoon => {}
            Found::Nothing => {
                // On the program's own processor, yielding and returning would each cost a time
                // slice.
                let shares_cpu = !memory.waits && engine.hand_over.polled_on() == current_cpu();
                if shares_cpu || now.since(memory.idle_since) >= memory.spin {
                    return Some(Situation::Parked);
                }
            }
        }
        thread::yield_now();
    }
}

/// Result of one poll by the driving thread.
enum Found {
    /// As many frames as a turn takes. Yielding the processor would leave the rest for a time slice
    /// of each process that wants it.
    Backlog,
    /// Frames received or sent.
    Work,
    /// No work, but a deadline is near.
    DueSoon,
    /// No work, or only work that the program is about to do.
    Nothing,
}

fn look(engine: &Engine, memory: &mut Memory, now: Instant) -> Option<Found> {
    let polls = engine.hand_over.polls();
    let polled = polls != std::mem::replace(&mut memory.polls, polls);
    if engine.hand_over.take_over() {
        memory.waits = true;
        memory.placement.lift();
    } else if polled {
        memory.waits = false;
        memory.shares = true;
        return Some(Found::Nothing);
    }
    let Some(mut state) = engine.try_lock().ok()? else { return Some(Found::Nothing) };
    if !std::mem::replace(&mut state.thread_drives, true) {
        state.counters.takeovers += 1;
    }
    if state.turn(now, Driver::Thread) > 0 {
        // While it polls, the peer need not ring.
        state.disarm();
        let found = if state.frames_may_wait { Found::Backlog } else { Found::Work };
        drop(state);
        if !memory.waits {
            memory.placement.keep_off(engine.hand_over.polled_on(), now);
        }
        return Some(found);
    }
    let due_soon =
        state.out_of_room || state.rnic.poll_timeout().is_some_and(|due| due.at < now + DUE_SOON);
    Some(if due_soon { Found::DueSoon } else { Found::Nothing })
}

/// Arms the port and sleeps, unless frames already wait.
fn park(engine: &Engine, memory: &mut Memory) -> Option<Situation> {
    let limit;
    {
        let mut state = engine.lock().ok()?;
        // An error takes the link down; the descriptors become readable when the peer is back.
        let frames_wait = memory.parker.arm(state.port.as_mut_slice()).unwrap_or(false);
        state.armed = !frames_wait && state.port.is_some();
        if frames_wait {
            return Some(Situation::Driving);
        }
        let now = engine.now();
        let due = state.rnic.poll_timeout().map(|due| due.at.since(now));
        let net = if state.out_of_room { PARKED_WITHOUT_ROOM } else { PARKED_MAX };
        limit = due.map_or(net, |due| due.min(net));
        state.thread_sleeps_until = Some(now + limit);
    }
    sleep(engine.hand_over.wake(), &mut memory.parker, limit);
    let mut state = engine.lock().ok()?;
    state.thread_sleeps_until = None;
    let now = engine.now();
    state.service(now);
    // Whether polling for longer would have found the work that woke it.
    let idle = now.since(memory.idle_since);
    memory.spin = if idle < SPIN_LONG { SPIN_LONG } else { SPIN_SHORT };
    Some(Situation::Driving)
}

/// Sleeps until the port, a wake-up or the timeout. The caller checks everything after any wake-up;
/// a failure to sleep only costs time.
fn sleep(wake: &WakeUp, parker: &mut Parker, limit: Duration) {
    let _ = parker.sleep(wake, Some(limit));
    wake.take();
}
