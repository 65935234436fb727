//! A device of DPDK's as a [`Port`].

use crate::config::{AROUND_MTU, DpdkConfig};
use crate::device::{Device, owns_frames};
use crate::eal;
use crate::error::DpdkError;
use crate::frames::{Burst, Outgoing};
use crate::lent::LentBuffers;
use longhaul_port::{
    Descriptors, DropReason, FRAME_BYTES_MIN, Lease, LinkState, Port, PortCapabilities,
    PortCounters, PortError, Received, check_length,
};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the device is asked whether its link is up.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A queue that takes nothing for so long has stalled.
const STALLED_AFTER: Duration = Duration::from_millis(500);

/// What only ports of DPDK count. Free-running since the port was made, but for the device's own,
/// which some devices begin anew when they are started again. What the device counts for all its
/// ports at once, the first one has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DpdkCounters {
    /// Frames that the device dropped because its queue was full: they were not received fast
    /// enough.
    pub rx_missed: u64,
    /// Frames that the device dropped as damaged.
    pub rx_errors: u64,
    /// Frames that the driver dropped because the pool had no buffer.
    pub rx_no_buffer: u64,
    /// Frames received although the device found their IPv4 or UDP checksum wrong.
    pub rx_bad_checksum: u64,
    /// Frames received in several buffers, and copied into one piece.
    pub rx_gathered: u64,
    /// Frames that could not be kept where they lie, because as many are kept as may be. Who keeps
    /// them has copied them.
    pub rx_not_lent: u64,
    /// Frames that the device did not send.
    pub tx_errors: u64,
    /// Times that a frame to send found no buffer in the pool.
    pub tx_no_buffer: u64,
    /// Frames that were sent from where they were received, without a copy.
    pub tx_by_reference: u64,
    /// Times that the device took nothing for half a second although its link was up and frames
    /// waited.
    pub tx_stalls: u64,
    /// Times that the device was stopped and started to have its link come up again.
    pub restarts: u64,
}

/// Some queues of one device: as many to receive from as configured, and one to send by. See the
/// crate's documentation.
pub struct DpdkPort {
    name: Arc<str>,
    /// Which of the device's ports it is.
    number: u16,
    outgoing: Outgoing,
    burst: Burst,
    lent: LentBuffers,
    /// The device's receive queues that are this port's.
    rx_queues: Range<u16>,
    /// The one that is looked at first in the next call.
    rx_queue: u16,
    frame_bytes_max: usize,
    /// For frames in several buffers, and for those that nobody gets. Its length is the longest
    /// frame.
    scratch: Box<[u8]>,
    link: LinkState,
    looked_at: Option<Instant>,
    /// Since when the device has taken none of the frames that wait, and whether that was counted.
    stuck: Option<(Instant, bool)>,
    counters: PortCounters,
    other: DpdkCounters,
    reason: Option<String>,
    /// Last, so that it is closed once all of its buffers are back.
    device: Arc<Device>,
}

/// Attaches a device and starts it, with as many ports: each has queues, a pool of buffers and
/// counters of its own, and may be driven by a thread of its own. The device stops when the last of
/// them is dropped. A link that is down is no error.
///
/// Which frame comes by which port [`DpdkConfig::spread`] says.
///
/// # Errors
/// See [`DpdkError`]: everything that makes the device useless for `config`, before it takes a
/// frame.
pub fn open_queues(config: &DpdkConfig, queues: NonZeroUsize) -> Result<Vec<DpdkPort>, DpdkError> {
    config.validate(queues)?;
    let ports = queues.get() as u16;
    let device = Arc::new(Device::open(config, ports)?);
    Ok((0..ports).map(|number| DpdkPort::new(config, Arc::clone(&device), number)).collect())
}

impl DpdkPort {
    /// Attaches a device and starts it, with one port. A link that is down is no error.
    ///
    /// # Errors
    /// See [`DpdkError`]: everything that makes the device useless for `config`, before it takes a
    /// frame.
    pub fn open(config: &DpdkConfig) -> Result<Self, DpdkError> {
        let mut ports = open_queues(config, NonZeroUsize::MIN)?;
        Ok(ports.remove(0))
    }

