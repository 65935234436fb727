//! A port's resources at one interface: sockets, buffers, and its share of the program.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;

use crate::config::{Copying, XdpConfig};
use crate::error::XdpError;
use crate::installed::{Installed, ONE_BUFFER, Share, too_large};
use crate::memory::{Buffers, RingMemory};
use crate::queue::Queue;
use crate::ring::{Consuming, Producing};
use crate::sender::Sender;
use crate::socket::{Ring, Statistics, XdpSocket};

/// Bytes of the send buffer that each part of a copied frame takes until the kernel has sent it.
const SEND_BYTES_EACH: usize = 2 * Buffers::EACH;

/// How a port is attached, for messages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Manner {
    /// The program runs in the driver.
    pub is_native: bool,
    /// Buffers are shared with the device.
    pub has_zero_copy: bool,
    /// A frame may span several buffers.
    pub takes_parts: bool,
    /// Receive queues of all ports that share the interface.
    pub queues: u16,
    /// Why it is not native although that was tried first.
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

/// The attachment of a port. Fields are dropped in this order: the program must not outlive the
/// sockets that it redirects to, and buffers are last.
pub(crate) struct Attachment {
    pub(crate) installed: Arc<Installed>,
    pub(crate) manner: Manner,
    /// Readable if a frame waits in any queue.
    pub(crate) ready: OwnedFd,
    /// The first one also sends.
    pub(crate) queues: Vec<Queue>,
    pub(crate) sender: Sender,
    pub(crate) buffers: Buffers,
}

impl Attachment {
    /// Attaches to the interface `index`, whose name is in `config`.
    pub(crate) fn new(config: &XdpConfig, index: u32, share: &Share) -> Result<Self, XdpError> {
        let name = &config.interface;
        let refused =
            |operation| move |source| XdpError::of(name, operation, "CAP_NET_RAW", source);
        // First, for its errors, before the interface is changed.
        let first = XdpSocket::new().map_err(refused("opening an AF_XDP socket"))?;
        let (numbers, of_all) = share.queues(config)?;
        let installed = share.installed(config, index)?;
        let wanted = Wanted { config, index, numbers: &numbers, of_all, installed: &installed };
        let (queues, sender, buffers) = wanted.open(first)?;
        for (queue, number) in queues.iter().zip(&numbers) {
            installed.hand_to(*number, &queue.socket).map_err(|error| {
                XdpError::of(name, "giving the program a socket", "CAP_BPF", error)
            })?;
        }
        Self::with(installed, of_all, queues, sender, buffers)
            .map_err(refused("waiting for frames"))
    }

    pub(crate) fn with(
        installed: Arc<Installed>,
        of_all: u16,
        queues: Vec<Queue>,
        sender: Sender,
        buffers: Buffers,
    ) -> io::Result<Self> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for queue in &queues {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&ready, queue.socket.as_fd(), data, epoll::EventFlags::IN)?;
        }
        let manner = Manner {
            is_native: installed.is_native(),
            has_zero_copy: queues.iter().all(|queue| queue.socket.has_zero_copy()),
            takes_parts: installed.takes_parts(),
            queues: of_all,
            refusal: installed.refusal(),
        };
        Ok(Self { installed, manner, ready, queues, sender, buffers })
    }

    /// Maximum length of a received frame, in bytes.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        if self.manner.takes_parts { usize::MAX } else { ONE_BUFFER }
    }

    /// The kernel's counters, summed over all queues.
    pub(crate) fn statistics(&self) -> Statistics {
        self.queues
            .iter()
            .map(|queue| queue.socket.statistics())
            .fold(Statistics::default(), Statistics::and)
    }
}

/// The queues that a port asks for.
struct Wanted<'a> {
    config: &'a XdpConfig,
    /// Index of the interface.
    index: u32,
    /// Numbers of its queues.
    numbers: &'a [u16],
    /// Number of queues of all ports at the interface.
    of_all: u16,
    installed: &'a Installed,
}

