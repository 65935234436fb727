//! A TAP device as a [`Port`].

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use longhaul_port::{
    Descriptors, DropReason, FRAME_BYTES_MIN, LinkState, Port, PortCapabilities, PortCounters,
    PortError, check_length, forward_port,
};

use crate::config::TapConfig;
use crate::counters::NetdevCounters;
use crate::error::NetdevError;
use crate::request;
use crate::watch::{Link, Presence, Watch, is_down};

/// Maximum frames between two flushes. Each is passed to the kernel at once.
const SLOTS: usize = 256;

/// The network that the host sees at a TAP device: the port receives frames that the host sends,
/// and vice versa. See the [crate's documentation](crate).
pub struct TapPort {
    name: Arc<str>,
    config: TapConfig,
    /// The device, until it is deleted.
    device: Option<Device>,
    watch: Watch,
    link: Link,
    /// One frame, and an extra byte that detects a longer one.
    buffer: Box<[u8]>,
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
        let flags = (libc::IFF_TAP | libc::IFF_NO_PI) as u16;
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
        request::set_offloads(&file, 0).map_err(refused("turning offloads off"))?;
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
        let mut port = Self {
            name: config.name.as_str().into(),
            config: config.clone(),
            device: Some(Device::attach(config)?),
            watch,
            link: Link::new(),
            buffer: vec![0; config.frame_bytes_max + 1].into(),
            is_reported: false,
            failure: None,
            ports: PortCounters::default(),
            counters: NetdevCounters::default(),
        };
        port.look();
        Ok(port)
    }

    /// Name of the device, which may have changed.
    #[must_use]
    pub fn interface(&self) -> &str {
        self.watch.interface()
    }

    /// The counters that other kinds of port do not have.
    #[must_use]
    pub fn netdev_counters(&self) -> NetdevCounters {
        self.counters
    }

    /// Follows changes of the device.
    fn look(&mut self) {
        let index = self.device.as_ref().map(|device| device.index);
        let Some(presence) = self.watch.look(index) else { return };
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
                    self.watch.suspect();
                }
                Err(error) => {
                    self.link.fail(format!(
                        "the device was made anew and cannot be attached to: {error}"
                    ));
                    return;
                }
            }
        }
        if self.link.follow(self.watch.interface(), presence) {
            self.ports.link_ups += 1;
        }
    }

    fn count_refusal(&mut self, error: io::Error) {
        match error.raw_os_error() {
            _ if is_down(&error) => {
                self.ports.tx_drops.count(DropReason::LinkDown);
                self.watch.suspect();
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

    fn report(&mut self) -> Result<(), PortError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    fn receive_each<F: FnMut(&[u8]) + ?Sized>(
        &mut self,
        max: usize,
        each: &mut F,
    ) -> Result<usize, PortError> {
        let Some(device) = &mut self.device else { return Ok(0) };
        let mut handed = 0;
        while handed < max {
            self.counters.rx_calls += 1;
            let len = match device.file.read(&mut self.buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // EFAULT: the device is being deleted.
                Err(error) if is_down(&error) || error.raw_os_error() == Some(libc::EFAULT) => {
                    self.watch.suspect();
                    break;
                }
                Err(error) if handed == 0 => {
                    return Err(PortError::io("reading from a TAP device", error));
                }
                // The next call will return it again.
                Err(_) => break,
            };
            if len > self.config.frame_bytes_max {
                self.ports.rx_drops.count(DropReason::FrameTooLong);
            } else if len < FRAME_BYTES_MIN {
                self.ports.rx_drops.count(DropReason::FrameTooShort);
            } else {
                self.ports.count_rx(len);
                each(&self.buffer[..len]);
                handed += 1;
            }
        }
        Ok(handed)
    }
}

impl Port for TapPort {
    forward_port!(|self| self => receive_each);

    fn transmit_room(&mut self) -> usize {
        SLOTS
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError> {
        check_length(len, self.config.frame_bytes_max)?;
        let frame = &mut self.buffer[..len];
        fill(frame);
        let device = self.device.as_mut().filter(|_| self.link.state == LinkState::Up);
        let Some(device) = device else {
            self.ports.tx_drops.count(DropReason::LinkDown);
            return Ok(true);
        };
        loop {
            self.counters.tx_calls += 1;
            match device.file.write(frame) {
                // One call writes a whole frame or nothing.
                Ok(_) => self.ports.count_tx(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => self.count_refusal(error),
            }
            return Ok(true);
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.report()
    }

    fn arm(&mut self) -> Result<bool, PortError> {
        // Frames wait in the kernel, which keeps the descriptor readable.
        Ok(false)
    }

    fn disarm(&mut self) {
        self.watch.wake();
    }

    fn descriptors(&self) -> Descriptors {
        let device = self.device.as_ref().map(|device| device.file.as_fd().as_raw_fd());
        device.into_iter().chain([self.watch.descriptor()]).collect()
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
}
