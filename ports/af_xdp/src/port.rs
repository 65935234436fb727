//! An interface as a [`Port`].

use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_netdev::interface;
use longhaul_netdev::watch::{Link, Watch};
use longhaul_port::{
    Descriptors, DropReason, Handover, LinkState, Port, PortCapabilities, PortCounters, PortError,
    check_length,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::attachment::Attachment;
pub use crate::attachment::Manner;
use crate::config::XdpConfig;
use crate::counters::XdpCounters;
use crate::error::XdpError;
use crate::handover;
use crate::installed::{ONE_BUFFER, Share};
use crate::memory::Buffers;
use crate::receiver::{Receiver, Taker};
use crate::ring::Violation;
use crate::sender::{Sent, drop_for_link};
use crate::socket::Statistics;

/// An Ethernet header, in bytes.
const HEADER_BYTES: usize = 14;
/// A VLAN tag, in bytes.
const TAG_BYTES: usize = 4;
/// Time limit for the kernel to release a queue whose socket was closed.
const RELEASED_WITHIN: Duration = Duration::from_secs(2);
/// Interval between attempts.
const TRY_EVERY: Duration = Duration::from_millis(20);
/// Length of a sleep while the device accepts no frames: no event announces when it does again.
const LOOK_AGAIN_NS: i64 = 100_000;

/// Frames to and from an interface, through AF_XDP. See the [crate's documentation](crate).
pub struct XdpPort {
    name: Arc<str>,
    config: XdpConfig,
    share: Share,
    /// Index of the interface of the attachment.
    index: Option<u32>,
    attachment: Option<Attachment>,
    manner: Manner,
    watch: Watch,
    link: Link,
    receiver: Receiver,
    /// For frames that span several buffers, and for frames that are discarded.
    scratch: Box<[u8]>,
    frame_bytes_max: usize,
    /// MTU of the interface in bytes, at the last look.
    mtu: usize,
    /// Ends sleeps while the device accepts no frames.
    timer: OwnedFd,
    is_timer_set: bool,
    ports: PortCounters,
    counters: XdpCounters,
    /// The kernel's counters of former attachments.
    before: Statistics,
}

impl XdpPort {
    /// Opens the port on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`XdpError`], which names the cure.
    pub fn open(config: &XdpConfig) -> Result<Self, XdpError> {
        Self::open_share(config, Share::whole())
    }

    /// Opens ports that share the interface's queues, one per thread. The first port has the first
    /// queue and sends by it, and so on; remaining queues are assigned round-robin. The ports share
    /// one program, which the last of them detaches. Each has its own buffers: as many to send from
    /// as a single port, and its share of those to receive into.
    ///
    /// # Errors
    /// [`XdpError`], also if there are fewer queues, to receive or to send by, than ports.
    pub fn open_queues(config: &XdpConfig, ports: NonZeroUsize) -> Result<Vec<Self>, XdpError> {
        let ports = u16::try_from(ports.get()).unwrap_or(u16::MAX);
        Share::of(ports).map(|share| Self::open_share(config, share)).collect()
    }

    fn open_share(config: &XdpConfig, share: Share) -> Result<Self, XdpError> {
        config.validate()?;
        // Called for its errors.
        interface::mac(&config.interface)?;
        let index = interface::index(&config.interface)?;
        let attachment = attach(config, index, &share)?;
        Self::with(config, share, Some(attachment))
    }

    /// Continues ports of another process, which were opened with the same configuration and have
    /// been [handed over](Port::hand_over): one per core. Needs no privilege.
    ///
    /// # Errors
    /// [`XdpError::NotThisPort`], or if the process is out of descriptors.
    pub fn take_over_queues(
        config: &XdpConfig,
        handovers: Vec<Handover>,
    ) -> Result<Vec<Self>, XdpError> {
        config.validate()?;
        let shares = Share::of(u16::try_from(handovers.len()).unwrap_or(u16::MAX));
        let index = interface::index(&config.interface).ok();
        let one = |(share, handover): (Share, Handover)| {
            // Without descriptors the interface was deleted.
            let attachment = (!handover.descriptors.is_empty())
                .then(|| handover::take_over(config, index, &share, handover))
                .transpose()?;
            Self::with(config, share, attachment)
        };
        shares.zip(handovers).map(one).collect()
    }

    fn with(
        config: &XdpConfig,
        share: Share,
        attachment: Option<Attachment>,
    ) -> Result<Self, XdpError> {
        let refused = |operation| {
            move |source| XdpError::of(&config.interface, operation, "CAP_NET_ADMIN", source)
        };
        let watch =
            Watch::new(&config.interface).map_err(refused("asking to be told of changes"))?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )
        .map_err(|error| refused("making a timer")(error.into()))?;
        let most = attachment.as_ref().map_or(ONE_BUFFER, Attachment::frame_bytes_max);
        let frame_bytes_max = config.frame_bytes_max.min(most);
        let mut port = Self {
            name: config.name.as_str().into(),
            config: config.clone(),
            share,
            index: attachment.as_ref().map(|attachment| attachment.installed.index()),
            manner: attachment.as_ref().map(|it| it.manner.clone()).unwrap_or_default(),
            attachment,
            watch,
            link: Link::new(),
            receiver: Receiver::new(),
            scratch: vec![0; frame_bytes_max].into(),
            frame_bytes_max,
            mtu: 0,
            timer,
            is_timer_set: false,
            ports: PortCounters::default(),
            counters: XdpCounters::default(),
            before: Statistics::default(),
        };
        port.look();
        Ok(port)
    }

    /// Name of the interface, which may have changed.
    #[must_use]
    pub fn interface(&self) -> &str {
        self.watch.interface()
    }

    /// How the port is attached, or was last.
    #[must_use]
    pub fn manner(&self) -> &Manner {
        &self.manner
    }

    /// The counters that other kinds of port do not have, including the kernel's.
    #[must_use]
    pub fn xdp_counters(&self) -> XdpCounters {
        let present = self.attachment.as_ref().map(Attachment::statistics).unwrap_or_default();
        XdpCounters {
            rx_dropped: self.before.rx_dropped + present.rx_dropped,
            rx_ring_full: self.before.rx_ring_full + present.rx_ring_full,
            rx_no_buffer: self.before.rx_no_buffer + present.rx_no_buffer,
            tx_refused: self.before.tx_invalid + present.tx_invalid,
            ..self.counters
        }
    }

    #[cfg(test)]
    pub(crate) fn socket(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.attachment.as_ref().expect("it is attached").queues[0].socket.as_fd()
    }

    /// Follows changes of the interface.
    fn look(&mut self) {
        let Some(presence) = self.watch.look(self.index) else { return };
        if self.index.is_some() && self.index != presence.index() {
            self.detach();
            self.counters.detached += 1;
        }
        if let Some(index) = presence.index() {
            self.mtu = interface::mtu(self.watch.interface()).map_or(self.mtu, |mtu| mtu as usize);
            if self.attachment.is_none() && !self.attach_again(index) {
                return;
            }
        }
        if self.link.follow(self.watch.interface(), presence) {
            self.ports.link_ups += 1;
        }
    }

    /// Returns whether the port is attached afterwards.
    fn attach_again(&mut self, index: u32) -> bool {
        match Attachment::new(&self.config, index, &self.share) {
            Ok(attachment) => {
                self.manner = attachment.manner.clone();
                self.attachment = Some(attachment);
                self.index = Some(index);
                self.counters.reattached += 1;
                true
            }
            Err(error) => {
                self.link.fail(format!("attaching again: {error}"));
                false
            }
        }
    }

    fn detach(&mut self) {
        if let Some(attachment) = self.attachment.take() {
            self.before = self.before.and(attachment.statistics());
        }
        self.index = None;
    }

    /// Releases the attachment because the kernel violated the protocol; the next look reattaches.
    fn give_up(&mut self, violation: &Violation) -> PortError {
        self.detach();
        self.ports.peer_violations += 1;
        self.link.fail(format!("the kernel broke the rules of the rings: {violation}"));
        self.watch.suspect();
        PortError::PeerViolation { port: self.name.to_string(), detail: violation.to_string() }
    }

    /// Sends the built frames.
    fn send(&mut self) -> Result<(), PortError> {
        let Some(attachment) = &mut self.attachment else { return Ok(()) };
        let socket = &attachment.queues[0].socket;
        match attachment.sender.send(socket, &mut self.counters) {
            Ok(Sent::Down) => {
                self.watch.suspect();
                Ok(())
            }
            Ok(Sent::All | Sent::Blocked) => Ok(()),
            Err(violation) => Err(self.give_up(&violation)),
        }
    }

    /// Number of free slots for frames of the interface's maximum length.
    fn room(&mut self) -> Result<usize, Violation> {
        let longest = (self.mtu + HEADER_BYTES + TAG_BYTES).min(self.frame_bytes_max);
        match &mut self.attachment {
            Some(attachment) if self.link.state == LinkState::Up => attachment.sender.room(longest),
            // Without an attachment frames are accepted and dropped.
            _ => Ok(self.config.transmit_frames as usize),
        }
    }

    fn slots(&self) -> usize {
        self.config.transmit_frames as usize
            / self.frame_bytes_max.min(ONE_BUFFER.max(self.mtu)).div_ceil(Buffers::EACH)
    }

    /// Builds a frame for which there is space; `false` if the interface accepts no frame of this
    /// length.
    fn build(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        let longest = self.mtu + HEADER_BYTES;
        let Some(attachment) = &mut self.attachment else { return false };
        // The tag is only known once the frame is built.
        if len <= Buffers::EACH && len <= longest {
            attachment.sender.build(&mut attachment.buffers, len, fill);
            return true;
        }
        let frame = &mut self.scratch[..len];
        fill(frame);
        let is_tagged = frame.get(12..14) == Some(&[0x81, 0x00]);
        if len > longest + if is_tagged { TAG_BYTES } else { 0 } {
            return false;
        }
        attachment.sender.spread(&mut attachment.buffers, frame);
        true
    }

    fn set_timer(&mut self, ns: i64) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: 0, tv_nsec: ns };
        let time = Itimerspec { it_interval: zero, it_value: value };
        // Cannot fail for such times; if it did, the sleep would only be longer.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time);
        self.is_timer_set = ns > 0;
    }
}

