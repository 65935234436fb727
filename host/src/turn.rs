//! One turn of a node: receive from its ports, handle deadlines, transmit; and the two halves of a
//! turn for loops that do other work between them.

use longhaul_node::{Deadline, Frame, FrameBuf, Node, Side, TRAILER_MAX, Transmit};
use longhaul_port::{Port, PortError, Received};
use longhaul_units::{Duration, Instant};
use longhaul_wire::Head;

/// Maximum number of ports per node.
pub const PORTS_MAX: usize = 192;

/// Ports per word of a set.
const WORD: usize = u64::BITS as usize;

/// A set of a node's ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PortSet([u64; PORTS_MAX / WORD]);

impl PortSet {
    pub(crate) fn first(count: usize) -> Self {
        assert!(count <= PORTS_MAX, "{count} ports");
        PortSet(std::array::from_fn(|word| match count.saturating_sub(word * WORD) {
            whole if whole >= WORD => u64::MAX,
            part => (1 << part) - 1,
        }))
    }

    pub(crate) fn insert(&mut self, side: Side) {
        self.0[side / WORD] |= 1 << (side % WORD);
    }

    pub(crate) fn union(self, other: PortSet) -> Self {
        PortSet(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// The sides in the set, ascending.
    fn sides(self) -> impl Iterator<Item = Side> {
        self.0.into_iter().enumerate().flat_map(|(word, mut rest)| {
            std::iter::from_fn(move || {
                let lowest = (rest != 0).then(|| rest.trailing_zeros() as Side)?;
                rest &= rest - 1;
                Some(word * WORD + lowest)
            })
        })
    }
}

/// Handling of received frames that claim to be RoCEv2 and are malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MalformedFrames {
    /// Dropped and counted: for a node at which packets end.
    #[default]
    Drop,
    /// Passed to the node as an opaque frame and counted: for a node that forwards all frames.
    Carry,
}

/// How much a node may send to a port in one turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TransmitLimit {
    /// As many frames as there were free slots when the node first asked, which bounds the delay of
    /// other ports.
    #[default]
    RoomAtFirst,
    /// As many frames as the port accepts: free slots are counted again when they are used up.
    UntilFull,
}

/// Bounds and rules of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TurnConfig {
    /// Frames received from each port before the node sends, at least 1. A larger batch costs less
    /// per frame and delays the other ports.
    pub receive_batch: usize,
    /// Handling of malformed frames.
    pub malformed: MalformedFrames,
    /// Limit on the frames sent to each port.
    pub transmit: TransmitLimit,
}

impl TurnConfig {
    /// The usual turn of a node at which packets end.
    pub const DEFAULT: TurnConfig = TurnConfig {
        receive_batch: 64,
        malformed: MalformedFrames::Drop,
        transmit: TransmitLimit::RoomAtFirst,
    };
}

impl Default for TurnConfig {
    fn default() -> Self {
        TurnConfig::DEFAULT
    }
}

/// Result of a turn, or of one half of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Turn {
    /// When the node was asked for frames to send.
    pub now: Instant,
    /// Frames received from the ports, including malformed ones.
    pub received: usize,
    /// Malformed RoCEv2 frames.
    pub malformed: usize,
    /// Frames given to the ports.
    pub transmitted: usize,
    /// Frames that a port refused: too long, or sent without room.
    pub refused: usize,
    /// A port had no room, so the node may have more to send. No deadline says when there will be
    /// room.
    pub is_blocked: bool,
    /// Lateness of the node's deadline, if one was due.
    pub lateness: Option<Duration>,
    /// The node's next deadline.
    pub deadline: Option<Deadline>,
}

impl Turn {
    /// True if the turn received or sent a frame, or met a deadline.
    pub fn is_busy(&self) -> bool {
        self.received + self.transmitted > 0 || self.lateness.is_some()
    }
}

