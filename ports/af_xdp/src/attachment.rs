//! Everything that a port has at one interface: program, sockets, buffers.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use longhaul_netdev::interface;
use longhaul_netdev::offloads::{ReceiveOffloads, Unwanted};
use rustix::event::epoll;

use crate::bpf;
use crate::config::{Copying, Mode, XdpConfig};
use crate::error::XdpError;
use crate::memory::{Buffers, RingMemory};
use crate::program::program;
use crate::queue::Queue;
use crate::ring::{Consuming, Producing};
use crate::sender::Sender;
use crate::socket::{Ring, Statistics, XdpSocket};

/// What the kernel keeps of each buffer that a frame is received in, in bytes.
const HEADROOM: usize = 256;
/// The longest frame in one buffer, in bytes.
pub(crate) const ONE_BUFFER: usize = Buffers::EACH - HEADROOM;
/// An Ethernet header and two VLAN tags, in bytes.
const AROUND_MTU: usize = 14 + 2 * 4;
/// What a frame that the kernel copied to send takes of the send buffer, in bytes for each part.
const SEND_BYTES_EACH: usize = 2 * Buffers::EACH;

/// How a port came to be attached: for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manner {
    /// The program runs in the driver.
    pub is_native: bool,
    /// Buffers are shared with the device.
    pub has_zero_copy: bool,
    /// Frames may lie in several buffers.
    pub takes_parts: bool,
    /// Queues that are received from.
    pub queues: u16,
    /// Why it is not native although that was first choice.
    pub refusal: Option<String>,
}

impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_native { "native" } else { "generic" })?;
        f.write_str(if self.has_zero_copy { ", zero copy" } else { ", copying" })?;
        if self.takes_parts {
            f.write_str(", frames over several buffers")?;
        }
        write!(f, ", {} {}", self.queues, if self.queues == 1 { "queue" } else { "queues" })?;
        match &self.refusal {
            Some(refusal) => write!(f, " (native: {refusal})"),
            None => Ok(()),
        }
    }
}

/// See the module. Fields go in this order: no frame comes to a socket that is gone, and buffers last.
pub(crate) struct Attachment {
    _link: OwnedFd,
    pub(crate) manner: Manner,
    /// Readable when a frame waits in any queue.
    pub(crate) ready: OwnedFd,
    /// The first one sends as well.
    pub(crate) queues: Vec<Queue>,
    pub(crate) sender: Sender,
    pub(crate) buffers: Buffers,
    _promiscuous: Option<OwnedFd>,
    _offloads: [Option<ReceiveOffloads>; 2],
}

/// The program at an interface.
struct Attached {
    link: OwnedFd,
    map: OwnedFd,
    is_native: bool,
    takes_parts: bool,
    refusal: Option<String>,
}

impl Attachment {
    /// Attaches to the interface `index`, whose name is in `config`.
    pub(crate) fn new(config: &XdpConfig, index: u32) -> Result<Self, XdpError> {
        let name = &config.interface;
        let refused = |operation| move |source| XdpError::of(name, operation, "CAP_NET_RAW", source);
        // Before the program: drivers refuse it beside LRO.
        let unwanted = Unwanted { kernel_merging: false, device_merging: true, tags_off: true };
        let offloads =
            ReceiveOffloads::turn_off(name, index, unwanted).map_err(refused("making a socket"))?;
        let mtu = interface::mtu(name)?;
        // For its errors, before anything changes at the interface.
        let first = XdpSocket::new().map_err(refused("opening an AF_XDP socket"))?;
        let attached = attach(config, index, mtu)?;
        let unwanted = Unwanted { kernel_merging: true, device_merging: false, tags_off: false };
        let merging = (!attached.is_native)
            .then(|| ReceiveOffloads::turn_off(name, index, unwanted))
            .transpose()
            .map_err(refused("making a socket"))?;
        let promiscuous = config
            .promiscuous
            .then(|| crate::socket::promiscuous(index))
            .transpose()
            .map_err(refused("asking for frames to others"))?;
        let count = match config.queues {
            Some(queues) => queues,
            None => interface::queues(name)?.clamp(1, u32::from(XdpConfig::QUEUES_MAX)) as u16,
        };
        let (queues, sender, buffers) = open_queues(config, index, mtu, first, count, &attached)?;
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| refused("making a descriptor to wait on")(error.into()))?;
        for (queue, number) in queues.iter().zip(0..) {
            bpf::put_socket(attached.map.as_fd(), number, queue.socket.as_fd())
                .map_err(|error| XdpError::of(name, "giving the program a socket", "CAP_BPF", error))?;
            let data = epoll::EventData::new_u64(0);
            epoll::add(&ready, queue.socket.as_fd(), data, epoll::EventFlags::IN)
                .map_err(|error| refused("waiting for frames")(error.into()))?;
        }
        let manner = Manner {
            is_native: attached.is_native,
            has_zero_copy: queues.iter().all(|queue| queue.socket.has_zero_copy()),
            takes_parts: attached.takes_parts,
            queues: count,
            refusal: attached.refusal,
        };
        let offloads = [Some(offloads), merging];
        Ok(Self {
            _link: attached.link,
            manner,
            ready,
            queues,
            sender,
            buffers,
            _promiscuous: promiscuous,
            _offloads: offloads,
        })
    }

    /// The longest frame that can be received, in bytes.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        if self.manner.takes_parts { usize::MAX } else { ONE_BUFFER }
    }

    /// What the kernel counted for all queues.
    pub(crate) fn statistics(&self) -> Statistics {
        self.queues.iter().map(|queue| queue.socket.statistics()).fold(Statistics::default(), Statistics::and)
    }
}

