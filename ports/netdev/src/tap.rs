//! A TAP device as a [`Port`].

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_port::{
    Descriptors, DropReason, FRAME_BYTES_MIN, Handover, LinkState, Port, PortCapabilities,
    PortCounters, PortError, check_length, forward_port,
};

use crate::config::TapConfig;
use crate::counters::NetdevCounters;
use crate::error::NetdevError;
use crate::merge::Merged;
use crate::request;
use crate::segment::{OFFLOAD_BYTES, Offload, Splitter, complete};
use crate::watch::{Link, Presence, Watch, is_down};

/// Maximum frames between two flushes. Each is passed to the kernel at once.
const SLOTS: usize = 256;
/// Longest frame of the kernel that a port splits.
const UNSPLIT_BYTES_MAX: usize = 65535 + 14 + 2 * 4;
/// `TUN_F_` kinds: checksums, TSO over IPv4 and IPv6, and with ECN.
const OFFLOADS: libc::c_uint = 0x01 | 0x02 | 0x04 | 0x08;
/// The same, and UDP segmentation over IPv4 and IPv6; since Linux 6.2.
const OFFLOADS_WITH_UDP: libc::c_uint = OFFLOADS | 0x20 | 0x40;

/// Interval at which an adopted port that found no frame looks again, while frames come and while
/// they do not. A call costs about as much as a small frame, and a loop that also serves others
/// would make it in every turn. A sleeping loop is woken.
const LOOK_AFTER: [Duration; 2] = [Duration::from_micros(5), Duration::from_micros(50)];
/// Time after the last frame from which no more are expected soon.
const QUIET_AFTER: Duration = Duration::from_millis(1);

/// The network that the host sees at a TAP device: the port receives frames that the host sends,
/// and vice versa. See the [crate's documentation](crate).
pub struct TapPort {
    name: Arc<str>,
    config: TapConfig,
    /// The device, until it is deleted.
    device: Option<Device>,
    upkeep: Upkeep,
    link: Link,
    /// One frame from the kernel with its description, and an extra byte that detects a longer one.
    received: Box<[u8]>,
    /// Bytes of the frame in `received` that is being split.
    unsplit_bytes: usize,
    splitter: Box<Splitter>,
    /// A frame to the kernel behind its description, and room for another to merge into it.
    sent: Box<[u8]>,
    /// The frame in `sent`, if it waits for more.
    merged: Option<Merged>,
    is_reported: bool,
    /// An error that has not been reported yet.
    failure: Option<PortError>,
    ports: PortCounters,
    counters: NetdevCounters,
}

struct Device {
    file: File,
    index: u32,
}

/// How a port learns of changes.
enum Upkeep {
    /// The device is in the port's network namespace.
    Watched(Watch),
    /// It is in another one, and was adopted: its end shows in the calls on it.
    Adopted {
        /// No frame is expected before.
        look_after: Instant,
        last_frame: Instant,
    },
}

impl Upkeep {
    /// The device may be down or gone.
    fn suspect(&mut self) {
        if let Upkeep::Watched(watch) = self {
            watch.suspect();
        }
    }

    fn is_early(&self) -> bool {
        matches!(self, Upkeep::Adopted { look_after, .. } if Instant::now() < *look_after)
    }

    fn found_frame(&mut self) {
        if let Upkeep::Adopted { last_frame, .. } = self {
            *last_frame = Instant::now();
        }
    }

    fn found_none(&mut self) {
        if let Upkeep::Adopted { look_after, last_frame } = self {
            let now = Instant::now();
            *look_after = now + LOOK_AFTER[usize::from(now - *last_frame > QUIET_AFTER)];
        }
    }

    /// The loop was asleep, and may have been woken by a frame.
    fn wake(&mut self) {
        match self {
            Upkeep::Watched(watch) => watch.wake(),
            Upkeep::Adopted { look_after, .. } => *look_after = Instant::now(),
        }
    }
}