    fn new(config: &DpdkConfig, device: Arc<Device>, number: u16) -> Self {
        let frame_bytes_max = device.mtu() + AROUND_MTU;
        let first = number * config.rx_queues;
        let lent_most =
            if owns_frames(device.driver(), config) { config.lent_frames.into() } else { 0 };
        let mut port = Self {
            name: config.device().into(),
            number,
            outgoing: Outgoing::new(&device.pools(number).buffers, number, frame_bytes_max),
            burst: Burst::new(),
            lent: LentBuffers::new(lent_most),
            rx_queues: first..first + config.rx_queues,
            rx_queue: first,
            frame_bytes_max,
            scratch: vec![0; frame_bytes_max].into_boxed_slice(),
            link: LinkState::Down,
            looked_at: None,
            stuck: None,
            counters: PortCounters::default(),
            other: DpdkCounters::default(),
            reason: None,
            device,
        };
        port.look(Instant::now());
        port
    }

    /// What only ports of DPDK count, with what the device says now.
    #[must_use]
    pub fn dpdk_counters(&self) -> DpdkCounters {
        let own = DpdkCounters { tx_no_buffer: self.outgoing.no_buffer(), ..self.other };
        if self.number > 0 {
            return own;
        }
        let device = self.device.statistics();
        DpdkCounters {
            rx_missed: device.rx_missed,
            rx_errors: device.rx_errors,
            rx_no_buffer: device.rx_no_mbuf,
            tx_errors: device.tx_errors,
            restarts: self.device.restarts(),
            ..own
        }
    }

    /// The driver of the device, such as `net_memif`.
    #[must_use]
    pub fn driver(&self) -> &str {
        self.device.driver()
    }

    /// The MTU that the port takes, in bytes.
    #[must_use]
    pub fn mtu(&self) -> usize {
        self.device.mtu()
    }

    /// Buffers of the port's pool that nobody has.
    #[must_use]
    pub fn free_buffers(&self) -> usize {
        self.device.pools(self.number).buffers.free_buffers()
    }

    #[cfg(test)]
    pub(crate) fn pool(&self) -> *mut crate::shim::Pool {
        self.device.pools(self.number).buffers.as_ptr()
    }

    #[cfg(test)]
    pub(crate) fn tidy(&mut self) {
        self.lent.tidy();
    }

    #[cfg(test)]
    pub(crate) fn next_queue(&self) -> u16 {
        self.rx_queue
    }

    #[cfg(test)]
    pub(crate) fn empty_buffers(&self) -> usize {
        self.outgoing.empty_buffers()
    }

    /// Asks for the state of the link.
    fn look(&mut self, now: Instant) {
        eal::know_this_thread();
        let link = if self.device.look(now) { LinkState::Up } else { LinkState::Down };
        self.reason = if link == LinkState::Up { None } else { self.device.reason() };
        if link == self.link {
            return;
        }
        self.link = link;
        match link {
            LinkState::Up => self.counters.link_ups = self.counters.link_ups.wrapping_add(1),
            // They would leave when it comes back, long after their time.
            LinkState::Down => {
                for _ in 0..self.outgoing.forget() {
                    self.counters.tx_drops.count(DropReason::LinkDown);
                }
            }
        }
    }

    /// Hands over what waits to be sent.
    fn send(&mut self) {
        if self.outgoing.send(&self.device) {
            self.stuck = None;
        }
    }

    /// Notices a device that takes nothing.
    fn watch_queue(&mut self, now: Instant) {
        match &mut self.stuck {
            _ if self.outgoing.waiting() == 0 => self.stuck = None,
            None => self.stuck = Some((now, false)),
            Some((since, is_counted)) => {
                if !*is_counted && now.duration_since(*since) > STALLED_AFTER {
                    *is_counted = true;
                    self.other.tx_stalls = self.other.tx_stalls.wrapping_add(1);
                }
            }
        }
    }

