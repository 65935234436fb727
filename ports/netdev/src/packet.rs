//! An interface of the host as a [`Port`].

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use longhaul_port::{
    Descriptors, Handover, LinkState, Port, PortCapabilities, PortCounters, PortError, Received,
    check_length,
};
use rustix::event::epoll;

use crate::class::{Class, PreferredQps};
use crate::config::PacketConfig;
use crate::counters::NetdevCounters;
use crate::error::NetdevError;
use crate::interface;
use crate::offloads::{ReceiveOffloads, Unwanted};
use crate::part::FrameSubset;
use crate::receiver::{Handed, Receiver};
use crate::sender::Sender;
use crate::socket::PacketSocket;
use crate::watch::{Link, Presence, Watch};

/// Maximum frames of unknown traffic per call and class, while frames of known flows wait.
const UNKNOWN_MAX: usize = 8;
/// Maximum frames of unknown RoCEv2 traffic served before those of known flows when a flow becomes
/// known.
const EARLIER_MAX: usize = 1 << 13;

/// A socket, and the frames that were read from it.
struct Inlet {
    class: Option<Class>,
    socket: PacketSocket,
    receiver: Receiver,
}

impl Inlet {
    fn receive(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], Option<Duration>),
        ports: &mut PortCounters,
        counters: &mut NetdevCounters,
    ) -> Result<Handed, PortError> {
        let handed = self.receiver.receive(&self.socket, max, each, ports, counters);
        handed.map_err(|error| PortError::io("receiving frames", error))
    }
}

/// Frames to and from an existing interface: a physical one, veth, or the host's side of a virtual
/// machine's TAP device. See the [crate's documentation](crate).
pub struct PacketPort {
    name: Arc<str>,
    config: PacketConfig,
    /// Index of the interface to which the sockets are bound.
    index: Option<u32>,
    watch: Watch,
    link: Link,
    /// One per class of frames, in order of priority; or a single one.
    inlets: Vec<Inlet>,
    /// Maximum frames of [`Class::Roce`] to serve first, because some may belong to a QP that is
    /// now preferred.
    earlier: usize,
    sending: PacketSocket,
    sender: Sender,
    /// Readable when the send buffer has space, while `sending` is registered in it.
    ready: OwnedFd,
    awaits_room: bool,
    merging: Option<ReceiveOffloads>,
    ports: PortCounters,
    counters: NetdevCounters,
}

impl PacketPort {
    /// Opens the port on an interface of the calling thread's network namespace. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// [`NetdevError`], which names the cure.
    pub fn open(config: &PacketConfig) -> Result<Self, NetdevError> {
        config.validate()?;
        // Called for its errors.
        interface::mac(&config.interface)?;
        let refused = |operation| {
            move |source| NetdevError::of(&config.interface, operation, "CAP_NET_RAW", source)
        };
        let inlet = |class| {
            let socket = PacketSocket::receiving(config, class)?;
            Ok(Inlet { class, socket, receiver: Receiver::new(config) })
        };
        let inlets = classes(config).into_iter().map(inlet).collect::<Result<_, _>>();
        let inlets = inlets.map_err(refused("opening a packet socket"))?;
        let sending = PacketSocket::sending(config).map_err(refused("opening a packet socket"))?;
        let mut port = Self::with(config, inlets, sending)?;
        let index = interface::index(&config.interface)?;
        port.attach(index).map_err(|(operation, source)| refused(operation)(source))?;
        port.look();
        Ok(port)
    }

