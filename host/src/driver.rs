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

/// Requests that may wait for the driver; a further one waits with its caller.
const REQUESTS_MAX: usize = 64;

/// How often ports without a peer are looked at while there is work for others: a port costs about
/// as much as a frame.
const LOOK_AROUND: Duration = Duration::from_ms(1);

/// How a [`Driver`] spends its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverConfig {
    /// How a turn goes.
    pub turn: TurnConfig,
    /// How long it keeps looking after something last happened, before it sleeps. Longer reacts
    /// faster and takes more of a shared processor; it yields between looks.
    pub idle_before_sleep: Duration,
    /// A deadline nearer than this is busy-polled for; a sleep before a later one ends half of it
    /// early. About twice what the system takes to wake a thread.
    pub sleep_min: Duration,
    /// How long it sleeps at a time when a port is full: nothing tells when there is room again.
    pub blocked_sleep: Duration,
    /// A turn that moved fewer frames than this yields the processor to whoever else wants it, so
    /// that work collects into batches when processors are short. 0: only idle turns yield.
    pub yield_below: usize,
    /// The longest time between two calls of [`Hook::attend`].
    pub hook_interval: Duration,
    /// It neither sleeps nor yields: for a processor that nobody else is to use, where a deadline
    /// is to be met within a turn.
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

/// What a driver did since it was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DriverCounters {
    /// Turns taken.
    pub turns: u64,
    /// Turns in which nothing happened.
    pub idle_turns: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Turns after which a port had no room left.
    pub blocked_turns: u64,
    /// Frames taken from the ports.
    pub received_frames: u64,
    /// Frames that claimed to be RoCEv2 and were not well formed.
    pub malformed_frames: u64,
    /// Frames given to the ports.
    pub transmitted_frames: u64,
    /// Frames that the node sent and no port took.
    pub refused_frames: u64,
    /// Errors that ports met; each was also told to [`Hook::port_error`].
    pub port_errors: u64,
    /// The latest that a deadline of the node was met.
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

/// What the owner of a driver does on the driver's thread. A closure will do for [`Hook::attend`]
/// alone.
pub trait Hook<N, P> {
    /// Called at least every [`DriverConfig::hook_interval`], and once before the driver ends: to
    /// publish state. Whatever it takes, frames wait for.
    fn attend(&mut self, now: Instant, node: &mut N, ports: &mut [P], counters: &DriverCounters);

    /// The port at `side` met an error. It stays in use: a peer that broke the rules is gone, and
    /// another may come.
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
    wake: WakeUp,
}

/// Reaches a [`Driver`] from other threads; clones reach the same one.
pub struct Handle<N> {
    shared: Arc<DriverShared>,
    requests: SyncSender<Request<N>>,
}

impl<N> Clone for Handle<N> {
    fn clone(&self) -> Self {
        Handle { shared: Arc::clone(&self.shared), requests: self.requests.clone() }
    }
}

/// The driver has stopped, or stopped before it got to the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the frame loop has stopped")]
pub struct Stopped;

impl<N> Handle<N> {
    /// Asks the driver to stop after its current turn, and does not wait for it.
    pub fn stop(&self) {
        self.shared.must_stop.store(true, Ordering::Release);
        self.shared.wake.wake();
    }

    /// The wake-up that makes the driver look around.
    pub fn wake_up(&self) -> &WakeUp {
        &self.shared.wake
    }

    /// Has `work` done on the node, between two turns, and does not wait for it. What it makes the
    /// node want to send is sent in the next turn.
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

    /// Has `work` done on the node, between two turns, and waits for its answer. Not to be called
    /// on the driver's own thread.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn ask<R: Send + 'static>(
        &self,
        work: impl FnOnce(Instant, &mut N) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        let (answer, answered) = sync_channel(1);
        // An asker who is gone needs no answer.
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
    /// Ports that had a peer, or frames, when all were last looked at.
    live: PortSet,
    /// The latest moment that the node has heard of.
    node_time: Instant,
    /// When all ports are looked at again: at once after a sleep, which a port may have ended.
    look_around_at: Instant,
}

/// What is left when a driver has stopped.
pub struct Finished<N, P> {
    /// The node as it was.
    pub node: N,
    /// The ports, flushed and in polling mode.
    pub ports: Vec<P>,
    /// What the driver did.
    pub counters: DriverCounters,
}

impl<N: Node, P: Port> Driver<N, P> {
    /// A driver at rest, and the handle to reach it by. Port `i` is the node's side `i`. `clock` is
    /// what `now` is read from.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new(
        node: N,
        ports: Vec<P>,
        clock: Clock,
        config: DriverConfig,
    ) -> io::Result<(Self, Handle<N>)> {
        let shared =
            Arc::new(DriverShared { must_stop: AtomicBool::new(false), wake: WakeUp::new()? });
        let (sender, requests) = sync_channel(REQUESTS_MAX);
        let handle = Handle { shared: Arc::clone(&shared), requests: sender };
        let counters = DriverCounters::default();
        let parker = Parker::new();
        let driver = Driver {
            live: PortSet::first(ports.len()),
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

    /// Runs on the calling thread until [`Handle::stop`].
    pub fn run(mut self, mut hook: impl Hook<N, P>) -> Finished<N, P> {
        let slack = FineTimers::new();
        let mut now = self.clock.now();
        let mut last_busy = now;
        let mut hook_due = now;
        while !self.shared.must_stop.load(Ordering::Acquire) {
            if self.shared.wake.take() {
                self.node_time = now;
                self.run_requests(now);
                last_busy = now;
            }
            if now >= hook_due {
                self.node_time = now;
                hook.attend(now, &mut self.node, &mut self.ports, &self.counters);
                hook_due = now + self.config.hook_interval;
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
                self.wait(last_busy, hook_due, &done, &mut hook);
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
            self.live = sources;
            for (side, port) in self.ports.iter().enumerate() {
                if port.link_state() == LinkState::Up {
                    self.live.insert(side);
                }
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

    /// Yields or sleeps after a turn in which nothing happened.
    fn wait(
        &mut self,
        last_busy: Instant,
        hook_due: Instant,
        done: &Turn,
        hook: &mut impl Hook<N, P>,
    ) {
        let now = done.now;
        let until_deadline = done.deadline.map(|deadline| deadline.at.since(now));
        let is_near = until_deadline.is_some_and(|wait| wait < self.config.sleep_min);
        if is_near || now.since(last_busy) < self.config.idle_before_sleep {
            return std::thread::yield_now();
        }
        let mut timeout = hook_due.since(now);
        if let Some(wait) = until_deadline {
            timeout = timeout.min(wait - self.config.sleep_min.divided_by(2));
        }
        if done.is_blocked {
            timeout = timeout.min(self.config.blocked_sleep);
        }
        self.counters.sleeps += 1;
        self.look_around_at = now;
        if let Err(error) = self.parker.park(&mut self.ports, &self.shared.wake, Some(timeout)) {
            // Not to be met again at once and at full speed.
            self.counters.port_errors += 1;
            hook.port_error(self.parker.refused_by(), error);
            std::thread::yield_now();
        }
    }
}

/// Sleeps of this thread end on time for as long as this lives; the system's default is up to 50 µs
/// late.
struct FineTimers(Option<NonZeroU64>);

impl FineTimers {
    fn new() -> Self {
        let before = rustix::thread::current_timer_slack().ok().and_then(NonZeroU64::new);
        // Where it is not allowed, sleeps are as late as they are.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        FineTimers(before)
    }
}

impl Drop for FineTimers {
    fn drop(&mut self) {
        let _ = rustix::thread::set_current_timer_slack(self.0);
    }
}
