//! State behind the engine's lock: the device, its port, and one bounded turn of the two.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use longhaul_cm::{ConnectionId, ListenId};
use longhaul_host::{TransmitLimit, Turn, TurnConfig, receive, transmit};
use longhaul_node::Node;
use longhaul_port::{LinkState, Port, PortError};
use longhaul_rnic::{CqId, Event, QpEvent, Rnic, SrqId};
use longhaul_units::{Duration, Instant, Qpn};

use crate::connection::{ConnectionSink, Lingering, Listening};
use crate::event_queue::EventQueue;
use crate::memory::ProcessMemory;
use crate::segment::{OnSegment, Search};

/// A batch of received frames bounds the time that one turn holds the lock to tens of microseconds.
const TURN: TurnConfig = TurnConfig { transmit: TransmitLimit::UntilFull, ..TurnConfig::DEFAULT };
/// Interval at which a polling thread services the port's control channel.
const SERVICE_INTERVAL: Duration = Duration::from_ms(1);
/// Length of an unread event queue from which changes of the link are no longer added.
const UNREAD_MAX: usize = 64;

/// An asynchronous event of a device context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// An event of a queue pair.
    Qp {
        /// The cookie that its owner registered.
        cookie: u64,
        /// The event.
        kind: QpEvent,
    },
    /// A shared receive queue fell below its limit.
    SrqLimitReached {
        /// The cookie that its owner registered.
        cookie: u64,
    },
    /// A completion queue overran.
    CqError {
        /// The cookie that its owner registered.
        cookie: u64,
    },
    /// The link of the port came up or went down.
    Port {
        /// Its state.
        is_up: bool,
    },
}

/// Destinations of the events of one completion queue.
#[derive(Clone)]
pub struct CqSinks {
    /// The completion channel, if any.
    pub channel: Option<Arc<EventQueue<u64>>>,
    /// The asynchronous events of the context that owns the queue.
    pub asynchronous: Option<Arc<EventQueue<AsyncEvent>>>,
    /// The owner's cookie of the queue.
    pub cookie: u64,
}

/// Destination of the asynchronous events of one queue pair or shared receive queue.
#[derive(Clone)]
pub struct AsyncSink {
    /// The asynchronous events of the context that owns the object.
    pub asynchronous: Arc<EventQueue<AsyncEvent>>,
    /// The owner's cookie of the object.
    pub cookie: u64,
}

/// Counters of the engine, cumulative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Malformed frames, which did not reach the device.
    pub malformed_frames: u64,
    /// Times that the port failed, or disconnected a peer for a protocol violation.
    pub port_errors: u64,
    /// Frames that the program's own polling took from the port.
    pub frames_by_program: u64,
    /// Frames that the engine thread took from the port.
    pub frames_by_thread: u64,
    /// Times that the engine thread took over from a program that had stopped polling.
    pub takeovers: u64,
}

/// Which side runs a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    Program,
    Thread,
}

/// All state behind the engine's lock.
pub(crate) struct DeviceState {
    pub(crate) rnic: Rnic<ProcessMemory>,
    pub(crate) port: Option<Box<dyn Port>>,
    pub(crate) cqs: HashMap<CqId, CqSinks>,
    pub(crate) qps: HashMap<Qpn, AsyncSink>,
    pub(crate) srqs: HashMap<SrqId, AsyncSink>,
    /// Event queues that receive changes of the link.
    pub(crate) watchers: Vec<Weak<EventQueue<AsyncEvent>>>,
    /// Listeners with their services.
    pub(crate) listeners: HashMap<ListenId, Listening>,
    pub(crate) lingering: Vec<Lingering>,
    /// When `lingering` was last checked.
    pub(crate) lingers_at: Instant,
    pub(crate) connections: HashMap<ConnectionId, ConnectionSink>,
    pub(crate) counters: EngineCounters,
    /// On segment lines, once the port is open.
    pub(crate) on_segment: Option<OnSegment>,
    pub(crate) search: Search,
    /// The transmit ring was full at the last turn. The peer frees slots without an event.
    pub(crate) out_of_room: bool,
    /// The last turn received a full batch: more frames may wait, whose wake-up is consumed.
    pub(crate) frames_may_wait: bool,
    /// The port's interrupts are armed.
    pub(crate) armed: bool,
    /// The engine thread has taken over: it drives, or is parked.
    pub(crate) thread_drives: bool,
    /// End of the engine thread's sleep while it is parked.
    pub(crate) thread_sleeps_until: Option<Instant>,
    /// Consecutive empty polls.
    pub(crate) empty_polls: u32,
    pub(crate) complained: bool,
    /// The port's last error, as reported.
    port_complaint: String,
    /// Message for the first time that the link goes down.
    farewell: Option<String>,
    was_up: bool,
    is_up: bool,
    serviced_at: Instant,
}

impl DeviceState {
    pub(crate) fn new(rnic: Rnic<ProcessMemory>, farewell: Option<String>) -> Self {
        DeviceState {
            rnic,
            port: None,
            cqs: HashMap::new(),
            qps: HashMap::new(),
            srqs: HashMap::new(),
            watchers: Vec::new(),
            listeners: HashMap::new(),
            lingering: Vec::new(),
            lingers_at: Instant::ZERO,
            connections: HashMap::new(),
            counters: EngineCounters::default(),
            on_segment: None,
            search: Search::default(),
            out_of_room: false,
            frames_may_wait: false,
            armed: false,
            thread_drives: false,
            thread_sleeps_until: None,
            empty_polls: 0,
            complained: false,
            port_complaint: String::new(),
            farewell,
            was_up: false,
            is_up: false,
            serviced_at: Instant::ZERO,
        }
    }