    /// Continues a port of another process, which was opened with the same configuration and has
    /// been [handed over](Port::hand_over). Needs no privilege.
    ///
    /// # Errors
    /// [`NetdevError::NotThisPort`], or if the process is out of descriptors.
    pub fn take_over(config: &PacketConfig, handover: Handover) -> Result<Self, NetdevError> {
        config.validate()?;
        let interface = &config.interface;
        let other = |what| NetdevError::NotThisPort { interface: interface.clone(), what };
        let refused =
            |operation| move |source| NetdevError::of(interface, operation, "CAP_NET_RAW", source);
        let Handover { descriptors, numbers } = handover;
        let classes = classes(config);
        let mut sockets = descriptors.into_iter();
        let mut next = |protocol| {
            let socket = sockets.next().and_then(|fd| PacketSocket::adopt(fd, protocol));
            socket.ok_or_else(|| other("no packet socket"))
        };
        let sending = next(0)?;
        let bound_to = sending.bound_to().map_err(refused("asking for a socket's interface"))?;
        let mut inlets = Vec::with_capacity(classes.len());
        for class in classes {
            let socket = next(PacketSocket::protocol(config))?;
            let same = socket.bound_to().map_err(refused("asking for a socket's interface"))?;
            if same != bound_to {
                return Err(other("sockets at two interfaces"));
            }
            inlets.push(Inlet { class, socket, receiver: Receiver::new(config) });
        }
        if sockets.next().is_some() {
            return Err(other("too many sockets"));
        }
        let index = interface::index(interface).ok();
        if bound_to.is_some() && index != bound_to {
            return Err(other("sockets of another interface, or of another network namespace"));
        }
        let mut port = Self::with(config, inlets, sending)?;
        port.index = bound_to;
        port.merging = match (bound_to, numbers[..].try_into()) {
            (Some(index), Ok(numbers)) => {
                let merging = ReceiveOffloads::adopt(index, numbers);
                Some(merging.map_err(refused("making a socket"))?)
            }
            _ => None,
        };
        port.look();
        Ok(port)
    }