impl Device {
    /// Creates the device, or attaches to an existing one.
    fn attach(config: &TapConfig) -> Result<Self, NetdevError> {
        let interface = &config.interface;
        let refused = |operation| {
            move |source| NetdevError::of(interface, operation, "CAP_NET_ADMIN", source)
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => NetdevError::NoTapDevices,
                _ => refused("opening /dev/net/tun")(error),
            })?;
        let described = if config.offloads { libc::IFF_VNET_HDR } else { 0 };
        let flags = (libc::IFF_TAP | libc::IFF_NO_PI | described) as u16;
        let attached = match request::attach_tap(&file, interface, flags) {
            // A multi-queue device, or an interface that is not a TAP device.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                request::attach_tap(&file, interface, flags | libc::IFF_MULTI_QUEUE as u16)
            }
            attached => attached,
        };
        attached.map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY | libc::E2BIG) => {
                NetdevError::TapBusy { interface: interface.clone() }
            }
            Some(libc::EINVAL) => NetdevError::NotATap { interface: interface.clone() },
            _ => refused("attaching to the TAP device")(error),
        })?;
        if config.offloads {
            request::set_description_bytes(&file, OFFLOAD_BYTES as libc::c_int)
                .and_then(|()| {
                    request::set_offloads(&file, OFFLOADS_WITH_UDP)
                        .or_else(|_| request::set_offloads(&file, OFFLOADS))
                })
                .map_err(refused("turning offloads on"))?;
        } else {
            request::set_offloads(&file, 0).map_err(refused("turning offloads off"))?;
        }
        let carrier = request::carrier().map_err(refused("making a socket"))?;
        if let Some(mtu) = config.mtu
            && request::mtu(&carrier, interface).map_err(refused("reading its MTU"))? != mtu
        {
            request::set_mtu(&carrier, interface, mtu).map_err(|error| {
                match error.raw_os_error() {
                    Some(libc::EINVAL) => {
                        NetdevError::MtuOutOfRange { interface: interface.clone(), mtu }
                    }
                    _ => refused("setting its MTU")(error),
                }
            })?;
        }
        if config.up {
            request::set_up(&carrier, interface).map_err(refused("setting it up"))?;
        }
        let index = request::index(&carrier, interface).map_err(refused("reading its index"))?;
        Ok(Self { file, index })
    }
}

impl TapPort {
    /// Opens the port in the calling thread's network namespace. Needs CAP_NET_ADMIN, or a device
    /// created for this user (`ip tuntap add NAME mode tap user USER`) with the wanted MTU and
    /// state.
    ///
    /// # Errors
    /// [`NetdevError`], which names the cure.
    pub fn open(config: &TapConfig) -> Result<Self, NetdevError> {
        config.validate()?;
        let interface = &config.interface;
        let watch = Watch::new(interface).map_err(|source| {
            NetdevError::of(interface, "asking to be told of changes", "CAP_NET_ADMIN", source)
        })?;
        let device = Device::attach(config)?;
        let mut port = Self::with(config, Some(device), Upkeep::Watched(watch));
        port.look();
        Ok(port)
    }