    /// Takes at most `max` frames and hands them to `each`; returns how many.
    fn receive_by(
        &mut self,
        max: usize,
        may_lend: bool,
        each: &mut dyn FnMut(Received<'_>),
    ) -> usize {
        let (mut taken, mut handed) = (0, 0);
        if !self.device.is_started() {
            return 0;
        }
        for _ in self.rx_queues.clone() {
            while taken < max {
                let wanted = (max - taken).min(Burst::FRAMES_MAX);
                let came = self.burst.receive(&self.device, self.rx_queue, wanted);
                handed += (0..came).filter(|at| self.hand_over(*at, may_lend, each)).count();
                self.burst.give_back();
                taken += came;
                if came < wanted {
                    break;
                }
            }
            // The next call begins with the next queue, so that a full one keeps none waiting.
            self.rx_queue += 1;
            if self.rx_queue == self.rx_queues.end {
                self.rx_queue = self.rx_queues.start;
            }
            if taken == max {
                break;
            }
        }
        handed
    }

    /// Hands one frame of the burst to `each`, unless it is no frame.
    #[inline]
    fn hand_over(&mut self, at: usize, may_lend: bool, each: &mut dyn FnMut(Received<'_>)) -> bool {
        let frame = self.burst.frame(at);
        self.other.rx_bad_checksum += u64::from(frame.has_bad_sum());
        let len = frame.len();
        if !(FRAME_BYTES_MIN..=self.frame_bytes_max).contains(&len) {
            let is_short = len < FRAME_BYTES_MIN;
            let reason =
                if is_short { DropReason::FrameTooShort } else { DropReason::FrameTooLong };
            self.counters.rx_drops.count(reason);
            return false;
        }
        self.counters.count_rx(len);
        if may_lend && self.burst.is_lendable(at) {
            if self.burst.lend(at, &mut self.lent, &mut |lease| each(Received::Lent(lease))) {
                return true;
            }
            self.other.rx_not_lent = self.other.rx_not_lent.wrapping_add(1);
        }
        let frame = self.burst.frame(at);
        match frame.in_one_piece() {
            Some(bytes) => each(Received::Passing(bytes)),
            None => {
                self.other.rx_gathered += 1;
                frame.gather(&mut self.scratch[..len]);
                each(Received::Passing(&self.scratch[..len]));
            }
        }
        true
    }
}

impl Port for DpdkPort {
    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        Ok(self.receive_by(max, false, &mut |received| each(received.bytes())))
    }

    fn receive_lent(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, PortError> {
        Ok(self.receive_by(max, self.lent.are_possible(), each))
    }

    fn transmit_room(&mut self) -> usize {
        if self.link == LinkState::Down {
            Outgoing::FRAMES_MAX
        } else {
            self.outgoing.room(&self.device.pools(self.number).buffers)
        }
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError> {
        check_length(len, self.frame_bytes_max)?;
        if self.link == LinkState::Down {
            fill(&mut self.scratch[..len]);
            self.counters.tx_drops.count(DropReason::LinkDown);
            return Ok(true);
        }
        if !self.outgoing.build(
            &self.device.pools(self.number).buffers,
            len,
            &mut self.scratch,
            fill,
        ) {
            self.counters.tx_full = self.counters.tx_full.wrapping_add(1);
            return Ok(false);
        }
        self.counters.count_tx(len);
        Ok(true)
    }

    fn transmit_lent(&mut self, lease: &Lease) -> Result<bool, PortError> {
        let bytes = lease.bytes();
        check_length(bytes.len(), self.frame_bytes_max)?;
        if self.link == LinkState::Up
            && let Some(references) = &self.device.pools(self.number).references
            && self.outgoing.refer(references, lease)
        {
            self.counters.count_tx(bytes.len());
            self.other.tx_by_reference = self.other.tx_by_reference.wrapping_add(1);
            return Ok(true);
        }
        self.transmit(bytes.len(), &mut |out| out.copy_from_slice(bytes))
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.send();
        Ok(())
    }

    fn arm(&mut self) -> Result<bool, PortError> {
        Ok(false)
    }

    fn disarm(&mut self) {}

    fn descriptors(&self) -> Descriptors {
        Descriptors::new()
    }

    fn service(&mut self) -> Result<LinkState, PortError> {
        let now = Instant::now();
        if self.looked_at.is_none_or(|at| now.duration_since(at) >= LOOK_EVERY) {
            self.looked_at = Some(now);
            self.look(now);
        }
        if self.outgoing.waiting() > 0 {
            self.send();
            self.watch_queue(now);
        }
        Ok(self.link)
    }

    fn link_state(&self) -> LinkState {
        self.link
    }

    fn last_disconnect(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    fn capabilities(&self) -> PortCapabilities {
        PortCapabilities {
            kind: "dpdk",
            name: Arc::clone(&self.name),
            frame_bytes_max: self.frame_bytes_max,
            transmit_slots: Outgoing::FRAMES_MAX,
            interrupts: false,
        }
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}
