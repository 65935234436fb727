//! Thread that drives a node over its ports until it is told to stop.

use crate::turn::{PortSet, poll_ports};
use crate::{Clock, Parker, Turn, TurnConfig, WakeUp};
use longhaul_node::{Node, Side};
use longhaul_port::{LinkState, Port, PortError};
use longhaul_units::{Duration, Instant};
use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use thiserror::Error;

/// Capacity of the request queue; a caller blocks while it is full.
const REQUESTS_MAX: usize = 64;

/// Interval at which ports without a peer are polled while others are busy: a poll costs about as
/// much as a frame.
const LOOK_AROUND: Duration = Duration::from_ms(1);

/// Polling, yielding and sleeping of a [`Driver`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverConfig {
    /// Bounds and rules of each turn.
    pub turn: TurnConfig,
    /// Busy-poll time after the last busy turn, before the driver sleeps. A longer time reacts
    /// faster and takes more of a shared processor; the driver yields between polls.
    pub idle_before_sleep: Duration,
    /// A deadline nearer than this is busy-polled for; a sleep before a later one ends half of it
    /// early. About twice what the system takes to wake a thread.
    pub sleep_min: Duration,
    /// Longest sleep while a port is full: nothing signals that there is room again.
    pub blocked_sleep: Duration,
    /// A turn that moved fewer frames than this yields the processor, so that frames collect into
    /// batches when processors are short. 0: only idle turns yield.
    pub yield_below: usize,
    /// The longest time between two calls of [`Hook::attend`].
    pub hook_interval: Duration,
    /// The driver neither sleeps nor yields: for a dedicated processor, where a deadline is met
    /// within a turn.
    pub spins: bool,
}

impl Default for DriverConfig {
    fn default() -> Self {
        DriverConfig {
            turn: TurnConfig::default(),
            idle_before_sleep: Duration::from_us(50),
            sleep_min: Duration::from_us(50),
            blocked_sleep: Duration::from_us(50),
            yield_below: 0,
            hook_interval: Duration::from_ms(50),
            spins: false,
        }
    }
}

/// Counters of a driver since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriverCounters {
    /// Turns taken.
    pub turns: u64,
    /// Turns in which nothing happened.
    pub idle_turns: u64,
    /// Sleeps.
    pub sleeps: u64,
    /// Turns after which a port had no room left.
    pub blocked_turns: u64,
    /// Frames received from the ports.
    pub received_frames: u64,
    /// Malformed RoCEv2 frames.
    pub malformed_frames: u64,
    /// Frames given to the ports.
    pub transmitted_frames: u64,
    /// Frames that a port refused.
    pub refused_frames: u64,
    /// Port errors; [`Hook::port_error`] got each.
    pub port_errors: u64,
    /// Maximum lateness of a deadline of the node.
    pub lateness_max: Duration,
}

impl DriverCounters {
    fn count(&mut self, done: &Turn) {
        self.turns += 1;
        self.idle_turns += u64::from(!done.is_busy());
        self.blocked_turns += u64::from(done.is_blocked);
        self.received_frames += done.received as u64;
        self.malformed_frames += done.malformed as u64;
        self.transmitted_frames += done.transmitted as u64;
        self.refused_frames += done.refused as u64;
        self.lateness_max = self.lateness_max.max(done.lateness.unwrap_or_default());
    }
}

/// Work of the driver's owner on the driver's thread. A closure implements [`Hook::attend`] alone.
pub trait Hook<N, P> {
    /// Called at least every [`DriverConfig::hook_interval`], when a link has come up or gone down,
    /// and once before the driver ends: to publish state. Frames wait until it returns.
    fn attend(&mut self, now: Instant, node: &mut N, ports: &mut [P], counters: &DriverCounters);

    /// The port at `side` failed. It stays in use: a peer that broke the rules is disconnected, and
    /// another may connect.
    fn port_error(&mut self, side: Side, error: PortError) {
        let _ = (side, error);
    }
}

impl<N, P, F: FnMut(Instant, &mut N, &mut [P], &DriverCounters)> Hook<N, P> for F {
    fn attend(&mut self, now: Instant, node: &mut N, ports: &mut [P], counters: &DriverCounters) {
        self(now, node, ports, counters);
    }
}

type Request<N> = Box<dyn FnOnce(Instant, &mut N) + Send>;