impl Wanted<'_> {
    /// Opens a socket per queue over the same buffers. `first` also sends.
    fn open(&self, first: XdpSocket) -> Result<(Vec<Queue>, Sender, Buffers), XdpError> {
        let Wanted { config, numbers, .. } = *self;
        let name = &config.interface;
        let refused =
            |operation| move |source| XdpError::of(name, operation, "CAP_NET_RAW", source);
        let frames = config.frames_of_each(self.of_all);
        let buffer_count = config.transmit_frames + numbers.len() as u32 * frames;
        let buffers = Buffers::new(buffer_count).map_err(refused("getting memory for buffers"))?;
        first.register(&buffers).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOBUFS | libc::ENOMEM) => {
                XdpError::LockedMemory { interface: name.clone(), bytes: buffers.bytes() }
            }
            _ => refused("registering buffers")(error),
        })?;
        first.set_send_buffer(config.transmit_frames as usize * SEND_BYTES_EACH);
        let transmit = ring(&first, Ring::Transmit, config.transmit_frames)
            .map_err(refused("making a ring"))?;
        let completion = ring(&first, Ring::Completion, config.transmit_frames)
            .map_err(refused("making a ring"))?;
        let sender = Sender::new(
            Producing::new(transmit),
            Consuming::new(completion),
            config.transmit_frames,
        );
        let mut queues = Vec::<Queue>::new();
        let mut first = Some(first);
        for (at, number) in (0..).zip(numbers) {
            let socket = match first.take() {
                Some(first) => first,
                None => {
                    let socket = XdpSocket::new().map_err(refused("opening an AF_XDP socket"))?;
                    // The kernel requires the ring, but nothing is sent by it.
                    ring(&socket, Ring::Completion, 64).map_err(refused("making a ring"))?;
                    socket
                }
            };
            let receive = ring(&socket, Ring::Receive, frames).map_err(refused("making a ring"))?;
            let fill = ring(&socket, Ring::Fill, frames).map_err(refused("making a ring"))?;
            let buffer = config.transmit_frames + at * frames;
            let (receive, fill) = (Consuming::new(receive), Producing::new(fill));
            let queue = Queue::new(socket, receive, fill, buffer, frames)
                .map_err(|violation| refused("lending buffers")(io::Error::other(violation.0)))?;
            self.bind(*number, &queue.socket, queues.first().map(|first| &first.socket))?;
            queues.push(queue);
        }
        Ok((queues, sender, buffers))
    }

    fn bind(
        &self,
        queue: u16,
        socket: &XdpSocket,
        shared: Option<&XdpSocket>,
    ) -> Result<(), XdpError> {
        let Wanted { config, index, installed, .. } = *self;
        let interface = config.interface.clone();
        let mut flags = libc::XDP_USE_NEED_WAKEUP;
        flags |= match config.copying {
            _ if !installed.is_native() => libc::XDP_COPY,
            Copying::Auto => 0,
            Copying::Copy => libc::XDP_COPY,
            Copying::ZeroCopy => libc::XDP_ZEROCOPY,
        };
        if installed.takes_parts() {
            flags |= libc::XDP_USE_SG;
        }
        let Err(error) = socket.bind(index, queue.into(), flags, shared) else { return Ok(()) };
        Err(match error.raw_os_error() {
            Some(libc::EBUSY) => XdpError::QueueInUse { interface, queue },
            Some(libc::EOPNOTSUPP) if config.copying == Copying::ZeroCopy => {
                XdpError::NoZeroCopy { interface }
            }
            Some(libc::EINVAL) if queue > 0 => {
                let there = longhaul_netdev::interface::queues(&interface);
                let most = there
                    .map_or(queue, |there| there.receive.max(there.send).min(queue.into()) as u16);
                XdpError::Queues { interface, most, wanted: config.queues.unwrap_or(1) }
            }
            Some(libc::EINVAL) if installed.takes_parts() => {
                too_large(&interface, installed.mtu, &error)
            }
            _ => XdpError::of(&interface, "binding a socket to a queue", "CAP_NET_RAW", error),
        })
    }
}

fn ring(socket: &XdpSocket, ring: Ring, entries: u32) -> io::Result<RingMemory> {
    socket.make_ring(ring, entries)?;
    map(socket, ring, entries)
}

/// Maps a ring of the socket, which has this number of entries.
pub(crate) fn map(socket: &XdpSocket, ring: Ring, entries: u32) -> io::Result<RingMemory> {
    let entry_words = if matches!(ring, Ring::Receive | Ring::Transmit) { 2 } else { 1 };
    RingMemory::map(socket.as_fd(), ring.offset(), socket.layout(ring)?, entries, entry_words)
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
        let text =
            "generic, copying, frames over several buffers, 2 queues (native: it has no XDP)";
        assert_eq!(manner.to_string(), text);
    }
}