/// Attaches, and retries while the kernel releases a recently closed queue in the background.
fn attach(config: &XdpConfig, index: u32, share: &Share) -> Result<Attachment, XdpError> {
    let start = Instant::now();
    loop {
        match Attachment::new(config, index, share) {
            Err(XdpError::QueueInUse { .. }) if start.elapsed() < RELEASED_WITHIN => {
                std::thread::sleep(TRY_EVERY);
            }
            done => return done,
        }
    }
}

impl Port for XdpPort {
    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        let Some(Attachment { queues, buffers, .. }) = &mut self.attachment else { return Ok(0) };
        let mut taker = Taker {
            each,
            mtu: self.mtu,
            frame_bytes_max: self.frame_bytes_max,
            ports: &mut self.ports,
            counters: &mut self.counters,
        };
        let received = self.receiver.receive(queues, buffers, max, &mut taker);
        received.map_err(|violation| self.give_up(&violation))
    }

    fn transmit_room(&mut self) -> usize {
        // The next call finds the violation again, and reports it.
        match self.room() {
            Ok(0) => {
                let _ = self.send();
                self.room().unwrap_or(0)
            }
            room => room.unwrap_or(0),
        }
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError> {
        check_length(len, self.frame_bytes_max)?;
        if self.link.state == LinkState::Down || self.attachment.is_none() {
            fill(&mut self.scratch[..len]);
            drop_for_link(&mut self.ports);
            return Ok(true);
        }
        if self.transmit_room() == 0 {
            self.ports.tx_full = self.ports.tx_full.wrapping_add(1);
            return Ok(false);
        }
        if self.build(len, fill) {
            self.ports.count_tx(len);
        } else {
            self.ports.tx_drops.count(DropReason::FrameTooLong);
        }
        if self.attachment.as_ref().is_some_and(|attachment| attachment.sender.is_worth_sending()) {
            self.send()?;
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.send()
    }

    fn arm(&mut self) -> Result<bool, PortError> {
        if self.receiver.holds_frames() {
            return Ok(true);
        }
        self.send()?;
        let Some(attachment) = &self.attachment else { return Ok(false) };
        let looked =
            attachment.queues.iter().try_fold(false, |any, queue| Ok(any || queue.has_frames()?));
        let is_blocked = attachment.sender.is_blocked();
        match looked {
            Ok(false) => {
                if is_blocked {
                    self.set_timer(LOOK_AGAIN_NS);
                }
                Ok(false)
            }
            Ok(true) => Ok(true),
            Err(violation) => Err(self.give_up(&violation)),
        }
    }

    fn disarm(&mut self) {
        if self.is_timer_set {
            self.set_timer(0);
        }
        self.watch.wake();
    }

    fn descriptors(&self) -> Descriptors {
        let ready = self.attachment.as_ref().map(|attachment| attachment.ready.as_raw_fd());
        ready.into_iter().chain([self.watch.descriptor(), self.timer.as_raw_fd()]).collect()
    }

    fn service(&mut self) -> Result<LinkState, PortError> {
        self.look();
        let Some(attachment) = &self.attachment else { return Ok(self.link.state) };
        match attachment.sender.waiting() {
            Ok(0) => {}
            Ok(_) if self.link.state == LinkState::Down => {}
            Ok(_) => {
                self.send()?;
                let watched = self.attachment.as_mut().map_or(Ok(()), |attachment| {
                    attachment.sender.watch(Instant::now(), &mut self.counters)
                });
                watched.map_err(|violation| self.give_up(&violation))?;
            }
            Err(violation) => return Err(self.give_up(&violation)),
        }
        Ok(self.link.state)
    }

    fn link_state(&self) -> LinkState {
        self.link.state
    }

    fn last_disconnect(&self) -> Option<&str> {
        self.link.reason()
    }

    fn capabilities(&self) -> PortCapabilities {
        PortCapabilities {
            kind: "af_xdp",
            name: Arc::clone(&self.name),
            frame_bytes_max: self.frame_bytes_max,
            transmit_slots: self.slots(),
            interrupts: true,
        }
    }

    fn counters(&self) -> PortCounters {
        self.ports
    }

    fn is_at_rest(&mut self) -> bool {
        let is_sent =
            self.send().is_ok() && self.attachment.as_ref().is_none_or(|it| it.sender.is_at_rest());
        is_sent && !self.receiver.holds_frames()
    }

    fn hand_over(&mut self) -> Result<Handover, PortError> {
        let Some(attachment) = &mut self.attachment else { return Ok(Handover::default()) };
        handover::hand_over(attachment)
            .map_err(|error| PortError::io("duplicating an AF_XDP socket", error))
    }

    fn give_away(&mut self) {
        self.attachment.iter().for_each(|attachment| attachment.installed.give_away());
    }

    fn take_charge(&mut self) -> Result<(), PortError> {
        self.attachment.iter().for_each(|attachment| attachment.installed.take_charge());
        Ok(())
    }
}