/// Takes one bounded step: services each port and receives a batch from it, meets the node's
/// deadline if it is due, lets the node send, and flushes. Port `i` is the node's side `i`.
///
/// `clock` is read once per batch, after the port has returned frames and before the node handles
/// them, so that no frame arrives before it was sent; and once more before the node sends.
///
/// Headers are copied before they are parsed, because a peer that shares the memory may change
/// them. The node, or the sending port, copies the payload. A lent frame is not copied: the node
/// may keep it, and some ports send it by reference. A port's error goes to `report`; the other
/// ports and the node continue.
///
/// # Panics
/// With more than [`PORTS_MAX`] ports.
#[inline]
pub fn turn<N: Node + ?Sized, P: Port>(
    node: &mut N,
    ports: &mut [P],
    clock: &impl Fn() -> Instant,
    config: &TurnConfig,
    report: &mut dyn FnMut(Side, PortError),
) -> Turn {
    let all = PortSet::first(ports.len());
    poll_ports(node, ports, all, clock, config, &mut None, report).0
}

/// As [`turn`], but services and receives only from the ports in `polled`; the node sends to all.
/// Also returns the ports that frames came from. `node_time` is the latest time passed to the node,
/// and is updated. With it, a [stamped](Received::Stamped) frame arrives at the later of its stamp
/// and `node_time`.
#[inline]
pub(crate) fn poll_ports<N: Node + ?Sized, P: Port>(
    node: &mut N,
    ports: &mut [P],
    polled: PortSet,
    clock: &impl Fn() -> Instant,
    config: &TurnConfig,
    node_time: &mut Option<Instant>,
    report: &mut dyn FnMut(Side, PortError),
) -> (Turn, PortSet) {
    let mut done = Turn::default();
    let mut sources = PortSet::default();
    // Deadlines that received frames change are read after transmission.
    let due = node.poll_timeout();
    for side in polled.sides() {
        let port = &mut ports[side];
        if let Err(error) = port.service() {
            report(side, error);
        }
        let before = done.received;
        if let Err(error) = receive_at(node, side, port, clock, config, node_time, &mut done) {
            report(side, error);
        }
        if done.received > before {
            sources.insert(side);
        }
    }
    let now = clock();
    done.now = now;
    if let Some(node_time) = node_time {
        *node_time = now;
    }
    if let Some(due) = due
        && due.at <= now
    {
        node.handle_timeout(now);
        done.lateness = Some(now.since(due.at));
    }
    transmit_to::<PORTS_MAX, _, _>(node, ports, config, report, &mut done);
    done.deadline = node.poll_timeout();
    (done, sources)
}

/// The receiving half of a turn: passes a batch of frames from `port` to side `side` of `node`, all
/// at `now`. Adds to `done` even if it returns an error.
///
/// # Errors
/// The port's error. Frames received before it have been passed on.
#[inline]
pub fn receive<N: Node + ?Sized, P: Port>(
    node: &mut N,
    side: Side,
    port: &mut P,
    now: Instant,
    config: &TurnConfig,
    done: &mut Turn,
) -> Result<(), PortError> {
    receive_at(node, side, port, &|| now, config, &mut None, done)
}

/// The transmitting half of a turn of a node with one port: lets `node` send at `done.now`, and
/// flushes.
#[inline]
pub fn transmit<N: Node + ?Sized, P: Port>(
    node: &mut N,
    port: &mut P,
    config: &TurnConfig,
    report: &mut dyn FnMut(Side, PortError),
    done: &mut Turn,
) {
    transmit_to::<1, _, _>(node, std::slice::from_mut(port), config, report, done);
}

