//! Lock-free sharing of one box's ports among several cores.
//!
//! Each core has its own node and one queue of every port. [`Spread`] maps each frame to a core. A
//! frame that arrives at another core's queue, because the device spreads differently, is handed
//! over through a ring: devices affect the speed of the box, but never its output. There is one
//! ring per side and ordered pair of cores, with one writer and one reader.

use crate::alarm::Alarm;
use longhaul_node::Side;
use longhaul_port::{Descriptors, Port, PortError, Received, forward_port};
use longhaul_wire::pair_hash;
use rtrb::{Consumer, Producer, RingBuffer};
use std::io;
use std::sync::Arc;

/// Bytes before a frame in a ring: its length.
const LENGTH_BYTES: usize = size_of::<u32>();

/// Mapping from frames to cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// Both directions of a host pair map to one core ([`pair_hash`]): for nodes with flows.
    ByPair,
    /// All frames of one side map to one core, those of side 0 to the first, those of side 1 to the
    /// second: for nodes that keep the order of a whole direction.
    BySide,
    /// A frame belongs to the core at whose queue it arrives: for ports whose devices all spread
    /// alike by the pair of addresses.
    AsItArrives,
}

impl Spread {
    /// The core, of `cores`, to which a frame from `side` belongs; `None`: the core at which it is.
    #[inline]
    #[must_use]
    pub fn core(self, side: Side, frame: &[u8], cores: usize) -> Option<usize> {
        match self {
            Spread::ByPair => Some(pair_hash(frame) as usize % cores),
            Spread::BySide => Some(side % cores),
            Spread::AsItArrives => None,
        }
    }
}

/// Counters of frames that arrived at the queue of the wrong core, since the port was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HandedOver {
    /// Frames handed over to other cores.
    pub given: u64,
    /// Frames taken over from other cores.
    pub taken: u64,
    /// Frames dropped because the ring to their core was full, or too short for them.
    pub ring_full: u64,
}

/// The sending end of a ring to another core.
struct Outlet {
    ring: Producer<u8>,
    alarm: Arc<Alarm>,
    /// Frames were handed over since the core was last told.
    is_due: bool,
}

/// The receiving end of a ring from another core.
struct Inlet {
    ring: Consumer<u8>,
    /// Length of a frame whose bytes have not arrived yet.
    awaited: Option<usize>,
}

impl Inlet {
    fn has_frames(&self) -> bool {
        self.awaited.is_some() || !self.ring.is_empty()
    }

    /// Hands out up to `max` frames and returns their number. `scratch` is for a frame that wraps
    /// around the end of the ring.
    fn receive(
        &mut self,
        max: usize,
        scratch: &mut [u8],
        each: &mut dyn FnMut(Received<'_>),
    ) -> usize {
        for received in 0..max {
            let length = self.awaited.take().or_else(|| self.length());
            let Some(length) = length else { return received };
            let Ok(frame) = self.ring.read_chunk(length) else {
                self.awaited = Some(length);
                return received;
            };
            match frame.as_slices() {
                (whole, []) => each(Received::Passing(whole)),
                (first, rest) => {
                    let joined = &mut scratch[..length];
                    joined[..first.len()].copy_from_slice(first);
                    joined[first.len()..].copy_from_slice(rest);
                    each(Received::Passing(joined));
                }
            }
            frame.commit_all();
        }
        max
    }

    fn length(&mut self) -> Option<usize> {
        let mut length = [0; LENGTH_BYTES];
        self.ring.pop_entire_slice(&mut length).ok()?;
        Some(u32::from_ne_bytes(length) as usize)
    }
}

/// One core's queue of a port: receives the frames that belong to the core, from its own queue and
/// from the other cores, and sends by its own queue.
///
/// The result of [`Port::receive`] includes frames that were handed over to other cores, since they
/// were work; [`Port::counters`] are those of the queue.
pub struct CorePort<P> {
    queue: P,
    side: Side,
    spread: Spread,
    /// By core; `None` for this one.
    outlets: Vec<Option<Outlet>>,
    inlets: Vec<Inlet>,
    /// The inlet that is read first.
    next: usize,
    /// This core's alarm, which all of its ports share.
    alarm: Arc<Alarm>,
    scratch: Box<[u8]>,
    handed_over: HandedOver,
}

/// Joins the queues of several cores' ports: `queues[core][side]`, the same number of sides for
/// each core. For each side and ordered pair of cores there is a ring of `ring_bytes`, or of two
/// frames of the maximum length if that is more.
///
/// # Errors
/// If the process is out of descriptors.
pub fn join<P: Port>(
    queues: Vec<Vec<P>>,
    spread: Spread,
    ring_bytes: usize,
) -> io::Result<Vec<Vec<CorePort<P>>>> {
    let cores = queues.len();
    let alarms = (0..cores).map(|_| Alarm::new().map(Arc::new)).collect::<io::Result<Vec<_>>>()?;
    let longest = queues.iter().flatten().map(|queue| queue.capabilities().frame_bytes_max).max();
    let longest = longest.unwrap_or_default();
    let ring_bytes = ring_bytes.max(2 * (LENGTH_BYTES + longest));
    let port = |core: usize, side: Side, queue: P| CorePort {
        queue,
        side,
        spread,
        outlets: (0..cores).map(|_| None).collect(),
        inlets: Vec::new(),
        next: 0,
        alarm: Arc::clone(&alarms[core]),
        scratch: vec![0; longest].into(),
        handed_over: HandedOver::default(),
    };
    let of_core = |(core, queues): (usize, Vec<P>)| {
        queues.into_iter().enumerate().map(|(side, queue)| port(core, side, queue)).collect()
    };
    let mut ports: Vec<Vec<CorePort<P>>> = queues.into_iter().enumerate().map(of_core).collect();
    for from in 0..cores {
        for to in (0..cores).filter(|to| *to != from) {
            let Ok([givers, takers]) = ports.get_disjoint_mut([from, to]) else { continue };
            for (giver, taker) in givers.iter_mut().zip(takers) {
                let (producer, consumer) = RingBuffer::new(ring_bytes);
                let alarm = Arc::clone(&taker.alarm);
                giver.outlets[to] = Some(Outlet { ring: producer, alarm, is_due: false });
                taker.inlets.push(Inlet { ring: consumer, awaited: None });
            }
        }
    }
    Ok(ports)
}

impl<P> CorePort<P> {
    /// The core's own queue.
    pub fn queue_mut(&mut self) -> &mut P {
        &mut self.queue
    }

