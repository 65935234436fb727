//! A DPDK device as a [`Port`].

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

/// Interval at which the device's link is checked.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A queue that accepts nothing for this time has stalled.
const STALLED_AFTER: Duration = Duration::from_millis(500);

longhaul_counters::counters! {
    /// Counters that only DPDK ports have, cumulative since the port was created, except that some
    /// devices restart their own counters when they are restarted. The first port of a device
    /// reports the counters of the whole device.
    pub struct DpdkCounters {
        /// Frames that the device dropped because its queue was full: the port was too slow.
        rx_missed,
        /// Damaged frames that the device dropped.
        rx_errors,
        /// Frames that the driver dropped because the pool was empty.
        rx_no_buffer,
        /// Received frames whose IPv4 or UDP checksum the device found wrong.
        rx_bad_checksum,
        /// Frames received in several buffers, and copied into one.
        rx_gathered,
        /// Frames that could not be lent because the maximum was lent; readers that keep them copy
        /// them.
        rx_not_lent,
        /// Frames that the device failed to send.
        tx_errors,
        /// Times that the pool was empty when a frame was to be sent.
        tx_no_buffer,
        /// Frames that were sent from the buffer of their reception, without a copy.
        tx_by_reference,
        /// Times that the device accepted nothing for half a second although its link was up and
        /// frames waited.
        tx_stalls,
        /// Times that the device was restarted to bring its link up again.
        restarts,
    }
}

/// Some queues of one device: the configured number of receive queues, and one transmit queue. See
/// the crate's documentation.
pub struct DpdkPort {
    name: Arc<str>,
    /// Number of this port within the device.
    number: u16,
    outgoing: Outgoing,
    burst: Burst,
    lent: LentBuffers,
    /// Receive queues of this port.
    rx_queues: Range<u16>,
    /// Receive queue that the next call starts with.
    rx_queue: u16,
    frame_bytes_max: usize,
    /// For frames that span several buffers, and for frames that are discarded. Its length is the
    /// maximum frame length.
    scratch: Box<[u8]>,
    link: LinkState,
    looked_at: Option<Instant>,
    /// Time since when the device has accepted none of the waiting frames, and whether that was
    /// counted.
    stuck: Option<(Instant, bool)>,
    counters: PortCounters,
    other: DpdkCounters,
    reason: Option<String>,
    /// Last, so that it is closed once all of its buffers are free.
    device: Arc<Device>,
}

/// Attaches and starts a device with several ports: each has its own queues, buffer pool and
/// counters, and may run on its own thread. Dropping the last of them stops the device. A link that
/// is down is not an error.
///
/// [`DpdkConfig::spread`] determines which frames each port receives.
///
/// # Errors
/// See [`DpdkError`]: every reason why the device cannot work with `config`.
pub fn open_queues(config: &DpdkConfig, queues: NonZeroUsize) -> Result<Vec<DpdkPort>, DpdkError> {
    config.validate(queues)?;
    let ports = queues.get() as u16;
    let device = Arc::new(Device::open(config, ports)?);
    Ok((0..ports).map(|number| DpdkPort::new(config, Arc::clone(&device), number)).collect())
}

impl DpdkPort {
    /// Attaches and starts a device with one port. A link that is down is not an error.
    ///
    /// # Errors
    /// See [`DpdkError`]: every reason why the device cannot work with `config`.
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

    /// The counters that only DPDK ports have, including the device's.
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

    /// MTU of the port, in bytes.
    #[must_use]
    pub fn mtu(&self) -> usize {
        self.device.mtu()
    }

    /// Free buffers of the port's pool.
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

    /// Checks the state of the link.
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
            // They would leave when it is up again, long after their time.
            LinkState::Down => {
                for _ in 0..self.outgoing.forget() {
                    self.counters.tx_drops.count(DropReason::LinkDown);
                }
            }
        }
    }

    /// Passes the waiting frames to the device.
    fn send(&mut self) {
        if self.outgoing.send(&self.device) {
            self.stuck = None;
        }
    }

    /// Detects a device that accepts nothing.
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

    /// Receives at most `max` frames and hands them to `each`; returns their number.
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
            // The next call starts with the next queue, so that a full one delays no other.
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

    /// Hands one frame of the burst to `each`, if its length is valid.
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

    /// Of the device, and so of all its ports.
    fn set_link(&mut self, to: LinkState) -> Result<(), PortError> {
        // Each port of the device looks within this interval.
        self.looked_at = None;
        self.device
            .set_link(to)
            .map_err(|reason| PortError::LinkStays { port: self.name.to_string(), reason })
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