/// Has the program run at the interface, in the best way that there is. It finds no sockets yet, and leaves all to the kernel.
fn attach(config: &XdpConfig, index: u32, mtu: u32) -> Result<Attached, XdpError> {
    let name = &config.interface;
    let map = bpf::map_of_sockets(u32::from(XdpConfig::QUEUES_MAX)).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::EINVAL) => XdpError::too_old("make a map of sockets", error),
            _ => XdpError::of(name, "making a map of sockets", "CAP_BPF", error),
        }
    })?;
    let code = program(config.wanted, map.as_fd().as_raw_fd());
    let load = |takes_parts| bpf::load(&code, takes_parts);
    let fits = mtu as usize + AROUND_MTU <= ONE_BUFFER;
    let whole = fits
        .then(|| load(false))
        .transpose()
        .map_err(|error| XdpError::of(name, "loading an XDP program", "CAP_BPF and CAP_NET_ADMIN", error))?;
    let parts = load(true);
    let mut refusal = None;
    let ways: &[bool] = match config.mode {
        Mode::Auto => &[true, false],
        Mode::Native => &[true],
        Mode::Generic => &[false],
    };
    for &is_native in ways {
        // In the driver one buffer first: more have zero copy for it. Behind it long segments of this machine's senders may come.
        let mut programs = [(whole.as_ref(), false), (parts.as_ref().ok(), true)];
        if !is_native {
            programs.reverse();
        }
        for (program, takes_parts) in programs {
            let Some(program) = program else { continue };
            match bpf::link(program.as_fd(), index, is_native) {
                Ok(link) => return Ok(Attached { link, map, is_native, takes_parts, refusal }),
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
                    return Err(XdpError::ProgramThere { interface: name.clone() });
                }
                Err(error) if is_fatal(&error) => {
                    return Err(XdpError::of(name, "attaching an XDP program", "CAP_NET_ADMIN", error));
                }
                Err(error) if is_native => refusal = Some(meaning(&error)),
                Err(error) => return Err(XdpError::too_old("attach an XDP program by a link", error)),
            }
        }
    }
    match (parts, refusal) {
        (Err(error), _) if !fits => Err(too_large(name, mtu, &error)),
        (_, reason) => {
            let reason = reason.unwrap_or_else(|| "it says nothing".to_owned());
            Err(XdpError::NoNative { interface: name.clone(), reason })
        }
    }
}

/// Whether another way of attaching would fare no better.
fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EACCES | libc::ENODEV | libc::ENXIO | libc::ENOMEM | libc::ENOSYS)
    )
}

/// What it mostly means that a driver refuses with this error.
fn meaning(error: &io::Error) -> String {
    let meaning = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "it has no XDP",
        Some(libc::ERANGE) => "the MTU is too large for it",
        Some(libc::ENOSPC) => "it has too few receive queues, on veth fewer than its other end sends by",
        _ => return error.to_string(),
    };
    meaning.to_owned()
}

fn too_large(interface: &str, mtu: u32, error: &io::Error) -> XdpError {
    let most = (ONE_BUFFER - AROUND_MTU) as u32;
    let reason = format!("without frames over several buffers, which Linux has from 6.6 on ({error}),");
    XdpError::MtuTooLarge { interface: interface.to_owned(), mtu, most, reason }
}