    /// Creates the device in the calling thread's network namespace, for a port of another process
    /// to [adopt](Self::adopt). It is deleted once the last copy of the descriptor is closed.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn create(config: &TapConfig) -> Result<OwnedFd, NetdevError> {
        config.validate()?;
        Ok(Device::attach(config)?.file.into())
    }

    /// Opens the port on a device that was [created](Self::create) with the same configuration, in
    /// any network namespace. The port is up until the device is deleted, and then stays down.
    ///
    /// # Errors
    /// [`NetdevError::Config`].
    pub fn adopt(config: &TapConfig, device: OwnedFd) -> Result<Self, NetdevError> {
        config.validate()?;
        let now = Instant::now();
        // The index belongs to the other namespace, where nobody asks.
        let device = Device { file: device.into(), index: 0 };
        let upkeep = Upkeep::Adopted { look_after: now, last_frame: now };
        let mut port = Self::with(config, Some(device), upkeep);
        let present = Presence::Present { index: 0, is_up: true, is_running: true };
        if port.link.follow(&config.interface, present) {
            port.ports.link_ups += 1;
        }
        Ok(port)
    }

    /// Continues a port of another process, which was opened with the same configuration and has
    /// been [handed over](Port::hand_over). Needs no privilege.
    ///
    /// # Errors
    /// [`NetdevError::NotThisPort`], or if the process is out of descriptors.
    pub fn take_over(config: &TapConfig, handover: Handover) -> Result<Self, NetdevError> {
        config.validate()?;
        let interface = &config.interface;
        let other = |what| NetdevError::NotThisPort { interface: interface.clone(), what };
        let refused = |operation| {
            move |source| NetdevError::of(interface, operation, "CAP_NET_ADMIN", source)
        };
        let watch = Watch::new(interface).map_err(refused("asking to be told of changes"))?;
        let mut descriptors = handover.descriptors.into_iter();
        // Without a descriptor the device was deleted.
        let device = match (descriptors.next(), descriptors.next()) {
            (None, _) => None,
            (Some(file), None) => {
                let name = request::tap_name(&file).map_err(|_| other("no TAP device"))?;
                let index = request::carrier().and_then(|fd| request::index(fd, &name));
                let index =
                    index.map_err(|_| other("a TAP device of another network namespace"))?;
                Some(Device { file: file.into(), index })
            }
            _ => return Err(other("too many descriptors")),
        };
        let mut port = Self::with(config, device, Upkeep::Watched(watch));
        port.look();
        Ok(port)
    }

    fn with(config: &TapConfig, device: Option<Device>, upkeep: Upkeep) -> Self {
        let described = if config.offloads { OFFLOAD_BYTES } else { 0 };
        let longest = if config.offloads { UNSPLIT_BYTES_MAX } else { config.frame_bytes_max };
        Self {
            name: config.name.as_str().into(),
            config: config.clone(),
            device,
            upkeep,
            link: Link::new(),
            received: vec![0; described + longest + 1].into(),
            unsplit_bytes: 0,
            splitter: Box::new(Splitter::IDLE),
            sent: vec![0; described + longest + config.frame_bytes_max].into(),
            merged: None,
            is_reported: false,
            failure: None,
            ports: PortCounters::default(),
            counters: NetdevCounters::default(),
        }
    }

    /// Bytes of the description before each frame.
    fn described(&self) -> usize {
        if self.config.offloads { OFFLOAD_BYTES } else { 0 }
    }

    /// Name of the device, which may have changed.
    #[must_use]
    pub fn interface(&self) -> &str {
        match &self.upkeep {
            Upkeep::Watched(watch) => watch.interface(),
            Upkeep::Adopted { .. } => &self.config.interface,
        }
    }

    /// The counters that other kinds of port do not have.
    #[must_use]
    pub fn netdev_counters(&self) -> NetdevCounters {
        self.counters
    }

    /// Follows changes of the device.
    fn look(&mut self) {
        let Upkeep::Watched(watch) = &mut self.upkeep else { return };
        let index = self.device.as_ref().map(|device| device.index);
        let Some(presence) = watch.look(index) else { return };
        if let Some(device) = &self.device
            && presence.index() != Some(device.index)
        {
            self.device = None;
            self.counters.detached += 1;
        }
        // Only an existing device: the old one was deleted on purpose.
        if self.device.is_none() && presence != Presence::Absent {
            match Device::attach(&self.config) {
                Ok(device) => {
                    self.device = Some(device);
                    self.counters.reattached += 1;
                    // Attaching may have brought it up; look again at once.
                    watch.suspect();
                }
                Err(error) => {
                    self.link.fail(format!(
                        "the device was made anew and cannot be attached to: {error}"
                    ));
                    return;
                }
            }
        }
        if self.link.follow(watch.interface(), presence) {
            self.ports.link_ups += 1;
        }
    }

    /// A call failed because the device is down or gone.
    fn suspect(&mut self, error: &io::Error) {
        self.upkeep.suspect();
        let is_gone = error.raw_os_error() == Some(libc::EBADFD);
        if is_gone && matches!(self.upkeep, Upkeep::Adopted { .. }) && self.device.is_some() {
            self.device = None;
            self.counters.detached += 1;
            self.link.follow(&self.config.interface, Presence::Absent);
        }
    }

    fn count_refusal(&mut self, error: io::Error) {
        match error.raw_os_error() {
            _ if is_down(&error) => {
                self.ports.tx_drops.count(DropReason::LinkDown);
                self.suspect(&error);
            }
            Some(libc::EMSGSIZE) => self.ports.tx_drops.count(DropReason::FrameTooLong),
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => self.counters.tx_queue_full += 1,
            _ => {
                self.counters.tx_refused += 1;
                if !std::mem::replace(&mut self.is_reported, true) {
                    self.failure = Some(PortError::io("writing a frame to a TAP device", error));
                }
            }
        }
    }

    /// Passes the frame that waits for more to the kernel.
    fn send_merged(&mut self) {
        let Some(merged) = self.merged.take() else { return };
        let described = self.described();
        let description = merged.finish(&mut self.sent[described..][..merged.bytes]);
        self.sent[..described].copy_from_slice(&description);
        self.write(merged.bytes);
    }

    /// Passes the frame of `len` bytes in `sent` to the kernel; `false` if it is dropped, and
    /// counted.
    fn write(&mut self, len: usize) -> bool {
        let described = self.described();
        let device = self.device.as_mut().filter(|_| self.link.state == LinkState::Up);
        let Some(device) = device else {
            self.ports.tx_drops.count(DropReason::LinkDown);
            return false;
        };
        loop {
            self.counters.tx_calls += 1;
            match device.file.write(&self.sent[..described + len]) {
                // One call writes a whole frame or nothing.
                Ok(_) => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.count_refusal(error);
                    return false;
                }
            }
        }
    }

    fn report(&mut self) -> Result<(), PortError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Reads one frame with its description. `None`: there is none.
    fn read(&mut self) -> io::Result<Option<usize>> {
        let Some(device) = &mut self.device else { return Ok(None) };
        loop {
            self.counters.rx_calls += 1;
            return match device.file.read(&mut self.received) {
                Ok(len) => Ok(Some(len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // EFAULT: the device is being deleted.
                Err(error) if is_down(&error) || error.raw_os_error() == Some(libc::EFAULT) => {
                    self.suspect(&error);
                    Ok(None)
                }
                Err(error) => Err(error),
            };
        }
    }

    fn receive_each<F: FnMut(&[u8]) + ?Sized>(
        &mut self,
        max: usize,
        each: &mut F,
    ) -> Result<usize, PortError> {
        let mut handed = self.hand_out_parts(max, each);
        if handed < max && self.upkeep.is_early() {
            return Ok(handed);
        }
        while handed < max {
            match self.read() {
                Ok(Some(len)) => handed += self.hand_out(len, max - handed, each),
                Ok(None) => {
                    self.upkeep.found_none();
                    break;
                }
                Err(error) if handed == 0 => {
                    return Err(PortError::io("reading from a TAP device", error));
                }
                // The next call will return it again.
                Err(_) => break,
            }
        }
        if handed > 0 {
            self.upkeep.found_frame();
        }
        Ok(handed)
    }

    /// Hands out the frame of a read of `len` bytes, or its first `max` parts. Returns the number
    /// of frames handed out.
    fn hand_out<F: FnMut(&[u8]) + ?Sized>(
        &mut self,
        len: usize,
        max: usize,
        each: &mut F,
    ) -> usize {
        let Some(bytes) = len.checked_sub(self.described()) else {
            self.ports.rx_drops.count(DropReason::FrameTooShort);
            return 0;
        };
        let Some((description, frame)) = self.received[..len].split_at_mut_checked(len - bytes)
        else {
            return 0;
        };
        let offload = match description.first_chunk() {
            Some(description) => Offload::parse(description),
            None => Offload::default(),
        };
        if !offload.is_nothing() {
            let understood = if offload.is_split() {
                self.counters.rx_split += 1;
                self.splitter.begin(frame, &offload)
            } else {
                self.counters.rx_checksums_filled += 1;
                complete(frame, &offload)
            };
            if understood.is_err() {
                self.counters.rx_not_splittable += 1;
                return 0;
            }
            if offload.is_split() {
                self.unsplit_bytes = bytes;
                return self.hand_out_parts(max, each);
            }
        }
        if bytes > self.config.frame_bytes_max {
            self.ports.rx_drops.count(DropReason::FrameTooLong);
            return 0;
        }
        if bytes < FRAME_BYTES_MIN {
            self.ports.rx_drops.count(DropReason::FrameTooShort);
            return 0;
        }
        self.ports.count_rx(bytes);
        each(frame);
        1
    }

    /// Hands out up to `max` parts of the frame that is being split, if there is one.
    fn hand_out_parts<F: FnMut(&[u8]) + ?Sized>(&mut self, max: usize, each: &mut F) -> usize {
        let described = self.described();
        let frame = &mut self.received[described..described + self.unsplit_bytes];
        let mut handed = 0;
        while handed < max && !self.splitter.is_done() {
            let part = self.splitter.next(frame);
            if part.len() > self.config.frame_bytes_max {
                self.ports.rx_drops.count(DropReason::FrameTooLong);
                continue;
            }
            self.ports.count_rx(part.len());
            each(part);
            handed += 1;
        }
        handed
    }
}

impl Port for TapPort {
    forward_port!(|self| self => receive_each);

    fn transmit_room(&mut self) -> usize {
        SLOTS
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError> {
        check_length(len, self.config.frame_bytes_max)?;
        let described = self.described();
        if let Some(mut merged) = self.merged {
            let buffer = &mut self.sent[described..];
            fill(&mut buffer[merged.bytes..][..len]);
            if merged.append(buffer, len) {
                self.merged = Some(merged);
                self.ports.count_tx(len);
                return Ok(true);
            }
            self.send_merged();
            let end = described + merged.bytes;
            self.sent.copy_within(end..end + len, described);
        } else {
            fill(&mut self.sent[described..][..len]);
        }
        let may_merge = self.config.offloads && self.link.state == LinkState::Up;
        self.merged = may_merge.then(|| Merged::begin(&self.sent[described..][..len])).flatten();
        match self.merged {
            Some(_) => self.ports.count_tx(len),
            None => {
                self.sent[..described].fill(0);
                if self.write(len) {
                    self.ports.count_tx(len);
                }
            }
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.send_merged();
        self.report()
    }

    fn arm(&mut self) -> Result<bool, PortError> {
        // Frames wait in the kernel, which keeps the descriptor readable.
        Ok(false)
    }

    fn disarm(&mut self) {
        self.upkeep.wake();
    }

    fn descriptors(&self) -> Descriptors {
        let device = self.device.as_ref().map(|device| device.file.as_fd().as_raw_fd());
        let watch = match &self.upkeep {
            Upkeep::Watched(watch) => Some(watch.descriptor()),
            Upkeep::Adopted { .. } => None,
        };
        device.into_iter().chain(watch).collect()
    }

    fn service(&mut self) -> Result<LinkState, PortError> {
        self.look();
        self.report().map(|()| self.link.state)
    }

    fn link_state(&self) -> LinkState {
        self.link.state
    }

    fn last_disconnect(&self) -> Option<&str> {
        self.link.reason()
    }

    fn capabilities(&self) -> PortCapabilities {
        PortCapabilities {
            kind: "tap",
            name: Arc::clone(&self.name),
            frame_bytes_max: self.config.frame_bytes_max,
            transmit_slots: SLOTS,
            interrupts: true,
        }
    }

    fn counters(&self) -> PortCounters {
        self.ports
    }

    fn is_at_rest(&mut self) -> bool {
        self.send_merged();
        self.splitter.is_done()
    }

    fn hand_over(&mut self) -> Result<Handover, PortError> {
        let files = self.device.iter().map(|device| device.file.as_fd().try_clone_to_owned());
        let descriptors = files
            .collect::<Result<_, _>>()
            .map_err(|error| PortError::io("duplicating a TAP device's descriptor", error))?;
        Ok(Handover { descriptors, numbers: Vec::new() })
    }
}