    /// Receives, handles what is due, sends, and dispatches events; bounded. Returns the frames
    /// received and sent.
    pub(crate) fn turn(&mut self, now: Instant, driver: Driver) -> usize {
        let received = self.receive(now);
        match driver {
            Driver::Program => self.counters.frames_by_program += received as u64,
            Driver::Thread => self.counters.frames_by_thread += received as u64,
        }
        if self.rnic.poll_timeout().is_some_and(|due| due.at <= now) {
            self.rnic.handle_timeout(now);
        }
        if !self.lingering.is_empty() {
            self.end_lingering(now);
        }
        if self.rnic.neighbours().is_some() {
            self.look_after_segment(now);
        }
        received + self.send(now)
    }

    fn receive(&mut self, now: Instant) -> usize {
        // First, because it consumes wake-ups: frames that arrive after it ring again.
        if now.since(self.serviced_at) >= SERVICE_INTERVAL {
            self.service(now);
        }
        let Self { rnic, port: Some(port), counters, .. } = self else { return 0 };
        let mut done = Turn::default();
        let received = receive(rnic, 0, port, now, &TURN, &mut done);
        counters.malformed_frames += done.malformed as u64;
        self.frames_may_wait = done.received == TURN.receive_batch;
        self.rnic.note_received(done.received, self.frames_may_wait);
        if let Err(error) = received {
            self.note_port_error(&error);
        }
        done.received
    }

    /// Sends what is due and dispatches events. Returns the frames sent.
    pub(crate) fn send(&mut self, now: Instant) -> usize {
        let mut done = Turn { now, ..Turn::default() };
        if let Self { rnic, port: Some(port), .. } = self {
            let mut failed = None;
            let mut report = |_side, error| match error {
                // Lost like any other packet.
                PortError::FrameTooLong { .. } | PortError::FrameTooShort { .. } => {}
                error => failed = Some(error),
            };
            transmit(rnic, port, &TURN, &mut report, &mut done);
            self.out_of_room = done.is_blocked;
            if let Some(error) = failed {
                self.note_port_error(&error);
            }
        }
        self.dispatch();
        done.transmitted
    }

    /// Services the port's control channel.
    pub(crate) fn service(&mut self, now: Instant) -> LinkState {
        self.serviced_at = now;
        let Some(port) = &mut self.port else { return LinkState::Down };
        let link = match port.service() {
            Ok(link) => link,
            Err(error) => {
                let link = port.link_state();
                self.note_port_error(&error);
                link
            }
        };
        let is_up = link == LinkState::Up;
        if is_up != std::mem::replace(&mut self.is_up, is_up) {
            if is_up && let Some(neighbours) = self.rnic.neighbours_mut() {
                neighbours.announce(now);
            }
            self.tell_watchers(is_up);
        }
        if is_up {
            self.was_up = true;
        } else if self.was_up
            && let Some(farewell) = self.farewell.take()
        {
            let reason = self.port.as_ref().and_then(|port| port.last_disconnect());
            let reason = reason.unwrap_or("it went away");
            eprintln!("longhaul: {farewell}: {reason}; the port is down");
        }
        link
    }

    /// Sends a change of the link to the watchers. The first time that it comes up is not an event:
    /// a port counts as active until it is known to be down.
    fn tell_watchers(&mut self, is_up: bool) {
        if !self.was_up && !self.complained {
            return;
        }
        self.watchers.retain(|watcher| {
            let Some(queue) = watcher.upgrade() else { return false };
            if queue.len() < UNREAD_MAX {
                queue.push(AsyncEvent::Port { is_up });
            }
            true
        });
    }

    /// Counts a port error, and reports it unless it repeats the last one.
    fn note_port_error(&mut self, error: &PortError) {
        self.counters.port_errors += 1;
        let complaint = error.to_string();
        if complaint != self.port_complaint {
            eprintln!("longhaul: {complaint}");
            self.port_complaint = complaint;
        }
    }

    /// The link as of the last turn; down while no port is attached.
    pub(crate) fn link(&self) -> LinkState {
        self.port.as_ref().map_or(LinkState::Down, |port| port.link_state())
    }

    /// [`DeviceState::link`] of an attached port.
    pub(crate) fn link_of_port(&self) -> Option<LinkState> {
        self.port.as_ref().map(|port| port.link_state())
    }

    pub(crate) fn disarm(&mut self) {
        if std::mem::take(&mut self.armed)
            && let Some(port) = &mut self.port
        {
            port.disarm();
        }
    }

    /// Passes the device's events to their registered sinks.
    pub(crate) fn dispatch(&mut self) {
        while let Some(event) = self.rnic.poll_event() {
            match event {
                Event::CompletionReady(cq) => {
                    if let Some(CqSinks { channel: Some(channel), cookie, .. }) = self.cqs.get(&cq)
                    {
                        channel.push(*cookie);
                    }
                }
                Event::CqError(cq) => {
                    if let Some(CqSinks { asynchronous: Some(queue), cookie, .. }) =
                        self.cqs.get(&cq)
                    {
                        queue.push(AsyncEvent::CqError { cookie: *cookie });
                    }
                }
                Event::SrqLimitReached(srq) => {
                    if let Some(AsyncSink { asynchronous, cookie }) = self.srqs.get(&srq) {
                        asynchronous.push(AsyncEvent::SrqLimitReached { cookie: *cookie });
                    }
                }
                Event::Cm(event) => self.dispatch_connection(event),
                Event::Qp { qpn, kind } => {
                    if let Some(sink) = self.qps.get(&qpn) {
                        sink.asynchronous.push(AsyncEvent::Qp { cookie: sink.cookie, kind });
                    }
                }
            }
        }
    }
}