/// Opens `count` sockets over the same buffers. The `first` one sends as well.
fn open_queues(
    config: &XdpConfig,
    index: u32,
    mtu: u32,
    first: XdpSocket,
    count: u16,
    attached: &Attached,
) -> Result<(Vec<Queue>, Sender, Buffers), XdpError> {
    let name = &config.interface;
    let refused = |operation| move |source| XdpError::of(name, operation, "CAP_NET_RAW", source);
    let frames = config.frames_of_each(count);
    let buffer_count = config.transmit_frames + u32::from(count) * frames;
    let buffers = Buffers::new(buffer_count).map_err(refused("getting memory for buffers"))?;
    first.register(&buffers).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOBUFS | libc::ENOMEM) => {
            XdpError::LockedMemory { interface: name.clone(), bytes: buffers.bytes() }
        }
        _ => refused("registering buffers")(error),
    })?;
    first.set_send_buffer(config.transmit_frames as usize * SEND_BYTES_EACH);
    let transmit = ring(&first, Ring::Transmit, config.transmit_frames).map_err(refused("making a ring"))?;
    let completion =
        ring(&first, Ring::Completion, config.transmit_frames).map_err(refused("making a ring"))?;
    let sender = Sender::new(Producing::new(transmit), Consuming::new(completion), config.transmit_frames);
    let mut queues = Vec::<Queue>::new();
    let mut first = Some(first);
    for number in 0..u32::from(count) {
        let socket = match first.take() {
            Some(first) => first,
            None => {
                let socket = XdpSocket::new().map_err(refused("opening an AF_XDP socket"))?;
                // The kernel wants one; nothing is sent by it.
                ring(&socket, Ring::Completion, 64).map_err(refused("making a ring"))?;
                socket
            }
        };
        let receive = ring(&socket, Ring::Receive, frames).map_err(refused("making a ring"))?;
        let fill = ring(&socket, Ring::Fill, frames).map_err(refused("making a ring"))?;
        let buffer = config.transmit_frames + number * frames;
        let (receive, fill) = (Consuming::new(receive), Producing::new(fill));
        let queue = Queue::new(socket, receive, fill, buffer, frames)
            .map_err(|violation| refused("lending buffers")(io::Error::other(violation.0)))?;
        bind(config, index, mtu, number, &queue.socket, queues.first().map(|first| &first.socket), attached)?;
        queues.push(queue);
    }
    Ok((queues, sender, buffers))
}

fn ring(socket: &XdpSocket, ring: Ring, entries: u32) -> io::Result<RingMemory> {
    let offset = socket.make_ring(ring, entries)?;
    let entry_words = if matches!(ring, Ring::Receive | Ring::Transmit) { 2 } else { 1 };
    RingMemory::map(socket.as_fd(), offset, socket.layout(ring)?, entries, entry_words)
}

fn bind(
    config: &XdpConfig,
    index: u32,
    mtu: u32,
    queue: u32,
    socket: &XdpSocket,
    shared: Option<&XdpSocket>,
    attached: &Attached,
) -> Result<(), XdpError> {
    let interface = config.interface.clone();
    let mut flags = libc::XDP_USE_NEED_WAKEUP;
    flags |= match config.copying {
        _ if !attached.is_native => libc::XDP_COPY,
        Copying::Auto => 0,
        Copying::Copy => libc::XDP_COPY,
        Copying::ZeroCopy => libc::XDP_ZEROCOPY,
    };
    if attached.takes_parts {
        flags |= libc::XDP_USE_SG;
    }
    let Err(error) = socket.bind(index, queue, flags, shared) else { return Ok(()) };
    Err(match error.raw_os_error() {
        Some(libc::EBUSY) => XdpError::QueueInUse { interface, queue: queue as u16 },
        Some(libc::EOPNOTSUPP) if config.copying == Copying::ZeroCopy => XdpError::NoZeroCopy { interface },
        Some(libc::EINVAL) if queue > 0 => {
            XdpError::Queues { interface, most: queue as u16, wanted: config.queues.unwrap_or(1) }
        }
        Some(libc::EINVAL) if attached.takes_parts => too_large(&interface, mtu, &error),
        _ => XdpError::of(&interface, "binding a socket to a queue", "CAP_NET_RAW", error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_it_is_attached_is_said_in_a_line() {
        let manner = Manner {
            is_native: false,
            has_zero_copy: false,
            takes_parts: true,
            queues: 2,
            refusal: Some("it has no XDP".to_owned()),
        };
        let text = "generic, copying, frames over several buffers, 2 queues (native: it has no XDP)";
        assert_eq!(manner.to_string(), text);
    }
}