    /// The core's own queue.
    pub fn queue(&self) -> &P {
        &self.queue
    }

    /// Counters of the hand-over.
    pub fn handed_over(&self) -> HandedOver {
        self.handed_over
    }

    /// Receives frames from the other cores.
    fn receive_handed_over(&mut self, max: usize, each: &mut dyn FnMut(Received<'_>)) -> usize {
        let count = self.inlets.len();
        let mut received = 0;
        for at in 0..count {
            let inlet = &mut self.inlets[(self.next + at) % count];
            received += inlet.receive(max - received, &mut self.scratch, each);
        }
        // Rotates, because the inlet that is read last gets only the rest of `max`.
        self.next = (self.next + 1) % count.max(1);
        self.handed_over.taken += received as u64;
        received
    }
}

/// Hands a frame over to another core, or drops and counts it.
fn hand_over(outlet: &mut Outlet, frame: &[u8], counters: &mut HandedOver) {
    let length = (frame.len() as u32).to_ne_bytes();
    // Checked first, so that both parts are written or neither.
    let has_room = outlet.ring.write_chunk_uninit(LENGTH_BYTES + frame.len()).is_ok();
    let is_given = has_room
        && outlet.ring.push_entire_slice(&length).is_ok()
        && outlet.ring.push_entire_slice(frame).is_ok();
    if is_given {
        counters.given += 1;
        outlet.is_due = true;
    } else {
        counters.ring_full += 1;
    }
}

impl<P: Port> Port for CorePort<P> {
    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        self.receive_lent(max, &mut |frame| each(frame.bytes()))
    }

    fn receive_lent(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, PortError> {
        // The queue gets at least half of the batch, and all of it if the other cores hand nothing
        // over.
        let from_others = self.receive_handed_over((max / 2).max(1), each);
        let CorePort { queue, side, spread, outlets, scratch, handed_over, .. } = self;
        let cores = outlets.len();
        let received = queue.receive_lent(max - from_others, &mut |given| {
            let frame = given.bytes();
            let outlet = spread.core(*side, frame, cores).and_then(|core| outlets.get_mut(core));
            match outlet {
                Some(Some(_)) if frame.len() > scratch.len() => handed_over.ring_full += 1,
                Some(Some(outlet)) => hand_over(outlet, frame, handed_over),
                _ => each(given),
            }
        });
        for outlet in self.outlets.iter_mut().flatten() {
            if std::mem::take(&mut outlet.is_due) {
                outlet.alarm.tell();
            }
        }
        received.map(|received| received + from_others)
    }

    fn arm(&mut self) -> Result<bool, PortError> {
        self.alarm.set();
        if self.inlets.iter().any(Inlet::has_frames) {
            return Ok(true);
        }
        self.queue.arm()
    }

    fn disarm(&mut self) {
        // Once for all ports of the core.
        if self.side == 0 {
            self.alarm.unset();
        }
        self.queue.disarm();
    }

    fn descriptors(&self) -> Descriptors {
        self.queue.descriptors().iter().copied().chain([self.alarm.descriptor()]).collect()
    }

    forward_port!(
        |self| self.queue => transmit_room, transmit, transmit_pieces, transmit_lent, flush,
        service, link_state
    );
    forward_port!(|self| self.queue => set_link, last_disconnect, capabilities, counters);
    forward_port!(|self| self.queue => hand_over, give_away, take_charge);

    fn is_at_rest(&mut self) -> bool {
        !self.inlets.iter().any(Inlet::has_frames) && self.queue.is_at_rest()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