#[inline]
fn receive_at<N: Node + ?Sized, P: Port>(
    node: &mut N,
    side: Side,
    port: &mut P,
    clock: &impl Fn() -> Instant,
    config: &TurnConfig,
    node_time: &mut Option<Instant>,
    done: &mut Turn,
) -> Result<(), PortError> {
    let (mut received, mut malformed, mut arrived) = (0, 0, None);
    let carries = config.malformed == MalformedFrames::Carry;
    let mut hand_over = |age: Option<std::time::Duration>, frame: &Frame<'_>| {
        let now = *arrived.get_or_insert_with(clock);
        let at = match (age, node_time.as_mut()) {
            (Some(age), Some(node_time)) => before(now, age).max(*node_time),
            _ => now,
        };
        if let Some(node_time) = node_time {
            *node_time = at;
        }
        node.handle_frame(at, side, frame);
    };
    // A parsed frame is not moved: loads that span several recent stores stall.
    let outcome = port.receive_lent(config.receive_batch.max(1), &mut |given| {
        received += 1;
        let (bytes, age) = match given {
            Received::Lent(lease) => match Frame::lent(lease) {
                Ok(ref frame) => return hand_over(None, frame),
                Err(_) => {
                    malformed += 1;
                    if carries {
                        hand_over(None, &Frame::lent_opaque(lease));
                    }
                    return;
                }
            },
            Received::Passing(bytes) => (bytes, None),
            Received::Stamped(bytes, age) => (bytes, Some(age)),
        };
        let head = Head::copy_of(bytes);
        match Frame::received(&head, bytes) {
            Ok(ref frame) => return hand_over(age, frame),
            Err(_) if carries => hand_over(age, &Frame::received_opaque(&head, bytes)),
            Err(_) => {}
        }
        malformed += 1;
    });
    // A port that hands frames over to another core has received more than it delivered here.
    done.received += outcome.as_ref().map_or(received, |taken| received.max(*taken));
    done.malformed += malformed;
    outcome.map(|_| ())
}

/// `now - age`.
fn before(now: Instant, age: std::time::Duration) -> Instant {
    let age = Duration::from_ns(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
    Instant::from_ps(now.as_ps().saturating_sub(age.as_ps()))
}

/// `PORTS` is at least the number of ports.
#[inline]
fn transmit_to<const PORTS: usize, N: Node + ?Sized, P: Port>(
    node: &mut N,
    ports: &mut [P],
    config: &TurnConfig,
    report: &mut dyn FnMut(Side, PortError),
    done: &mut Turn,
) {
    let now = done.now;
    let mut outlet = Outlet {
        ports,
        room: [UNASKED; PORTS],
        used_up: match config.transmit {
            TransmitLimit::RoomAtFirst => 0,
            TransmitLimit::UntilFull => UNASKED,
        },
        written: PortSet::default(),
        report,
        done,
    };
    node.poll_transmit(now, &mut outlet);
    for side in outlet.written.sides() {
        if let Err(error) = ports[side].flush() {
            report(side, error);
        }
    }
}

/// The port is asked for its room when the node next wants it.
const UNASKED: u16 = u16::MAX;

/// Writes frames straight into the ports' slots.
struct Outlet<'a, P, const PORTS: usize> {
    ports: &'a mut [P],
    /// Free slots of each port, or [`UNASKED`].
    room: [u16; PORTS],
    /// Value of `room` once the slots are used up.
    used_up: u16,
    /// Ports with unflushed frames.
    written: PortSet,
    report: &'a mut dyn FnMut(Side, PortError),
    done: &'a mut Turn,
}

impl<P: Port, const PORTS: usize> Transmit for Outlet<'_, P, PORTS> {
    #[inline]
    fn room(&mut self, side: Side) -> usize {
        if self.room[side] == UNASKED {
            self.room[side] =
                u16::try_from(self.ports[side].transmit_room()).unwrap_or(UNASKED - 1);
        }
        self.done.is_blocked |= self.room[side] == 0;
        self.room[side] as usize
    }

    #[inline]
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        let sent = match frame.pieces(&mut [0; TRAILER_MAX]) {
            Some(pieces) => self.ports[side].transmit_pieces(&pieces),
            None => self.ports[side].transmit(frame.len(), &mut |slot| frame.write_to(slot)),
        };
        self.count(side, sent);
    }

    #[inline]
    fn transmit_held(&mut self, side: Side, held: &FrameBuf) {
        match held.lease() {
            Some(lease) => {
                let sent = self.ports[side].transmit_lent(lease);
                self.count(side, sent);
            }
            None => self.transmit(side, &held.as_frame()),
        }
    }
}