/// State that a [`Driver`] and its handles share.
struct DriverShared {
    must_stop: AtomicBool,
    must_attend: AtomicBool,
    wake: WakeUp,
}

/// Handle to a [`Driver`] for other threads; clones refer to the same driver.
pub struct Handle<N> {
    shared: Arc<DriverShared>,
    requests: SyncSender<Request<N>>,
}

impl<N> Clone for Handle<N> {
    fn clone(&self) -> Self {
        Handle { shared: Arc::clone(&self.shared), requests: self.requests.clone() }
    }
}

/// The driver has stopped, possibly before it ran the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the frame loop has stopped")]
pub struct Stopped;

impl<N> Handle<N> {
    /// Asks the driver to stop after its current turn, and does not wait for it.
    pub fn stop(&self) {
        self.shared.must_stop.store(true, Ordering::Release);
        self.shared.wake.wake();
    }

    /// Has [`Hook::attend`] called before the next turn, and does not wait for it.
    pub fn call_hook(&self) {
        self.shared.must_attend.store(true, Ordering::Release);
        self.shared.wake.wake();
    }

    /// The wake-up that ends the driver's sleep.
    pub fn wake_up(&self) -> &WakeUp {
        &self.shared.wake
    }

    /// Queues `work` to run on the node between two turns, and does not wait for it. The next turn
    /// sends the resulting frames.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn request(
        &self,
        work: impl FnOnce(Instant, &mut N) + Send + 'static,
    ) -> Result<(), Stopped> {
        self.requests.send(Box::new(work)).map_err(|_| Stopped)?;
        self.shared.wake.wake();
        Ok(())
    }

    /// Runs `work` on the node between two turns and returns its result. Deadlocks on the driver's
    /// own thread.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn ask<R: Send + 'static>(
        &self,
        work: impl FnOnce(Instant, &mut N) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let (answer, answered) = sync_channel(1);
        // A caller that is gone needs no answer.
        self.request(move |now, node| drop(answer.send(work(now, node))))?;
        answered.recv().map_err(|_| Stopped)
    }
}

/// Drives one node over its ports until it is stopped.
pub struct Driver<N, P> {
    node: N,
    ports: Vec<P>,
    config: DriverConfig,
    clock: Clock,
    parker: Parker,
    shared: Arc<DriverShared>,
    requests: Receiver<Request<N>>,
    counters: DriverCounters,
    /// Ports that had a peer, or frames, when all were last polled.
    live: PortSet,
    /// Ports whose link was up then.
    up: PortSet,
    /// When the hook is called again.
    hook_due: Instant,
    /// The latest time passed to the node.
    node_time: Instant,
    /// When all ports are polled again: at once after a sleep, because any port may have ended it.
    look_around_at: Instant,
}

/// Parts of a driver that has stopped.
pub struct Finished<N, P> {
    /// The node.
    pub node: N,
    /// The ports, flushed and in polling mode.
    pub ports: Vec<P>,
    /// The driver's counters.
    pub counters: DriverCounters,
}