    fn with(
        config: &PacketConfig,
        inlets: Vec<Inlet>,
        sending: PacketSocket,
    ) -> Result<Self, NetdevError> {
        let refused = |operation| {
            move |source| NetdevError::of(&config.interface, operation, "CAP_NET_RAW", source)
        };
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| refused("making a descriptor to wait on")(error.into()))?;
        let watch =
            Watch::new(&config.interface).map_err(refused("asking to be told of changes"))?;
        Ok(Self {
            name: config.name.as_str().into(),
            config: config.clone(),
            index: None,
            watch,
            link: Link::new(),
            inlets,
            earlier: 0,
            sending,
            sender: Sender::new(config.transmit_slots, config.frame_bytes_max),
            ready,
            awaits_room: false,
            merging: None,
            ports: PortCounters::default(),
            counters: NetdevCounters::default(),
        })
    }

    /// Opens `ports` ports on one interface, one per core. Each host pair's frames, in both
    /// directions, arrive at one of them; all of them send. Each has its own buffers of the
    /// configured sizes. Overrides `part` of the configuration.
    ///
    /// # Errors
    /// As [`PacketPort::open`].
    pub fn open_queues(
        config: &PacketConfig,
        queues: NonZeroUsize,
    ) -> Result<Vec<Self>, NetdevError> {
        config.of_queues(queues).iter().map(Self::open).collect()
    }

    /// Name of the interface, which may have changed.
    #[must_use]
    pub fn interface(&self) -> &str {
        self.watch.interface()
    }

    /// The counters that other kinds of port do not have.
    #[must_use]
    pub fn netdev_counters(&self) -> NetdevCounters {
        self.counters
    }

    /// Makes a port that serves by class serve packets to these QPs before all other frames. It
    /// first serves the RoCEv2 frames that already wait, at most 8192, so that the frames of a QP
    /// keep their order. During the change the kernel may deliver frames twice, or lose frames to
    /// QPs that are no longer preferred.
    ///
    /// # Errors
    /// If the kernel refuses the filters; some of them may have changed.
    pub fn prefer(&mut self, qps: &PreferredQps) -> std::io::Result<()> {
        for inlet in &self.inlets {
            if let Some(class @ (Class::Preferred | Class::Roce)) = inlet.class {
                inlet.socket.filter(class.program(qps, self.config.part))?;
                self.earlier = EARLIER_MAX;
            }
        }
        Ok(())
    }

    fn attach(&mut self, index: u32) -> Result<(), (&'static str, std::io::Error)> {
        self.sending.bind(index).map_err(|error| ("binding", error))?;
        for inlet in &self.inlets {
            inlet.socket.bind(index).map_err(|error| ("binding", error))?;
        }
        if self.config.promiscuous {
            self.inlets[0]
                .socket
                .make_promiscuous(index)
                .map_err(|error| ("asking for frames to others", error))?;
        }
        self.index = Some(index);
        self.merging = None;
        if !self.config.keep_merging {
            let unwanted = Unwanted { kernel_merging: true, device_merging: true, tags_off: false };
            let merging = ReceiveOffloads::turn_off(&self.config.interface, index, unwanted);
            self.merging = Some(merging.map_err(|error| ("making a socket", error))?);
        }
        Ok(())
    }

    /// Follows changes of the interface.
    fn look(&mut self) {
        let Some(presence) = self.watch.look(self.index) else { return };
        for inlet in &self.inlets {
            let lost = inlet.socket.take_losses();
            self.counters.rx_buffer_full += lost;
            if inlet.class == Some(Class::Preferred) {
                self.counters.rx_buffer_full_preferred += lost;
            }
        }
        self.follow(presence);
        if self.link.state == LinkState::Down {
            self.sender.drop_all(&mut self.ports);
        }
    }

    fn follow(&mut self, presence: Presence) {
        if self.index.is_some() && self.index != presence.index() {
            self.index = None;
            self.merging = None;
            self.counters.detached += 1;
        }
        if let (None, Some(index)) = (self.index, presence.index()) {
            if let Err((operation, error)) = self.attach(index) {
                let interface = self.watch.interface();
                self.link
                    .fail(format!("interface {interface} was made anew: {operation}: {error}"));
                return;
            }
            self.counters.reattached += 1;
        }
        if self.link.follow(self.watch.interface(), presence) {
            self.ports.link_ups += 1;
        }
    }

    fn send(&mut self) {
        if !self.sender.send(&self.sending, &mut self.ports, &mut self.counters) {
            self.watch.suspect();
        }
    }
}

/// One per class of frames, in order of priority; or a single one.
fn classes(config: &PacketConfig) -> Vec<Option<Class>> {
    if config.by_class { Class::ALL.map(Some).to_vec() } else { vec![None] }
}