impl<P: Port, const PORTS: usize> Outlet<'_, P, PORTS> {
    #[inline]
    fn count(&mut self, side: Side, sent: Result<bool, PortError>) {
        match sent {
            Ok(true) => {
                self.done.transmitted += 1;
                self.written.insert(side);
                self.room[side] = match self.room[side] {
                    0 => 0,
                    1 => self.used_up,
                    UNASKED => UNASKED,
                    room => room - 1,
                };
            }
            Ok(false) => self.done.refused += 1,
            Err(error) => {
                self.done.refused += 1;
                (self.report)(side, error);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use longhaul_port::{LoopbackPort, forward_port, loopback};

    #[test]
    fn a_set_has_the_ports_that_it_was_given() {
        for count in [0, 1, 63, 64, 65, 128, 191, PORTS_MAX] {
            assert!(PortSet::first(count).sides().eq(0..count), "{count} ports");
        }
        let mut set = PortSet::default();
        for side in [191, 64, 0, 127] {
            set.insert(side);
        }
        assert!(set.union(PortSet::first(2)).sides().eq([0, 1, 64, 127, 191]));
    }

    /// When frames arrived.
    #[derive(Default)]
    struct Arrivals(Vec<u64>);

    impl Node for Arrivals {
        fn handle_frame(&mut self, now: Instant, _side: Side, _frame: &Frame<'_>) {
            self.0.push(now.as_ns());
        }
        fn handle_timeout(&mut self, _now: Instant) {}
        fn poll_transmit(&mut self, _now: Instant, _out: &mut dyn Transmit) {}
        fn poll_timeout(&self) -> Option<Deadline> {
            None
        }
    }

    /// Each frame carries its age in µs; 0: it has no stamp.
    struct Stamping(LoopbackPort);

    impl Port for Stamping {
        fn receive_lent(
            &mut self,
            max: usize,
            each: &mut dyn FnMut(Received<'_>),
        ) -> Result<usize, PortError> {
            self.0.receive(max, &mut |bytes| {
                let age = std::time::Duration::from_micros(bytes[20].into());
                each(if age.is_zero() {
                    Received::Passing(bytes)
                } else {
                    Received::Stamped(bytes, age)
                });
            })
        }

        forward_port!(
            |self| self.0 => receive, transmit_room, transmit, flush, arm, disarm, descriptors
        );
        forward_port!(|self| self.0 => service, link_state, capabilities, counters);
    }

    /// The times that a node sees in a turn at `now`, of frames with these ages in µs, and its
    /// latest time.
    fn arrivals(now_us: u64, told_us: Option<u64>, ages_us: &[u8]) -> (Vec<u64>, Option<u64>) {
        let (mut outside, inside) = loopback::pair("stamped", 16, 64).unwrap();
        for age in ages_us {
            assert!(
                outside
                    .transmit(60, &mut |slot| {
                        slot.fill(0);
                        slot[20] = *age;
                    })
                    .unwrap()
            );
        }
        outside.flush().unwrap();
        let mut node = Arrivals::default();
        let mut node_time = told_us.map(|us| Instant::from_ns(us * 1000));
        let (done, _) = poll_ports(
            &mut node,
            &mut [Stamping(inside)],
            PortSet::first(1),
            &|| Instant::from_ns(now_us * 1000),
            &TurnConfig::default(),
            &mut node_time,
            &mut |_, error| panic!("{error}"),
        );
        assert_eq!(done.received, ages_us.len());
        (node.0.iter().map(|ns| ns / 1000).collect(), node_time.map(|at| at.as_ns() / 1000))
    }

    #[test]
    fn a_stamped_frame_arrives_when_it_did() {
        assert_eq!(arrivals(100, Some(10), &[30, 20, 5, 0]), (vec![70, 80, 95, 100], Some(100)));
    }

    #[test]
    fn a_node_never_hears_of_an_earlier_moment_than_before() {
        assert_eq!(
            arrivals(100, Some(90), &[30, 5, 20, 0, 1]),
            (vec![90, 95, 95, 100, 100], Some(100))
        );
        assert_eq!(arrivals(5, Some(0), &[200]), (vec![0], Some(5)), "older than the clock");
    }

    #[test]
    fn stamps_do_not_count_for_who_does_not_know_what_the_node_was_told() {
        assert_eq!(arrivals(100, None, &[30, 0]), (vec![100, 100], None));
    }
}