impl<N: Node, P: Port> Driver<N, P> {
    /// A driver that has not started, and its handle. Port `i` is the node's side `i`. `clock`
    /// supplies `now`.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn new(
        node: N,
        ports: Vec<P>,
        clock: Clock,
        config: DriverConfig,
    ) -> io::Result<(Self, Handle<N>)> {
        let shared = Arc::new(DriverShared {
            must_stop: AtomicBool::new(false),
            must_attend: AtomicBool::new(false),
            wake: WakeUp::new()?,
        });
        let (sender, requests) = sync_channel(REQUESTS_MAX);
        let handle = Handle { shared: Arc::clone(&shared), requests: sender };
        let counters = DriverCounters::default();
        let parker = Parker::new();
        let driver = Driver {
            live: PortSet::first(ports.len()),
            up: PortSet::default(),
            hook_due: Instant::ZERO,
            node_time: Instant::ZERO,
            look_around_at: Instant::ZERO,
            node,
            ports,
            config,
            clock,
            parker,
            shared,
            requests,
            counters,
        };
        Ok((driver, handle))
    }

    /// The ports, which are not in use yet.
    pub fn ports_mut(&mut self) -> &mut [P] {
        &mut self.ports
    }

    /// Runs on the calling thread until [`Handle::stop`].
    pub fn run(mut self, mut hook: impl Hook<N, P>) -> Finished<N, P> {
        let slack = FineTimers::new();
        let mut now = self.clock.now();
        let mut last_busy = now;
        self.hook_due = now;
        while !self.shared.must_stop.load(Ordering::Acquire) {
            if self.shared.wake.take() {
                self.node_time = now;
                self.run_requests(now);
                last_busy = now;
                if self.shared.must_attend.swap(false, Ordering::AcqRel) {
                    self.hook_due = now;
                }
            }
            if now >= self.hook_due {
                self.node_time = now;
                hook.attend(now, &mut self.node, &mut self.ports, &self.counters);
                self.hook_due = now + self.config.hook_interval;
            }
            let done = self.turn(now, &mut hook);
            now = done.now;
            if done.is_busy() {
                last_busy = now;
                if done.received + done.transmitted < self.config.yield_below && !self.config.spins
                {
                    std::thread::yield_now();
                }
            } else if self.config.spins {
                std::hint::spin_loop();
            } else {
                self.wait(last_busy, &done, &mut hook);
                now = self.clock.now();
            }
        }
        drop(slack);
        hook.attend(self.clock.now(), &mut self.node, &mut self.ports, &self.counters);
        Finished { node: self.node, ports: self.ports, counters: self.counters }
    }

    fn turn(&mut self, now: Instant, hook: &mut impl Hook<N, P>) -> Turn {
        let clock = self.clock;
        let looks_around = now >= self.look_around_at;
        let polled = if looks_around { PortSet::first(self.ports.len()) } else { self.live };
        let errors = &mut self.counters.port_errors;
        let mut report = |side, error| {
            *errors += 1;
            hook.port_error(side, error);
        };
        let (node, ports) = (&mut self.node, &mut self.ports);
        let mut node_time = Some(self.node_time);
        let (done, sources) = poll_ports(
            node,
            ports,
            polled,
            &|| clock.now(),
            &self.config.turn,
            &mut node_time,
            &mut report,
        );
        self.node_time = done.now;
        if looks_around {
            self.look_around_at = now + LOOK_AROUND;
            let mut up = PortSet::default();
            for (side, port) in self.ports.iter().enumerate() {
                if port.link_state() == LinkState::Up {
                    up.insert(side);
                }
            }
            self.live = sources.union(up);
            if up != self.up {
                // A new peer may send frames at once.
                self.up = up;
                self.hook_due = done.now;
            }
        }
        self.counters.count(&done);
        done
    }

    fn run_requests(&mut self, now: Instant) {
        while let Ok(work) = self.requests.try_recv() {
            work(now, &mut self.node);
        }
    }

    /// Yields or sleeps after an idle turn.
    fn wait(&mut self, last_busy: Instant, done: &Turn, hook: &mut impl Hook<N, P>) {
        let now = done.now;
        let until_deadline = done.deadline.map(|deadline| deadline.at.since(now));
        let is_near = until_deadline.is_some_and(|wait| wait < self.config.sleep_min);
        if is_near || now.since(last_busy) < self.config.idle_before_sleep {
            return std::thread::yield_now();
        }
        let mut timeout = self.hook_due.since(now);
        if let Some(wait) = until_deadline {
            timeout = timeout.min(wait - self.config.sleep_min.divided_by(2));
        }
        if done.is_blocked {
            timeout = timeout.min(self.config.blocked_sleep);
        }
        self.counters.sleeps += 1;
        self.look_around_at = now;
        if let Err(error) = self.parker.park(&mut self.ports, &self.shared.wake, Some(timeout)) {
            // The next attempt may fail at once too.
            self.counters.port_errors += 1;
            hook.port_error(self.parker.refused_by(), error);
            std::thread::yield_now();
        }
    }
}

/// Reduces this thread's timer slack until dropped; the system's default wakes it up to 50 µs late.
struct FineTimers(Option<NonZeroU64>);

impl FineTimers {
    fn new() -> Self {
        let before = rustix::thread::current_timer_slack().ok().and_then(NonZeroU64::new);
        // Without permission, the default slack remains.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        FineTimers(before)
    }
}

impl Drop for FineTimers {
    fn drop(&mut self) {
        let _ = rustix::thread::set_current_timer_slack(self.0);
    }
}
