//! The engine thread: it runs the device when the program does not.
//!
//! It is in one of three situations:
//!
//! * **standing by**: the program polls. The port raises no interrupts; the thread sleeps, and
//!   looks now and then whether the program still polls. [`Engine::hand_over`] wakes it at once;
//! * **driving**: it looks for work again and again, and does it unless the program polls just
//!   then;
//! * **parked**: nothing to do; it sleeps until the port's interrupt, the device's next deadline,
//!   or a wake-up by the program.
//!
//! A program may poll now and then only, and watch its memory in between (`ib_write_lat` does).
//! Then the two share the work: what a driving thread finds is left to the program if it has polled
//! since the look before. Whether the program could do without the thread shows only when the
//! thread stands by. Therefore it tries that once per millisecond, first for a moment, then for
//! longer and longer while the program leaves nothing lying.
//!
//! A program that watches its memory never gives its processor away; the thread then keeps off it,
//! see [`Placement`].

use std::sync::{Arc, Weak};
use std::thread;

use longhaul_host::{Parker, WakeUp};
use longhaul_node::Node;
use longhaul_units::{Duration, Instant};

use crate::device_state::Driver;
use crate::engine::Engine;
use crate::error::RdmaError;
use crate::placement::{Placement, current_cpu};

/// How long a thread that begins to stand by sleeps before it looks after the program; twice as
/// long each time.
const STAND_BY_FIRST: Duration = Duration::from_us(10);
/// How long it sleeps at most: what lies in the port when the program stops polling waits for up to
/// twice that.
const STAND_BY_MAX: Duration = Duration::from_us(640);
/// How long a thread drives before it tries to stand by.
const STAND_BY_EVERY: Duration = Duration::from_ms(1);
/// How long the thread looks without finding work before it parks, when work has lately come within
/// that time. To wake it costs the peer and this process together about as much.
const SPIN_LONG: Duration = Duration::from_us(8);
/// And how long when it has not.
const SPIN_SHORT: Duration = Duration::from_us(1);
/// The kernel's timers are too coarse for what is due sooner than this: paced frames, usually.
const DUE_SOON: Duration = Duration::from_us(50);
/// Longest time parked; a net under all other wake-ups.
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

/// What the thread does next.
#[derive(Clone, Copy)]
enum Situation {
    StandingBy,
    Driving,
    Parked,
}

/// What the thread remembers from one situation to the next.
struct Memory {
    parker: Parker,
    placement: Placement,
    /// Polls by the program when last looked at.
    polls: u64,
    /// For how long to stand by before looking after the program.
    stand_by: Duration,
    /// When the thread took over.
    drives_since: Instant,
    /// The program has polled since.
    shares: bool,
    /// The program waits for an event, for all that is known.
    waits: bool,
    /// When the thread last had work or began to look for it.
    idle_since: Instant,
    /// For how long it looks without finding any before it parks.
    spin: Duration,
}

fn run(engine: &Weak<Engine>) {
    // Wake up when asked to, not up to 50 µs later.
    // SAFETY: concerns this thread alone, and takes no pointers.
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

/// Sleeps, and sees whether the program runs the device by itself. `None`, here and below: the
/// device is no longer ours.
fn stand_by(engine: &Engine, memory: &mut Memory) -> Option<Situation> {
    engine.hand_over.stand_by(|wake| sleep(wake, &mut Parker::new(), memory.stand_by));
    let polls = engine.hand_over.polls();
    let polled = polls != std::mem::replace(&mut memory.polls, polls);
    if !engine.hand_over.is_handed_over() {
        if polled {
            memory.stand_by = (memory.stand_by + memory.stand_by).min(STAND_BY_MAX);
            return Some(Situation::StandingBy);
        }
        // In a call that takes long, perhaps.
        if engine.try_lock().ok()?.is_none() {
            return Some(Situation::StandingBy);
        }
    }
    memory.stand_by = STAND_BY_FIRST;
    memory.shares = false;
    memory.drives_since = engine.now();
    Some(Situation::Driving)
}

/// Looks for work until there is none for a while, or until it is time to see whether the program
/// does it all.
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
                // On the program's own processor, giving way and coming back would each take a time
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

/// What a look of the driving thread has found.
enum Found {
    /// As many frames as a turn takes. To give the processor away would leave the rest for a time
    /// slice of each process that wants it.
    Backlog,
    /// Frames received or sent.
    Work,
    /// Nothing yet.
    DueSoon,
    /// Nothing, or what the program is about to take itself.
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
        // While it looks by itself, the peer need not ring.
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

/// Arms the port and sleeps, unless frames wait already.
fn park(engine: &Engine, memory: &mut Memory) -> Option<Situation> {
    let limit;
    {
        let mut state = engine.lock().ok()?;
        // An error takes the link down; the descriptors then tell when the peer is back.
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
    // Would looking for longer have found what woke it?
    let idle = now.since(memory.idle_since);
    memory.spin = if idle < SPIN_LONG { SPIN_LONG } else { SPIN_SHORT };
    Some(Situation::Driving)
}

/// Sleeps until the port, a wake-up or the time. Whatever woke it, the caller looks at everything
/// again; a failure to sleep only costs time.
fn sleep(wake: &WakeUp, parker: &mut Parker, limit: Duration) {
    let _ = parker.sleep(wake, Some(limit));
    wake.take();
}