impl Port for PacketPort {
    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        self.receive_lent(max, &mut |received| each(received.bytes()))
    }

    fn receive_lent(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, PortError> {
        if self.config.part == FrameSubset::Nothing {
            return Ok(0);
        }
        let mut hand_out = |frame: &[u8], age: Option<Duration>| {
            each(age.map_or(Received::Passing(frame), |age| Received::Stamped(frame, age)));
        };
        let (ports, counters) = (&mut self.ports, &mut self.counters);
        let (mut frames, mut is_down) = (0, false);
        if self.earlier > 0
            && let Some(roce) = self.inlets.iter_mut().find(|of| of.class == Some(Class::Roce))
        {
            let most = max.min(self.earlier);
            let handed = roce.receive(most, &mut hand_out, ports, counters)?;
            frames = handed.frames;
            is_down = handed.is_down;
            self.earlier = if frames < most { 0 } else { self.earlier - frames };
        }
        let count = if self.earlier > 0 { 0 } else { self.inlets.len() };
        for (at, inlet) in self.inlets[..count].iter_mut().enumerate() {
            // Each class gets a share; those after the first a small one while it is busy.
            let behind = UNKNOWN_MAX.min(max / 4) * (count - 1 - at);
            let left = (max - frames).saturating_sub(behind);
            let most = if at > 0 && frames > 0 { left.min(UNKNOWN_MAX) } else { left };
            if most == 0 {
                continue;
            }
            let handed = inlet.receive(most, &mut hand_out, ports, counters)?;
            frames += handed.frames;
            is_down |= handed.is_down;
        }
        if is_down {
            self.watch.suspect();
        }
        Ok(frames)
    }

    fn transmit_room(&mut self) -> usize {
        if self.sender.room() == 0 {
            self.send();
        }
        self.sender.room()
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError> {
        check_length(len, self.config.frame_bytes_max)?;
        if self.transmit_room() == 0 {
            self.ports.tx_full = self.ports.tx_full.wrapping_add(1);
            return Ok(false);
        }
        self.sender.build(len, fill);
        if self.link.state == LinkState::Down {
            self.sender.drop_all(&mut self.ports);
        } else if self.sender.is_worth_sending() {
            self.send();
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.send();
        self.sender.report()
    }

    fn arm(&mut self) -> Result<bool, PortError> {
        // The sockets stay readable while frames wait in them, so only frames that were read count
        // here.
        if self.inlets.iter().any(|inlet| inlet.receiver.holds_frames()) {
            return Ok(true);
        }
        if self.sender.waiting() > 0 {
            self.send();
        }
        if self.sender.waiting() > 0 && !self.awaits_room {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&self.ready, self.sending.as_fd(), data, epoll::EventFlags::OUT)
                .map_err(|error| PortError::io("waiting for room in the send buffer", error))?;
            self.awaits_room = true;
        }
        Ok(false)
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.awaits_room) {
            // Cannot fail: it was registered.
            let _ = epoll::delete(&self.ready, self.sending.as_fd());
        }
        self.watch.wake();
    }

    fn descriptors(&self) -> Descriptors {
        let inlets = self.inlets.iter().map(|inlet| inlet.socket.as_fd().as_raw_fd());
        inlets.chain([self.watch.descriptor(), self.ready.as_raw_fd()]).collect()
    }

    fn service(&mut self) -> Result<LinkState, PortError> {
        self.look();
        if self.sender.is_blocked() {
            self.send();
        }
        self.sender.report().map(|()| self.link.state)
    }

    fn link_state(&self) -> LinkState {
        self.link.state
    }

    fn last_disconnect(&self) -> Option<&str> {
        self.link.reason()
    }

    fn capabilities(&self) -> PortCapabilities {
        PortCapabilities {
            kind: "af_packet",
            name: Arc::clone(&self.name),
            frame_bytes_max: self.config.frame_bytes_max,
            transmit_slots: self.sender.slots(),
            interrupts: true,
        }
    }

    fn counters(&self) -> PortCounters {
        self.ports
    }

    fn is_at_rest(&mut self) -> bool {
        self.send();
        self.sender.waiting() == 0 && !self.inlets.iter().any(|inlet| inlet.receiver.holds_frames())
    }

    fn hand_over(&mut self) -> Result<Handover, PortError> {
        let inlets = self.inlets.iter().map(|inlet| inlet.socket.as_fd());
        let descriptors = std::iter::once(self.sending.as_fd())
            .chain(inlets)
            .map(|socket| socket.try_clone_to_owned())
            .collect::<Result<_, _>>()
            .map_err(|error| PortError::io("duplicating a packet socket", error))?;
        let numbers = self.merging.as_ref().map_or_else(Vec::new, |it| it.numbers().to_vec());
        Ok(Handover { descriptors, numbers })
    }

    fn give_away(&mut self) {
        self.merging.take().into_iter().for_each(ReceiveOffloads::leave);
    }

    fn take_charge(&mut self) -> Result<(), PortError> {
        self.merging.iter_mut().for_each(ReceiveOffloads::take_charge);
        self.prefer(&PreferredQps::default())
            .map_err(|error| PortError::io("resetting the QPs that are served first", error))
    }
}
